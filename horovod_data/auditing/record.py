# SPDX-License-Identifier: Apache-2.0
"""Records what this rank has seen, epoch by epoch. A thread makes the reports, so the program does not wait."""

from __future__ import annotations

import itertools
import queue
import random
import threading
import time
from concurrent.futures import Future
from typing import Any, Callable, Optional, Sequence, Union

import numpy as np

from ..errors import explain, explain_again, explained, fork_check, forked, message_of, say, start_thread
from .keys import Key, Keys, keys_of
from .report import Report

_MOST_NAMES = 16 << 20  # bytes
_MOMENT_SECONDS = 1.0
_MOST_ERROR = 200  # letters of an error, in the report

_live: list[Recorder] = []  # the recorders whose threads run, the oldest first

Array = Any


def finish_all(takes_long: Callable[[], object]) -> None:
    """Waits for the reports of the last epochs, when this rank departs from the job.

    `takes_long`: called once, if the other ranks have not ended these epochs within a moment.
    """
    live = list(_live)
    for recorder in live:  # before any wait, because other ranks may wait for any of these epochs
        recorder.close_for_good()
    deadline = time.monotonic() + _MOMENT_SECONDS
    for recorder in live:
        recorder.thread.join(max(0.0, deadline - time.monotonic()))
    if any(recorder.thread.is_alive() for recorder in live):
        takes_long()
    for recorder in live:
        recorder.thread.join()


class Names:
    """Keys that are text, by the place of their row. The examples in reports show them. They take at most 16 MiB."""

    def __init__(self) -> None:
        self._names: dict[int, bytes] = {}
        self._bytes = 0

    def add(self, names: Optional[Sequence[Optional[bytes]]], first: int) -> None:
        if names is not None and self._bytes < _MOST_NAMES:
            some = {place: name for place, name in enumerate(names, first) if name is not None}
            self._names.update(some)
            self._bytes += sum(map(len, some.values())) + 64 * len(some)

    def get(self, place: int) -> Optional[str]:
        name = self._names.get(place)
        return name.decode(errors="replace") if name is not None else None


class Epoch:
    """One epoch: 16 bytes for each row of this rank, 8 for each step, and the names of the first rows."""

    def __init__(self, number: int):
        self.number = number
        self.begun = False
        self.error: Optional[str] = None  # the error that ended it
        self.whole = False  # it ended where the loader ended
        self.names = Names()
        self._words = bytearray()
        self._ends: list[int] = []  # for each step, the number of rows up to and with it

    def add(self, keys: Keys) -> None:
        self.names.add(keys.names, self.rows)
        self._ends.append(self.rows + len(keys.words))
        self._words += np.ascontiguousarray(keys.words).tobytes()

    @property
    def steps(self) -> int:
        return len(self._ends)

    @property
    def rows(self) -> int:
        return self._ends[-1] if self._ends else 0

    def words(self) -> Array:
        """uint64 [rows, 2]: the keys."""
        return np.frombuffer(self._words, np.uint64).reshape(-1, 2)

    def place(self, index: int) -> tuple[int, int]:
        """For the row at `index`: its step, from 1, and its place in the step, from 0."""
        step = int(np.searchsorted(self._ends, index, side="right"))
        return step + 1, index - (self._ends[step - 1] if step else 0)


