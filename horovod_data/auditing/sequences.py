# SPDX-License-Identifier: Apache-2.0
"""Audits Keras' sequences. It records the batches that are fetched.

Keras fetches batches by number, ahead, in threads, and calls on_epoch_end(). A loop of the program is an iteration, as
with other loaders.
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
    """Keras' class from which this object's class is derived: Sequence, or PyDataset in Keras 3. None: no sequence."""
    for base in type(given).__mro__:
        packages = base.__module__.split(".")
        if base.__name__ in ("Sequence", "PyDataset") and ("keras" in packages or "tf_keras" in packages):
            return base
    return None


def audited_sequence(given: Any, recorder: Recorder, base: Any) -> Any:
    """A Keras sequence of the same batches. The recorder gets the batches at the end of their epoch, each once.

    Because Keras fetches the first batch twice, and fetches batches for an epoch that it never begins.
    """

    class AuditedSequence(Audit, base):
        _recorder, _inner = recorder, given
        _audit_forked = staticmethod(fork_check())

        def __init__(self) -> None:
            self._audit_lock = threading.Lock()
            self._audit_keys: dict[int, Any] = {}  # of the batches of the running epoch; each epoch has its own dict
            settings = ("workers", "use_multiprocessing", "max_queue_size") if base.__name__ == "PyDataset" else ()
            super().__init__(**{name: getattr(given, name) for name in settings if hasattr(given, name)})

        def __len__(self) -> int:
            return len(given)

        if hasattr(given, "num_batches"):  # some of Keras 3's sequences have this, and no length
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
                    mine.setdefault(index, keys)  # without effect for a late batch, whose epoch has ended
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
            """The keys of the batches of the running epoch. The next epoch begins without any."""
            with self._audit_lock:
                taken, self._audit_keys = self._audit_keys, {}
                return list(taken.values())

        def __iter__(self) -> Iterator[Any]:
            self._taken()
            numbers = range(len(given)) if hasattr(given, "__len__") else itertools.count()
            yield from recorded((given[index] for index in numbers), recorder)

    return AuditedSequence()


def _between_passes() -> bool:
    """Says whether Keras' enqueuer has called on_epoch_end(), as it does after each pass. An epoch ends when Keras itself
    calls it."""
    caller = sys._getframe(2).f_locals.get("self")
    return any(base.__name__ == "OrderedEnqueuer" for base in type(caller).__mro__)
