# SPDX-License-Identifier: Apache-2.0
"""What this rank has seen, epoch by epoch. An epoch that is over goes to a thread, which makes its report with the other
ranks: the program never waits for it, unless it asks for the report."""

from __future__ import annotations

import itertools
import math
import queue
import random
import threading
import time
import weakref
from typing import Any, Callable, Optional, Union, cast

import numpy as np

from ..ending.processes import fork_check
from ..errors import explain, forked, say, start_thread, text_of, without_place
from .keys import Key, Keys, keys_of
from .report import Report

_MOST_NAMES = 16 << 20  # bytes of keys that are text, kept so that examples have names
_MOMENT_SECONDS = 1.0
_MOST_ERROR = 200  # letters of an error, in the report

_live: dict[Recorder, None] = {}  # whose threads run, the oldest first
_RELEASED = object()

Array = Any


def finish_all(takes_long: Callable[[], object]) -> None:
    """At the end of this rank's part in the job: the last epochs get their reports, if the other ranks are still there.

    Args:
      takes_long: called, once, when the others have not ended these epochs within a moment.
    """
    recorders = list(_live)
    for recorder in recorders:  # before any wait: others may wait for any of them
        recorder.close_for_good()
    moment = time.monotonic() + _MOMENT_SECONDS
    for recorder in recorders:
        while not recorder.joined(0.1):
            if time.monotonic() > moment:
                takes_long()
                moment = math.inf


class Epoch:
    """16 bytes for each row of this rank, 8 for each step, and the names of the first rows."""

    def __init__(self, number: int):
        self.number = number
        self.error: Optional[str] = None  # that ended it
        self.whole = False  # it ended where the loader did
        self.partial = True  # wherever it ends, it is an epoch
        self._words = bytearray()
        self._ends: list[int] = []  # rows up to and with each step
        self._names: dict[int, bytes] = {}
        self._named = 0

    def add(self, keys: Keys) -> None:
        """One step."""
        begin = self.rows
        self._words += np.ascontiguousarray(keys.words).tobytes()
        self._ends.append(begin + len(keys.words))
        if keys.names is not None and self._named < _MOST_NAMES:
            self._names.update(enumerate(keys.names, begin))
            self._named += sum(map(len, keys.names)) + 64 * len(keys.names)

    @property
    def steps(self) -> int:
        return len(self._ends)

    @property
    def rows(self) -> int:
        return self._ends[-1] if self._ends else 0

    def words(self) -> Array:
        """uint64 [rows, 2]."""
        return np.frombuffer(self._words, np.uint64).reshape(-1, 2)

    def place(self, index: int) -> tuple[int, int]:
        """The step, from 1, and the row in it, from 0, of the index-th row."""
        step = int(np.searchsorted(self._ends, index, side="right"))
        return step + 1, index - (self._ends[step - 1] if step else 0)

    def name(self, index: int) -> Optional[bytes]:
        return self._names.get(index)


