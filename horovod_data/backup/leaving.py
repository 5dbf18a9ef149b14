# SPDX-License-Identifier: Apache-2.0
"""Agrees on the step at which all ranks save, or save and leave the job: by the clock, or after a signal.

No rank waits for this agreement. From time to time all ranks begin an exchange at the same step. They read its result
at the step where the next one begins, so all ranks act at the same step. The number of steps from one exchange to the
next is a decision of rank 0. It follows the time of a step.

This module needs no TensorFlow.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import threading
import time
from types import FrameType
from typing import Any, Callable, NamedTuple, Optional

from ..ending import exit_status, signals
from ..errors import explain, explained, say
from ..job import state
from ..native import bindings

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
# The time from one exchange to the next, unless a step is longer. A signal takes effect within twice this time.
_EXCHANGE_SECONDS = 0.2
_MOST_STEPS = 10_000
_AGAIN_SECONDS = 1.0  # mpirun and a batch system may both send the same signal
_WORDS = struct.Struct("<i?I")  # a signal's number, whether a set is due, the steps to the next exchange


_unheard = 0  # the number of a signal that came in a training, which then ended before the ranks left. 0: none


class Decision(NamedTuple):
    """All ranks do this after a step."""

    saves: bool = False  # by the clock, or because all ranks leave
    leaves: bool = False  # after the set is saved: call leave()


class Leaving:
    """The signals SIGTERM and SIGUSR1 of this process, and the agreement. Every trainer has one. Collective.

    If SIGTERM comes again, at least one second after the first and before the next step, it does what it would do
    without this object. So a process that makes no steps, for example after an error in fit(), can be ended. In a
    forked child the signals do what they would do without this object.

    A signal in the last steps of a training counts for the next training of the program.
    """

    def __init__(self, what: str, seconds: Optional[float] = None) -> None:
        """Local. The handlers are installed, if this is the main thread. The program's own handlers are called, too.

        Args:
          what: names the caller in texts.
          seconds: the time after which the next set is due, by the clock of rank 0. None: never.
        """
        global _unheard
        self._what, self._seconds = what, seconds
        self._job = state.current(what)
        self._rank, self._ranks = self._job.trainer, len(self._job.layout.trainers)
        self._process = os.getpid()
        self._came, _unheard = _unheard, 0  # the number of the signal
        self._term_at, self._term_time = -1, 0.0  # the step at which SIGTERM came, and when
        self._why = ""  # why all ranks leave
        self._theirs: dict[int, Any] = {}  # the program's handlers
        self._steps = 0
        self._at = 1  # the step of the next exchange
        self._exchange: Optional[bindings.Allgather] = None
        self._began, self._began_at = time.monotonic(), 0  # the last exchange; its step
        self._last_set = time.monotonic()
        self._saved = False  # since the last exchange has begun
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._theirs[number] = signal.signal(number, self._handle)

    def close(self) -> None:
        """Restores the program's handlers. Local. May be repeated."""
        global _unheard
        _unheard, self._came = self._came or _unheard, 0
        for number, handler in self._theirs.items():
            if signal.getsignal(number) == self._handle:  # otherwise the program has set another handler meanwhile
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._theirs = {}

    def stop(self) -> None:
        """From now on there are no exchanges, and signals act as without this object. Local."""
        self._at = sys.maxsize
        self.close()

    def saved(self) -> None:
        """Call it when a set was saved, for any reason. The clock starts again."""
        self._last_set, self._saved = time.monotonic(), True

    def after_step(self) -> Decision:
        """Call it after every step, on every rank.

        Raises:
          TimeoutError: another rank has made no exchange for HOROVOD_DATA_TIMEOUT seconds.
        """
        self._steps += 1
        if self._steps < self._at:
            return Decision()
        mine = self._mine()
        if self._ranks == 1:
            said = [mine]
        else:
            pending, self._exchange = self._exchange, None
            try:
                said = [] if pending is None else pending.wait()
            except RuntimeError:  # a rank has departed: the training ends, perhaps with an error
                self.stop()
                return Decision()
        decision = self._decided([_WORDS.unpack(one) for one in said])
        if self._ranks > 1:
            try:
                self._exchange = bindings.Allgather(f"hvdata.leaving.{self._what}", mine)
            except RuntimeError:  # the other ranks may act on this decision, so this rank does, too
                self.stop()
        return decision

    def leave(self, step: str, saved: bool) -> None:
        """Ends this process with HOROVOD_DATA_LEAVE_STATUS, after all ranks have saved.

        Raises:
          SystemExit: always.
        """
        status = self._job.settings.leave_status
        if self._rank == 0:
            kept = "have saved a set" if saved else "could not save a set"
            before = "" if saved else "The set before counts"
            what = f"{self._what}: {self._why}. All ranks {kept} after {step} and leave with status {status}"
            say(explain(what, before))
        self._came = 0
        for number in self._theirs:  # a repeated signal must not kill this rank in its exit
            signal.signal(number, signal.SIG_IGN)
        exit_status.end_together(status)
        raise SystemExit(status)

    # ---- Exchanges.

    def _mine(self) -> bytes:
        now = time.monotonic()
        a_step = (now - self._began) / max(1, self._steps - self._began_at)
        self._began, self._began_at = now, self._steps
        due = self._rank == 0 and self._seconds is not None and now - self._last_set >= self._seconds
        apart = int(min(_MOST_STEPS, max(1.0, _EXCHANGE_SECONDS / max(a_step, 1e-9))))
        return _WORDS.pack(self._came, due, apart)

    def _decided(self, said: list[Any]) -> Decision:
        saved, self._saved = self._saved, False
        if not said:  # the first exchange has begun
            self._at = self._steps + 1
            return Decision()
        self._at = self._steps + (said[0][2] if self._ranks > 1 else 1)
        came = [(rank, number) for rank, (number, _, _) in enumerate(said) if number]
        if came:
            rank, number = came[0]
            on = "all ranks" if len(came) == self._ranks > 1 else self._job.name(self._job.layout.trainers[rank])
            self._why = f"{signal.Signals(number).name} came on {on}"
            return Decision(True, True)
        return Decision(bool(said[0][1]) and not saved)

    def _handle(self, number: int, frame: Optional[FrameType]) -> None:
        handler: Optional[Callable[..., Any]] = self._theirs.get(number)
        if os.getpid() != self._process:
            if not callable(handler) and handler is not signal.SIG_IGN:
                signals.act_by_default(number)
        else:
            self._came = self._came or number
        if callable(handler):
            handler(number, frame)
        elif number == signal.SIGTERM and os.getpid() == self._process:
            now = time.monotonic()
            if self._term_at != self._steps:
                self._term_at, self._term_time = self._steps, now
            elif now - self._term_time >= _AGAIN_SECONDS:
                self.close()
                os.kill(os.getpid(), number)


def checked_seconds(seconds: Any) -> Optional[float]:
    """The argument `seconds`. Raises TypeError or ValueError."""
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise explained(TypeError, f"seconds must be a number, not {seconds!r}")
    if not seconds > 0:
        raise explained(ValueError, f"seconds must be above 0, not {seconds!r}")
    return float(seconds)
