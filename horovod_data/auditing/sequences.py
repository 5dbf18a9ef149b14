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
    """The class of Keras from which this object's class is derived: Sequence, or PyDataset in Keras 3.

    None: it is no sequence.
    """
    for base in type(given).__mro__:
        packages = base.__module__.split(".")
        if base.__name__ in ("Sequence", "PyDataset") and ("keras" in packages or "tf_keras" in packages):
            return base
    return None


def audited_sequence(given: Any, recorder: Recorder, base: Any) -> Any:
    """A Keras sequence of the same batches. Each batch counts once in an epoch.

    Keras looks at the first batch before it begins, so that batch comes twice. Batches that Keras has fetched for an
    epoch that it never begins do not count. So the recorder gets the batches at the end of their epoch.
    """
    forked = fork_check()
    lock = threading.Lock()
    fetched: dict[int, Any] = {}  # the keys of the batches of the running epoch; each epoch has its own dict

    def forget() -> None:
        nonlocal fetched
        fetched = {}

    class AuditedSequence(Audit, base):
        _recorder, _inner = recorder, given

        def __init__(self) -> None:
            settings = {
                name: getattr(given, name)
                for name in ("workers", "use_multiprocessing", "max_queue_size")
                if base.__name__ == "PyDataset" and hasattr(given, name)
            }
            super().__init__(**settings)

        def __len__(self) -> int:
            return len(given)

        if hasattr(given, "num_batches"):  # some of Keras 3's sequences have this, and no length
            num_batches = property(lambda _: given.num_batches)

        def __getitem__(self, index: int) -> Any:
            mine = fetched
            element = given[index]
            if forked():
                what = "Keras makes the batches in processes of their own, where an audit doesn't see them"
                to_do = "Leave out use_multiprocessing=True while you audit"
                raise explained(RuntimeError, f"{recorder.name}: {what}", to_do)
            if index not in mine:
                keys = recorder.keys(element, which=f"batch {index}")
                with lock:
                    mine.setdefault(index, keys)  # without effect for a late batch, whose epoch has ended
                if isinstance(keys, Exception) and not recorder.forgiving:
                    self._end(whole=False)
            return element

        def on_epoch_begin(self) -> None:  # only Keras 3 calls it
            if hasattr(given, "on_epoch_begin"):
                given.on_epoch_begin()

        def on_epoch_end(self) -> None:
            if not _between_passes():
                self._end(whole=not hasattr(given, "__len__") or len(fetched) >= len(given))
            given.on_epoch_end()

        def end_epoch(self) -> None:
            self._end(whole=False)

        def _end(self, whole: bool) -> None:
            with lock:
                batches = list(fetched.values())
                forget()
            if batches:
                iteration = recorder.begin()
                for keys in batches:
                    recorder.add(iteration, keys)
                recorder.end(iteration, left=not whole)
            else:
                recorder.close(whole)

        def __iter__(self) -> Iterator[Any]:
            with lock:
                forget()
            numbers = range(len(given)) if hasattr(given, "__len__") else itertools.count()
            yield from recorded((given[index] for index in numbers), recorder)

    return AuditedSequence()


def _between_passes() -> bool:
    """Says whether Keras' enqueuer has called on_epoch_end(). It does so after each pass, and then begins the next
    pass.

    The epoch ends when Keras itself calls on_epoch_end().
    """
    caller = sys._getframe(2).f_locals.get("self")
    return any(base.__name__ == "OrderedEnqueuer" for base in type(caller).__mro__)