class Recorder:
    """The epochs of one audit on this rank. May be used from any thread.

    An epoch begins with an iteration, and ends with it, by an error too; or when the next one begins; or by close(). What an
    iteration yields after a close() belongs to the next epoch.
    """

    def __init__(self, name: str, key: Key, settle: Callable[[Epoch], Report], announce: bool, partial: bool = True):
        """`settle`: makes the report of an epoch, collectively. `announce`: print it. `partial`: what is under way when the
        program ends is an epoch too, even if it is no iteration that has a number."""
        self.name, self._key, self._settle, self._announce, self._partial = name, key, settle, announce, partial
        self._lock = (
            threading.RLock()
        )  # a generator that is garbage ends its epoch wherever the collector runs, under this lock too
        self._epoch: Optional[Epoch] = None
        self._begun = 0
        self._iteration = 0
        self._numbers = itertools.count(
            random.getrandbits(61)
        )  # a restored iterator brings a number of another process
        self._older: set[int] = set()
        self._closed: "queue.SimpleQueue[Any]" = queue.SimpleQueue()  # epochs; _RELEASED; None is the end
        self._done = threading.Condition(self._lock)
        self._settled = 0
        self.reports: list[Report] = []
        self._failure: Optional[BaseException] = None
        self._forgiving = False
        self._forked = fork_check()
        self._thread = threading.Thread(target=self._run, name=f"horovod_data {name}", daemon=True)
        start_thread(self._thread)  # now: at the program's end Python starts no thread any more
        _live[self] = None

    def forgive(self) -> None:
        """From here on an element of which no keys can be made passes; its epoch has that error, and no more rows."""
        self._forgiving = True

    def begin(self) -> int:
        """A new iteration, whose number it returns."""
        with self._lock:
            if self._epoch is not None and not self._epoch.partial:  # nobody has come to it
                self._epoch = None
                self._begun -= 1
            self._close()
            if self._iteration >= 0:
                self._older.add(self._iteration)
            self._iteration = next(self._numbers)
            self._open()
            return self._iteration

    def record(self, iteration: int, element: Any, of: str = "element") -> None:
        """One step of an iteration. `of`: "element"; or "key": it is what the user's key is made of.

        Raises:
          RuntimeError: a newer iteration of the same audit has begun.
          TypeError, and what the key function raises: no keys can be made of the element.
        """
        self.add(iteration, self.made(iteration, element, of))

    def made(self, iteration: int, element: Any, of: str = "element") -> Union[Keys, Exception]:
        """The keys of the next step; an error ends the epoch, and is raised as in record(), or returned if it is forgiven."""
        with self._lock:
            step = self._epoch.steps + 1 if self._epoch is not None else 1
            epoch = self._epoch.number if self._epoch is not None else self._begun + 1
        try:
            return self.keys(element, f"epoch {epoch}, step {step}", of)
        except Exception as error:
            if self._forgiving:
                return error
            if self._partial or iteration >= 0:
                with self._lock:
                    if iteration not in self._older:
                        self._iteration = iteration
                        self._open()
                        self._close(error)
            raise

    def keys(self, element: Any, which: str, of: str = "element") -> Keys:
        """The keys of an element; raises as record(). `which` it is: for errors."""
        try:
            return keys_of(element, self._key if of == "element" else lambda value: value)
        except Exception as error:
            error.args = (
                explain(
                    f"{self.name}, {which}: the keys of the rows can't be made: "
                    f"{type(error).__name__}: {without_place(str(error))}",
                    f"key={self._key!r} must fit every element" if self._key is not None else "",
                ),
            )
            raise

    def add(self, iteration: int, keys: Union[Keys, Exception]) -> None:
        """One step, whose keys these are, or why there are none."""
        with self._lock:
            if iteration in self._older:
                raise RuntimeError(
                    explain(
                        f"{self.name}: two iterations go on at the same time, and the older one was asked for an element",
                        "An audit is of one iteration at a time: call audit() for each",
                    )
                )
            self._iteration = iteration
            epoch = self._open()
            if isinstance(keys, Exception):
                epoch.error = epoch.error or _named(keys)
            elif epoch.error is None:
                epoch.add(keys)

    def end(self, iteration: int, error: Optional[BaseException] = None, left: bool = False) -> None:
        """The iteration is over: the loader has come to its end, or raised an error, or the loop was left."""
        with self._lock:
            if iteration == self._iteration:
                self._close(error, whole=error is None and not left)

    def close(self, whole: bool = False) -> None:
        """Ends the epoch that is under way, if one is. `whole`: the loader has come to its end."""
        with self._lock:
            self._close(whole=whole)

    def say(self, text: str) -> None:
        """On rank 0 alone."""
        if self._announce:
            say(explain(text))

    @property
    def steps(self) -> int:
        """Of the epoch under way."""
        with self._lock:
            return self._epoch.steps if self._epoch is not None else 0

    def report(self) -> Report:
        """close(), and the report of the last epoch that this rank has ended: waits for all ranks to end it.

        Raises:
          RuntimeError: there is none and none will come: before the first epoch, of one that shutdown() has not made, or in a
            forked child.
        """
        if self._forked():  # before the lock, which the thread may have held when this process forked
            raise RuntimeError(forked(f"{self.name}: report()"))
        with self._done:
            self._close_if_partial()
            last = self._begun - (self._epoch is not None)
            if not last:
                raise RuntimeError(
                    explain(
                        f"{self.name}: report() was called before the first epoch",
                        "Iterate first: a rank without rows does it as well",
                    )
                )
            while self._settled < last and self._failure is None:
                if not self._thread.is_alive():
                    raise RuntimeError(
                        explain(
                            f"{self.name}: report() was called after horovod_data.shutdown(), for epoch {last}, which ended after it",
                            "Iterate and call it before; the epochs that ended before it are in `reports`",
                        )
                    )
                self._done.wait(0.1)  # in slices, for Ctrl-C
            if self._settled < last:
                assert self._failure is not None
                raise self._failure
            return self.reports[last - 1]

    def close_for_good(self) -> None:
        """Records no more: the last epochs get their reports, and then the thread ends."""
        with self._lock:
            self._close_if_partial()
        self._closed.put(None)

    def finish(self) -> None:
        """The same, and waits for that."""
        self.close_for_good()
        while not self.joined(0.1):
            pass

    def joined(self, seconds: float) -> bool:
        """Whether the thread has ended; waits for so long at most."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def held(self) -> Recorder:
        """This recorder, for all that record: when none of them holds it any more, release() is called."""
        return cast(Recorder, _Held(self))

    def release(self) -> None:
        """Nothing records any more: the epoch under way ends, and the thread behind its report. Called by whoever collects garbage,
        who may hold any lock: takes none."""
        if not self._forked():
            self._closed.put(_RELEASED)

    def _open(self) -> Epoch:
        epoch = self._epoch
        if epoch is None:
            self._begun += 1
            self._epoch = epoch = Epoch(self._begun)
            epoch.partial = self._partial or self._iteration >= 0
        return epoch

    def _close_if_partial(self) -> None:
        if self._epoch is not None and self._epoch.partial:
            self._close()

    def _close(self, error: Optional[BaseException] = None, whole: bool = False) -> None:
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            epoch.whole = whole
            epoch.error = _named(error) if error is not None else epoch.error
            self._closed.put(epoch)

    def _run(self) -> None:
        try:
            self._settle_all()
        finally:
            _live.pop(self, None)

    def _settle_all(self) -> None:
        while (epoch := self._closed.get()) is not None:
            if epoch is _RELEASED:
                with self._lock:
                    self._close_if_partial()
                self._closed.put(None)
                continue
            try:
                if self._failure is not None:
                    continue  # the ranks' calls don't go together any more
                report = self._settle(epoch)
            except BaseException as error:
                say(
                    explain(
                        f"{self.name}, epoch {epoch.number}: there is no report, and none of later epochs: "
                        f"{without_place(text_of(error))}"
                    )
                )
                with self._done:
                    self._failure = error
                    self._done.notify_all()
                continue
            if self._announce:
                say(str(report))
            with self._done:
                self.reports.append(report)
                self._settled += 1
                self._done.notify_all()


class _Held:
    """What the recorder is to its users. The recorder itself is its thread's as well, and would never be garbage."""

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        weakref.finalize(self, recorder.release).atexit = False  # at exit there is finish()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # while it is being copied
            raise AttributeError(name)
        return getattr(self._recorder, name)


def _named(error: BaseException) -> str:
    """An error in one line."""
    try:
        text = without_place(" ".join(str(error.args[0] if len(error.args) == 1 else error).split()))
    except Exception:  # of the error's own
        text = ""
    text = text if len(text) <= _MOST_ERROR else text[:_MOST_ERROR] + "..."
    return type(error).__name__ + (f": {text}" if text else "")
