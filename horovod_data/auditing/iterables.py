# SPDX-License-Identifier: Apache-2.0
"""Audits Python's iterables. They yield the same objects as before."""

from __future__ import annotations

from typing import Any, Iterable, Iterator, Optional

from .record import Recorder
from .report import Report


class Audit:
    """The result of audit(). Iterate over it as over the loader that audit() got.

    Public attributes that it doesn't have are those of the loader (`audit.sampler.set_epoch(2)`).
    """

    _recorder: Recorder
    _inner: Any

    @property
    def reports(self) -> list[Report]:
        """The reports of the epochs that all ranks have ended so far, in order. Local. Does not wait."""
        return self._recorder.reports

    def report(self) -> Report:
        """Ends the running epoch of this rank. Returns the report of the last epoch, when all ranks have ended it.

        Raises:
          RuntimeError: no epoch has begun on this rank, or the last epoch ended after shutdown(), or this is a forked
            child.
          tf.errors.UnavailableError: a rank departed from the job before the end of that epoch.
          tf.errors.DeadlineExceededError: a rank has not ended it within HOROVOD_DATA_TIMEOUT seconds.
        """
        return self._recorder.report()

    def end_epoch(self) -> None:
        """Ends the running epoch of this rank, if there is one. Does not wait.

        For an iteration that continues over several epochs, as in Keras' fit() with steps_per_epoch.
        """
        self._recorder.end(whole=False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)


def recorded(elements: Iterable[Any], recorder: Recorder) -> Iterator[Any]:
    """The same elements, in an epoch of their own. The epoch begins when the first element is asked for."""
    iteration = recorder.begin()
    try:
        for element in elements:
            recorder.record(iteration, element)
            yield element
    except GeneratorExit:  # a loop that the program leaves closes the generator
        recorder.end(iteration, whole=False)
        raise
    except BaseException as error:
        recorder.end(iteration, error)
        raise
    recorder.end(iteration)


def audited_iterable(given: Any, recorder: Recorder) -> Audit:
    """An audited iterator if `given` has a next(), otherwise an audited iterable.

    It has a length if `given` has one.
    """
    kind = AuditedIterator if hasattr(given, "__next__") else AuditedIterable
    sized: Any = {"__len__": lambda self: len(self._inner)} if hasattr(given, "__len__") else {}
    made: Audit = type(kind.__name__, (kind,), sized)(given, recorder)
    return made


class AuditedIterable(Audit):
    """An iterable that can be iterated over many times."""

    def __init__(self, inner: Any, recorder: Recorder):
        self._inner, self._recorder = inner, recorder

    def __iter__(self) -> Iterator[Any]:
        return recorded(self._inner, self._recorder)


class AuditedIterator(AuditedIterable):
    """An iterator or a generator, which has one epoch. If its `__iter__` begins again, it has many epochs."""

    _loop: Optional[Iterator[Any]] = None  # the running iteration, or the one that has ended

    def __iter__(self) -> AuditedIterator:
        if self._loop is None or _begins_anew(self._inner):
            self._loop = recorded(self._inner, self._recorder)
        return self

    def __next__(self) -> Any:
        if self._loop is None:
            self._loop = recorded(self._inner, self._recorder)
        return next(self._loop)


def _begins_anew(given: Any) -> bool:
    """Says whether `__iter__` may begin again: it is written in Python, and does more than to return self."""
    code = getattr(getattr(type(given), "__iter__", None), "__code__", None)
    returns_self = (lambda self: self).__code__
    return code is not None and code.co_code != returns_self.co_code
