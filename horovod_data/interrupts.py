# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in a call that ranks make together: it ends a rank's own work at once, but lets what it owes the others be done first.
So do other signals by which a program is told to end, or that its time is over, where their handlers are Python's: those may raise, too."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, Optional, Type

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)


class Held:
    """A context in which signals wait for their handlers, but from open() to close(): there each comes at once, and when a handler
    has raised they are held again. One that comes while they wait is handled by the next open(), or behind the context. The second of
    its kind doesn't wait: whoever sends it has seen that the first was not enough.

    Does nothing outside of the main thread, to which alone Python brings signals, and for signals that have no handler of Python's.

    Attributes:
      raised: what a handler has raised last, while this context lasts.
    """

    def __init__(self) -> None:
        self.raised: Optional[BaseException] = None
        self._theirs: dict[int, Any] = {}
        self._open = False
        self._waiting: list[int] = []
        self._over = False
        self._process = os.getpid()

    def __enter__(self) -> Held:
        if threading.current_thread() is threading.main_thread():
            try:
                for number in _SIGNALS:
                    if callable(handler := signal.getsignal(number)):
                        self._theirs[number] = handler  # first: it may come at once
                        signal.signal(number, self._came)
            except BaseException:  # of the handler of one that is not held yet
                self._end()
                raise
        return self

    def open(self) -> None:
        self._open = True
        self._deliver_what_waits()

    def close(self) -> None:
        self._open = False

    def let_come(self) -> None:
        """Handles what waits."""
        self.open()
        self.close()

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self._end()
        # None is lost. What they raise stands before an error, which is its context; but a program that ends goes on with that.
        ends = isinstance(error, (SystemExit, GeneratorExit))
        with contextlib.suppress(BaseException) if ends else contextlib.nullcontext():
            self._deliver_all()

    def _end(self) -> None:
        self.raised = None  # or it would keep itself, and the program's frames, by ours
        self._over = True  # first: where what follows is interrupted, or the program has kept our handler, that calls theirs
        for number, handler in self._theirs.items():
            if signal.getsignal(number) == self._came:  # the program's may have set another meanwhile
                signal.signal(number, handler)

    def _deliver_what_waits(self) -> None:
        while self._waiting:
            self._deliver(self._waiting[0], sys._getframe())

    def _deliver_all(self) -> None:
        """What waits, each, whatever the one before it raises."""
        if self._waiting:
            try:
                self._deliver(self._waiting[0], sys._getframe())
            finally:
                self._deliver_all()

    def _came(self, number: int, frame: Optional[FrameType]) -> None:
        if self._over or os.getpid() != self._process:
            self._theirs[number](number, frame)
        elif self._open or number in self._waiting:
            self._deliver(number, frame)
        else:
            self._waiting.append(number)

    def _deliver(self, number: int, frame: Optional[FrameType]) -> None:
        before, self._open = self._open, False
        if number in self._waiting:
            self._waiting.remove(number)
        try:
            self._theirs[number](number, frame)
        except BaseException as error:
            self.raised = error
            raise
        self._open = before  # it has only noted it
        if before:
            self._deliver_what_waits()  # what came meanwhile
