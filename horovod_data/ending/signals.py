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

_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGALRM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGXCPU,
)


class Held:
    """A context in which signals wait for their handlers, but from open() to close(), where the program's own code runs: there they
    come as ever. One that comes while they wait is handled, once, by the next open(), or behind the context.

    Does nothing outside of the main thread, to which alone Python brings signals, and for signals that have no handler of Python's.
    """

    def __init__(self) -> None:
        self._theirs: dict[int, Any] = {}
        self._open = False
        self._waiting: list[int] = []
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
        self._handle_what_waits()

    def close(self) -> None:
        self._open = False

    def let_come(self) -> None:
        """Handles what waits."""
        try:
            self.open()
        finally:
            self.close()

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        # What a handler raises stands before an error, which is its context; but a program that ends goes on with that.
        ends = isinstance(error, (SystemExit, GeneratorExit))
        with contextlib.suppress(BaseException) if ends else contextlib.nullcontext():
            self._end()

    def _end(self) -> None:
        """The program has its handlers back. Each that waits is called, whatever the one before it raises."""
        self._open = True  # first, and for good: where this is interrupted, or the program has kept our handler, that calls theirs
        try:
            for number, handler in self._theirs.items():
                if signal.getsignal(number) == self._came:  # the program's may have set another meanwhile
                    signal.signal(number, handler)
        finally:
            self._handle_all()

    def _handle_what_waits(self) -> None:
        while self._waiting:
            number = self._waiting.pop(0)  # first: others may come while it is handled, and this one again
            self._theirs[number](number, sys._getframe())

    def _handle_all(self) -> None:
        try:
            self._handle_what_waits()
        finally:
            if self._waiting:
                self._handle_all()

    def _came(self, number: int, frame: Optional[FrameType]) -> None:
        if self._open or os.getpid() != self._process:
            self._theirs[number](number, frame)
        elif number not in self._waiting:
            self._waiting.append(number)
