# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in a call that ranks make together: it ends a rank's own work at once, but lets what it owes the others be done first.
So do all other signals for which the program has a handler of Python's, which may raise as well (SIGALRM of a time limit, SIGTERM of a
scheduler)."""

from __future__ import annotations

import contextlib
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Optional, Type


class Held:
    """A context in which signals wait for their handlers, but from open() to close(): there each comes at once, and when a handler
    has raised they are held again. One that comes while they wait is handled by the next open(), or behind the context. The second of
    its kind doesn't wait: whoever sends it has seen that the first was not enough.

    Does nothing outside of the main thread, to which alone Python brings signals, and for signals that have no handler of Python's.
    """

    def __init__(self) -> None:
        self._theirs: dict[int, Any] = {}
        self._open = False
        self._waiting: list[int] = []

    def __enter__(self) -> Held:
        if threading.current_thread() is threading.main_thread():
            for number in signal.valid_signals():
                if callable(handler := signal.getsignal(number)):
                    self._theirs[number] = handler  # first: it may come at once
                    signal.signal(number, self._came)
        return self

    def open(self) -> None:
        self._open = True
        while self._waiting:
            self._deliver(self._waiting[0], None)

    def close(self) -> None:
        self._open = False

    def let_come(self) -> None:
        """Handles what waits."""
        self.open()
        self.close()

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        for number, handler in self._theirs.items():
            if signal.getsignal(number) == self._came:  # the program's may have set another meanwhile
                signal.signal(number, handler)
        # None is lost. What they raise stands before an error, which is its context; but a program that ends goes on with that.
        ends = error is not None and not isinstance(error, Exception)
        with contextlib.suppress(BaseException) if ends else contextlib.nullcontext():
            self._deliver_all()

    def _deliver_all(self) -> None:
        """What waits, each, whatever the one before it raises."""
        if self._waiting:
            try:
                self._deliver(self._waiting[0], None)
            finally:
                self._deliver_all()

    def _came(self, number: int, frame: Optional[FrameType]) -> None:
        if self._open or number in self._waiting:
            self._deliver(number, frame)
        else:
            self._waiting.append(number)

    def _deliver(self, number: int, frame: Optional[FrameType]) -> None:
        before, self._open = self._open, False
        if number in self._waiting:
            self._waiting.remove(number)
        self._theirs[number](number, frame)
        self._open = before  # it has only noted it