class Recorder:
    """The epochs of one audit on this rank, and the thread that makes their reports. Any thread may use it.

    An epoch begins with an iteration. It ends with end(), with an error, or when the next iteration begins. Elements
    that an iteration yields after end() belong to the next epoch.
    """

    def __init__(self, name: str, key: Key, settle: Callable[[Epoch], Report], announce: bool = False):
        """`settle`: makes the report of an epoch, collectively. `announce`: print it."""
        self.name, self._key, self._settle, self._announce = name, key, settle, announce
        self.forgiving = False  # True: an element whose keys can't be made is passed on. Its epoch keeps the error
        # Reentrant, because the garbage collector may end a generator's epoch while this thread holds the lock.
        self._lock = threading.RLock()
        self._epoch = Epoch(1)
        self._iteration = 0
        # Random, because a restored iterator has a number that another process gave.
        self._numbers = itertools.count(random.getrandbits(61))
        self._older: set[int] = set()
        self._forked = fork_check()
        self._made: list[Future[Report]] = []  # of each epoch that has ended
        self._over = False  # after close_for_good()
        self._ended: "queue.SimpleQueue[Optional[tuple[Epoch, Future[Report]]]]" = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._make_reports, name=f"horovod_data {name}", daemon=True)
        start_thread(self.thread)  # now, because Python starts no thread at the program's end
        _live.append(self)

    # ---- The epochs.

    def begin(self) -> int:
        """Begins an iteration, and returns its number."""
        with self._lock:
            self._close()
            self._older.add(self._iteration)
            self._iteration = next(self._numbers)
            self._epoch.begun = True
            return self._iteration

    def record(self, iteration: int, element: Any, of: str = "element") -> None:
        """Adds one step of an iteration, with the keys of its element.

        `of`: "element", or "key" if `element` is the value of the user's key.

        Raises:
          RuntimeError: a newer iteration of the same audit has begun.
          Exception: the keys can't be made, and errors are not forgiven. The error ends the epoch.
        """
        self._add(iteration, self._keys(element, of))

    def _keys(self, element: Any, of: str) -> Union[Keys, Exception]:
        """The keys of an element, or the error that says why it has none."""
        try:
            return keys_of(element, self._key if of == "element" else lambda value: value)
        except Exception as error:
            with self._lock:
                which = f"epoch {self._epoch.number}, step {self._epoch.steps + 1}"
            why = f"the keys of the rows can't be made: {type(error).__name__}: {message_of(error)}"
            to_do = f"key={self._key!r} must fit every element" if self._key is not None else ""
            explain_again(error, f"{self.name}, {which}: {why}", to_do)
            return error

    def _add(self, iteration: int, keys: Union[Keys, Exception]) -> None:
        with self._lock:
            if iteration in self._older:
                what = "two iterations go on at the same time, and the older one was asked for an element"
                to_do = "An audit covers one iteration at a time: call audit() for each"
                raise explained(RuntimeError, f"{self.name}: {what}", to_do)
            self._iteration = iteration
            self._epoch.begun = True
            if isinstance(keys, Keys):
                if self._epoch.error is None:
                    self._epoch.add(keys)
            elif self.forgiving:
                self._epoch.error = self._epoch.error or _named(keys)
            else:
                self._close(keys)
                raise keys

    def end(self, iteration: Optional[int] = None, error: Optional[BaseException] = None, whole: bool = True) -> None:
        """Ends the running epoch, if it belongs to this iteration (None: to any). `whole`: the loader has ended."""
        with self._lock:
            if iteration in (None, self._iteration):
                self._close(error, whole=error is None and whole)

    def close_for_good(self) -> None:
        """Ends the running epoch. Later epochs get no report."""
        with self._lock:
            self._close()
            self._over = True
            self._ended.put(None)

    @property
    def steps(self) -> int:
        """The number of steps of the running epoch."""
        with self._lock:
            return self._epoch.steps

    def _close(self, error: Optional[BaseException] = None, whole: bool = False) -> None:
        epoch = self._epoch
        if not epoch.begun:
            return
        epoch.begun = False  # first, because the garbage collector may call this again while it makes the next Epoch
        self._epoch = Epoch(epoch.number + 1)
        epoch.whole = whole
        epoch.error = _named(error) if error is not None else epoch.error
        report: Future[Report] = Future()
        self._made.append(report)
        if self._over:
            what = f"report() was called after horovod_data.shutdown(), for epoch {epoch.number}, which ended after it"
            to_do = "Iterate and call report() before shutdown(); `reports` has the epochs that ended before it"
            report.set_exception(explained(RuntimeError, f"{self.name}: {what}", to_do))
        else:
            self._ended.put((epoch, report))

    # ---- The reports.

    @property
    def reports(self) -> list[Report]:
        return [one.result() for one in list(self._made) if one.done() and one.exception() is None]

    def report(self) -> Report:
        if self._forked():  # before the lock, because a thread may have held the lock when this process forked
            raise RuntimeError(forked(f"{self.name}: report()"))
        with self._lock:
            self._close()
            if not self._made:
                to_do = "Iterate first, also on a rank without rows"
                raise explained(RuntimeError, f"{self.name}: report() was called before the first epoch", to_do)
        return self._made[-1].result()

    def _make_reports(self) -> None:
        failure: Optional[BaseException] = None  # after a failure, the ranks' calls no longer match
        while (taken := self._ended.get()) is not None:
            epoch, report = taken
            try:
                if failure is not None:
                    raise failure
                made = self._settle(epoch)
                if self._announce:
                    say(str(made))
                report.set_result(made)
            except BaseException as error:
                if failure is None:
                    why = f"there is no report of this and of later epochs: {message_of(error)}"
                    say(explain(f"{self.name}, epoch {epoch.number}: {why}"))
                failure = error
                report.set_exception(error)
            del taken, epoch  # otherwise the epoch's keys would stay in memory until the next epoch
        _live.remove(self)


def _named(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(message_of(error).split())
    text = text if len(text) <= _MOST_ERROR else text[:_MOST_ERROR] + "..."
    return type(error).__name__ + (f": {text}" if text else "")
