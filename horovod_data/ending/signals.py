# SPDX-License-Identifier: Apache-2.0
"""Signals in this library's waits.

Held defers Ctrl-C and other signals in a call that ranks make together, so that an interrupted rank first does its
part. It defers signals whose handlers are Python functions, because these may raise. Inside such a call, the program's
own code is interrupted at once.

outlasted() keeps a dedicated reader alive at a signal after which the trainers save and leave.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, Iterator, Optional, Type

from ..errors import explain, say

_SIGNALS = [
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGALRM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGXCPU,
]


class Held:
    """A context that defers signals, except between open() and close(), where they are delivered normally.

    The next open(), or the end of the context, delivers a deferred signal, once. Outside of the main thread the context
    does nothing, because Python delivers signals to the main thread alone.
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
                        self._theirs[number] = handler  # before the next line, because the signal may come at once
                        signal.signal(number, self._came)
            except BaseException:  # raised by the handler of a signal that is not deferred yet
                self._end()
                raise
        return self

    def open(self) -> None:
        """Delivers signals from now on, and first the deferred signals."""
        self._open = True
        self._handle_what_waits()

    def close(self) -> None:
        """Defers signals from now on."""
        self._open = False

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        # A handler's exception replaces the exception of the body, which becomes its context. But a SystemExit of the
        # body is kept.
        ends = isinstance(error, (SystemExit, GeneratorExit))
        with contextlib.suppress(BaseException) if ends else contextlib.nullcontext():
            self._end()

    def _end(self) -> None:
        """Restores the program's handlers, and calls each handler that is due, also after another handler has
        raised."""
        # This comes first, and is never undone: from now on our handler calls the program's handler. Our handler may
        # still run, if a signal interrupts this method or if the program has kept our handler.
        self._open = True
        try:
            for number, handler in self._theirs.items():
                if signal.getsignal(number) == self._came:  # otherwise the program has set another handler meanwhile
                    signal.signal(number, handler)
        finally:
            self._handle_all()

    def _handle_all(self) -> None:
        try:
            self._handle_what_waits()
        finally:
            if self._waiting:
                self._handle_all()

    def _handle_what_waits(self) -> None:
        while self._waiting:
            number = self._waiting.pop(0)  # before the call, because this signal may come again while the handler runs
            self._theirs[number](number, sys._getframe())

    def _came(self, number: int, frame: Optional[FrameType]) -> None:
        if self._open or os.getpid() != self._process:
            self._theirs[number](number, frame)
        elif number not in self._waiting:
            self._waiting.append(number)


def act_by_default(number: int) -> None:
    """Does what a signal does in a process without a handler. Most signals end the process."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


@contextlib.contextmanager
def outlasted(numbers: list[signal.Signals]) -> Iterator[None]:
    """In this context each of these signals logs one line and does nothing else.

    Signals that the program handles or ignores stay as they are. Outside of the main thread the context does nothing.
    In a forked child the signals act by default.
    """
    process, logged = os.getpid(), set()

    def came(number: int, frame: Optional[FrameType]) -> None:
        if os.getpid() != process:
            act_by_default(number)
        elif number not in logged:
            logged.add(number)
            name = signal.Signals(number).name
            say(explain(f"{name} came on this reader, which serves until all trainers have ended"))

    is_main = threading.current_thread() is threading.main_thread()
    ours = [number for number in numbers if is_main and signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, came)
    try:
        yield
    finally:
        for number in ours:
            if signal.getsignal(number) is came:  # otherwise the program has set another handler meanwhile
                signal.signal(number, signal.SIG_DFL)
