# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in a call that ranks make together: it ends a rank's own work at once, but lets what it owes the others be done first."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Optional, Type


class Held:
    """A context in which Ctrl-C waits, but from open() to close(): there it raises, once, and is held again from then on. One
    that comes while it waits is raised by the next open(), or behind the context. A second one doesn't wait: whoever sends it has
    seen that the first was not enough.

    Does nothing outside of the main thread, to which alone Python brings signals, and where SIGINT has no handler of Python's.
    """

    def __init__(self) -> None:
        self._theirs: Any = None
        self._open = False
        self._waits = False

    def __enter__(self) -> Held:
        if threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT)):
            self._theirs = signal.signal(signal.SIGINT, self._came)
        return self

    def open(self) -> None:
        self._open = True
        self._raise_what_waits()

    def close(self) -> None:
        self._open = False

    def let_come(self) -> None:
        """Raises what waits."""
        self.open()
        self.close()

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        if self._theirs is None:
            return
        if signal.getsignal(signal.SIGINT) == self._came:  # the program's may have set another meanwhile
            signal.signal(signal.SIGINT, self._theirs)
        if error is None:
            self._raise_what_waits()

    def _raise_what_waits(self) -> None:
        if self._waits:
            self._deliver(None)

    def _came(self, number: int, frame: Optional[FrameType]) -> None:
        if self._open or self._waits:
            self._deliver(frame)
        else:
            self._waits = True

    def _deliver(self, frame: Optional[FrameType]) -> None:
        before, self._open, self._waits = self._open, False, False
        self._theirs(signal.SIGINT, frame)
        self._open = before  # it has only noted it
