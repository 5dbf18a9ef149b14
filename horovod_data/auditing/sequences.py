# SPDX-License-Identifier: Apache-2.0
"""Audits Keras' sequences. An audited sequence records the batches that Keras fetches.

Keras fetches batches by their numbers, ahead of the training, in threads. At the end of an epoch Keras calls
on_epoch_end(). If the program itself loops over the sequence, each loop is an epoch, as with other loaders.
"""

from __future__ import annotations

import itertools
import sys
import threading
from typing import Any, Iterator

from ..errors import explained, fork_check
from .iterables import Audit, recorded
from .record import Recorder


def sequence_class(given: Any) -> Any:
    """Returns the class of Keras from which the object's class derives: Sequence, or PyDataset in Keras 3.

    Returns None if the object is no sequence.
    """
    for base in type(given).__mro__:
        packages = base.__module__.split(".")
        if base.__name__ in ("Sequence", "PyDataset") and ("keras" in packages or "tf_keras" in packages):
            return base
    return None


def audited_sequence(given: Any, recorder: Recorder, base: Any) -> Any:
    """Returns a Keras sequence with the same batches.

    The recorder gets the keys of an epoch's batches when the epoch ends, once for each batch. This is necessary
    because Keras fetches the first batch twice, and also fetches batches for an epoch that it never begins.
    """

    class AuditedSequence(Audit, base):
        _recorder, _inner = recorder, given
        _audit_forked = staticmethod(fork_check())

        def __init__(self) -> None:
            self._audit_lock = threading.Lock()
            self._audit_keys: dict[int, Any] = {}  # by batch, in the running epoch. Each epoch has its own dict
            settings = ("workers", "use_multiprocessing", "max_queue_size") if base.__name__ == "PyDataset" else ()
            super().__init__(**{name: getattr(given, name) for name in settings if hasattr(given, name)})

        def __len__(self) -> int:
            return len(given)

        if hasattr(given, "num_batches"):  # some sequences of Keras 3 have num_batches, and no length
            num_batches = property(lambda _: given.num_batches)

        def __getitem__(self, index: int) -> Any:
            mine = self._audit_keys
            element = given[index]
            if self._audit_forked():
                what = f"{recorder.name}: Keras makes the batches in other processes, where an audit doesn't see them"
                raise explained(RuntimeError, what, "Leave out use_multiprocessing=True while you audit")
            if index not in mine:
                keys = recorder.keys(element, which=f"batch {index}")
                with self._audit_lock:
                    mine.setdefault(index, keys)  # without effect if the epoch of this batch has ended
                if isinstance(keys, Exception) and not recorder.forgiving:
                    self.end_epoch()
            return element

        def on_epoch_begin(self) -> None:  # only Keras 3 calls it
            if hasattr(given, "on_epoch_begin"):
                given.on_epoch_begin()

        def on_epoch_end(self) -> None:
            if not _between_passes():
                self.end_epoch(whole=not hasattr(given, "__len__") or len(self._audit_keys) >= len(given))
            given.on_epoch_end()

        def end_epoch(self, whole: bool = False) -> None:
            if batches := self._taken():
                iteration = recorder.begin()
                for keys in batches:
                    recorder.add(iteration, keys)
            recorder.end(whole=whole)

        def _taken(self) -> list[Any]:
            """Returns the keys of the running epoch's batches. The next epoch begins without keys."""
            with self._audit_lock:
                taken, self._audit_keys = self._audit_keys, {}
                return list(taken.values())

        def __iter__(self) -> Iterator[Any]:
            self._taken()
            numbers = range(len(given)) if hasattr(given, "__len__") else itertools.count()
            yield from recorded((given[index] for index in numbers), recorder)

    return AuditedSequence()


def _between_passes() -> bool:
    """Says whether the caller of on_epoch_end() is Keras' enqueuer, which calls it after each pass over the batches.

    Such a call ends no epoch. A call from other code of Keras ends the epoch.
    """
    caller = sys._getframe(2).f_locals.get("self")
    return any(base.__name__ == "OrderedEnqueuer" for base in type(caller).__mro__)
