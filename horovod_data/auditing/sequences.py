# SPDX-License-Identifier: Apache-2.0
"""Keras' sequences with a look at the batches that are fetched. Keras fetches them by number, ahead, in threads, and says when an
epoch is over; a loop of the user's is an iteration, as of other loaders."""

from __future__ import annotations

import itertools
import sys
import threading
from typing import Any, Iterable, Iterator, Optional

from ..ending.processes import fork_check
from ..errors import explain
from .iterables import Audit, recorded
from .record import Recorder


def sequence_class(given: Any) -> Any:
    """The class of Keras' whose subclass this object is: Sequence, or Keras 3's PyDataset; None: it is none."""
    for base in type(given).__mro__:
        if base.__name__ in ("Sequence", "PyDataset") and not {"keras", "tf_keras"}.isdisjoint(
            base.__module__.split(".")
        ):
            return base
    return None


def audited_sequence(given: Any, recorder: Recorder, base: Any) -> Any:
    """A Keras sequence of the same batches. What Keras has fetched for an epoch that it has not come to is no epoch; and it looks at
    the first batch before it begins, which counts once."""
    forked = fork_check()
    lock = threading.Lock()
    fetched: set[int] = set()  # of the epoch under way; another one for each

    def looped(elements: Iterable[Any]) -> Iterator[Any]:
        nonlocal fetched
        with lock:
            fetched = set()
        yield from recorded(elements, recorder)

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

        if hasattr(given, "num_batches"):  # Keras 3's: some have this, and no length
            num_batches = property(lambda _: given.num_batches)

        def __getitem__(self, index: int) -> Any:
            mine = fetched
            element = given[index]
            if forked():
                raise RuntimeError(
                    explain(
                        f"{recorder.name}: Keras makes the batches in processes of their own, where an "
                        "audit doesn't see them",
                        "Leave out use_multiprocessing=True while you audit",
                    )
                )
            if index not in mine:
                keys = recorder.made(-1, element)
                with lock:
                    if mine is fetched and index not in mine:  # one that comes late was of the epoch before
                        mine.add(index)
                        recorder.add(-1, keys)
            return element

        def on_epoch_begin(self) -> None:  # Keras 3's
            if hasattr(given, "on_epoch_begin"):
                given.on_epoch_begin()

        def on_epoch_end(self) -> None:
            if not _between_passes():
                self._end(whole=not hasattr(given, "__len__") or len(fetched) >= len(given))
            given.on_epoch_end()

        def end_epoch(self) -> None:
            self._end(whole=False)

        def _end(self, whole: bool) -> None:
            nonlocal fetched
            with lock:
                fetched = set()
                recorder.close(whole)

        def __iter__(self) -> Iterator[Any]:
            return looped(
                given[index] for index in (range(len(given)) if hasattr(given, "__len__") else itertools.count())
            )

    class AuditedEndless(AuditedSequence):
        """Of what has a next() as well, as the iterators of Keras' image generators."""

        _loop: Optional[Iterator[Any]] = None  # of the calls of next()

        def __iter__(self) -> Iterator[Any]:
            self._loop = None
            return looped(given)

        def __next__(self) -> Any:
            self._loop = looped(given) if self._loop is None else self._loop
            return next(self._loop)

    return (AuditedEndless if hasattr(given, "__next__") else AuditedSequence)()


def _between_passes() -> bool:
    """Whether on_epoch_end() was called by Keras' enqueuer, which `workers` of fit() share: it says so behind each pass over the
    sequence, and goes on to fetch the next one, until Keras itself calls on_epoch_end()."""
    caller = sys._getframe(2).f_locals.get("self")
    return any(base.__name__ == "OrderedEnqueuer" for base in type(caller).__mro__)
