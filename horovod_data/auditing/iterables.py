# SPDX-License-Identifier: Apache-2.0
"""Python's iterables with a look at what passes. What comes out is the object that went in."""

from __future__ import annotations

import collections
from typing import Any, Iterable, Iterator, Optional, Union

from .keys import Keys
from .record import Recorder
from .report import Report


class Audit:
    """What audit() returns: iterate over it as over what it was given. Attributes that it doesn't have are those of what it
    was given (`audit.sampler.set_epoch(2)`)."""

    _recorder: Recorder
    _inner: Any
    _forwards_private = False  # TensorFlow and Keras have private attributes of their own

    @property
    def reports(self) -> list[Report]:
        """Of the epochs that all ranks have ended so far, in their order. Local, doesn't wait."""
        return self._recorder.reports

    def report(self) -> Report:
        """Ends the epoch that is under way on this rank, if one is, and returns the report of the last one that has ended
        here.

        Waits until all ranks have ended that epoch: by coming to its end, by leaving it, or by this call.

        Raises:
          RuntimeError: no epoch has begun on this rank; the last one ended after shutdown(); or in a forked child.
          tf.errors.UnavailableError: a rank has left the job before the end of that epoch.
          tf.errors.DeadlineExceededError: a rank has not ended it within HOROVOD_DATA_TIMEOUT seconds.
        """
        return self._recorder.report()

    def end_epoch(self) -> None:
        """Ends the epoch that is under way on this rank, if one is. Doesn't wait: rank 0 prints the report when all ranks
        have ended theirs. For iterations that go on over several epochs, as Keras' with steps_per_epoch."""
        self._recorder.close()

    def __getattr__(self, name: str) -> Any:
        private = name.startswith("__" if self._forwards_private else "_")
        if private or name in ("_inner", "_recorder"):  # while it is made or copied
            raise AttributeError(name)
        return getattr(self._inner, name)


def recorded(elements: Iterable[Any], recorder: Recorder) -> Iterator[Any]:
    """The same elements, in an epoch of their own. It begins when the first is asked for."""
    iteration = recorder.begin()
    try:
        for element in elements:
            recorder.record(iteration, element)
            yield element
    except GeneratorExit:  # a loop that is left closes the generator
        recorder.end(iteration, left=True)
        raise
    except BaseException as error:
        recorder.end(iteration, error)
        raise
    recorder.end(iteration)


def audited_iterable(given: Any, recorder: Recorder) -> Audit:
    """An iterator of what has a next(), an iterable of anything else. It has a length if what is given has one."""
    kind = AuditedIterator if hasattr(given, "__next__") else AuditedIterable
    sized: Any = {"__len__": lambda self: len(self._inner)} if hasattr(given, "__len__") else {}
    made: Audit = type(kind.__name__, (kind,), sized)(given, recorder)
    return made


class AuditedIterable(Audit):
    """Can be iterated over again and again."""

    _forwards_private = True

    def __init__(self, inner: Any, recorder: Recorder):
        self._inner, self._recorder = inner, recorder

    def __iter__(self) -> Iterator[Any]:
        return recorded(self._inner, self._recorder)


class AuditedIterator(Audit):
    """An iterator or a generator can be iterated over once. A loader whose `__iter__` begins anew and returns itself has an
    epoch in each iteration."""

    _forwards_private = True

    def __init__(self, inner: Any, recorder: Recorder):
        self._inner, self._recorder = inner, recorder
        self._source = inner  # of the elements, because the loader's `__iter__` may return something else
        self._anew = _begins_anew(inner)
        self._iteration = -1
        self._ended, self._again, self._said = False, False, False  # has come to its end; is iterated over again since

    def __iter__(self) -> AuditedIterator:
        try:
            self._source = iter(self._inner)
        except BaseException as error:
            self._recorder.end(self._recorder.begin(), error)
            raise
        self._again = self._ended and not self._anew
        if self._anew:
            self._iteration = -1  # the next element begins an epoch
        return self

    def __next__(self) -> Any:
        if self._iteration < 0:
            self._iteration = self._recorder.begin()
        try:
            element = next(self._source)
        except StopIteration:
            self._recorder.end(self._iteration)
            if self._again and not self._said:
                self._said = True
                self._recorder.say(
                    f"{self._recorder.name}: its iterator has come to its end and is iterated over again: it yields "
                    "nothing more, and that is no epoch. Call audit() of a new one, or of what makes one each time"
                )
            self._ended = True
            raise
        except BaseException as error:
            self._recorder.end(self._iteration, error)
            raise
        self._again = False
        self._recorder.record(self._iteration, element)
        return element


def _begins_anew(given: Any) -> bool:
    """Whether an iteration may begin at the first element again: `__iter__` is written in Python, and does more than to return
    self. Those of generators, and of other types that are not written in Python, do no more."""
    code = getattr(getattr(type(given), "__iter__", None), "__code__", None)
    return code is not None and code.co_code != _returns_itself.__code__.co_code


def _returns_itself(self: Any) -> Any:
    return self


class ReadAhead:
    """An iterator from which Keras takes elements ahead, in a thread. An element counts when Keras has trained with it. Keras
    trains with the elements in the order in which it takes them."""

    def __init__(self, audited: Audit):
        self._inner, self._recorder = audited._inner, audited._recorder
        self._source = self._inner
        self._taken = 0
        self._waiting: collections.deque[Union[Keys, Exception]] = (
            collections.deque()
        )  # until Keras has trained with them
        self._error: Optional[BaseException] = None

    def __iter__(self) -> ReadAhead:
        self._source = iter(self._inner)
        return self

    def __next__(self) -> Any:
        try:
            element = next(self._source)
        except StopIteration:
            raise
        except BaseException as error:
            self._error = error
            raise
        self._taken += 1
        self._waiting.append(self._recorder.keys(element, which=f"element {self._taken}"))
        return element

    def trained(self) -> None:
        """Keras has trained with one element more."""
        self._recorder.add(-1, self._waiting.popleft())

    def end_epoch(self) -> None:
        self._recorder.close()

    def end(self, failed: bool) -> None:
        """The training is over. `failed`: by an error, which is the iterator's if it has raised one."""
        self._recorder.end(-1, self._error if failed else None, left=True)
