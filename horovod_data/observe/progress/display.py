# SPDX-License-Identifier: Apache-2.0
"""Shows on stderr how far the epochs are: a new line every few seconds, or one line of a terminal that is rewritten."""

from __future__ import annotations

import shutil
import sys
from typing import Mapping, NamedTuple, Union

from ...errors import say

_REFRESH_SECONDS = 0.5


class Shown(NamedTuple):
    """What is shown for a channel whose epoch is running."""

    text: str  # "epoch 2: 45 %, 450 of 1,000 steps, 3,200 rows/s on rank 0"
    waits: str  # "ranks wait 71 % for the pipeline", or empty
    steps: int

    def __str__(self) -> str:
        return f"{self.text}; {self.waits}" if self.waits else self.text


def make(how: str, seconds: float, attempt: int = 1) -> Union[Lines, OneLine]:
    """Chooses a display.

    Args:
      how: a value of settings.PROGRESS.
      seconds: the time from line to line.
      attempt: the number of this start of the job. 1 is not shown.
    """
    try:
        terminal = sys.stderr.isatty()
    except (AttributeError, OSError, ValueError):  # there is no stderr, it is closed, or it is an object of the program
        terminal = False
    before = f"attempt {attempt}, " if attempt > 1 else ""
    return OneLine(before) if how == "bar" or terminal else Lines(before, seconds)


class Lines:
    """Writes a line for each channel whose epoch is running, every `seconds` seconds. `before` begins each line."""

    def __init__(self, before: str, seconds: float) -> None:
        self._before, self._seconds = before, seconds
        self._due: dict[str, float] = {}
        self._steps: dict[str, int] = {}  # the steps at the last line

    def show(self, channels: Mapping[str, Shown], at: float) -> None:
        """Shows the channels whose epochs are running, by name. `at`: seconds of a steady clock.

        Omits a channel that stands still while another channel moves, because programs validate in mid-epoch.
        """
        self._due = {name: self._due.get(name, at + self._seconds) for name in channels}
        moved = {name for name, shown in channels.items() if shown.steps != self._steps.get(name)}
        for name, shown in channels.items():
            if at >= self._due[name]:
                self._due[name] = at + self._seconds
                if name in moved or not moved:
                    self.end(name, shown)
                self._steps[name] = shown.steps

    def end(self, name: str, shown: Shown) -> None:
        """Writes the last line of a channel's epoch."""
        say(f"{self._before}channel {name}, {shown}")

    def close(self) -> None:
        """Leaves the terminal clean. Call it last."""


class OneLine:
    """Rewrites one line, which shows all channels whose epochs are running. `before` begins it."""

    def __init__(self, before: str) -> None:
        self._before = before
        self._next = 0.0
        self._dirty = False

    def show(self, channels: Mapping[str, Shown], at: float) -> None:
        if at < self._next:
            return
        self._next = at + _REFRESH_SECONDS
        if channels:
            text = self._before + " | ".join(f"{name}, {shown}" for name, shown in channels.items())
            columns = shutil.get_terminal_size().columns  # also if only the launcher's stderr is a terminal
            self._write(text[: columns - 1])
            self._dirty = True
        else:
            self.close()

    def end(self, name: str, shown: Shown) -> None:
        self.close()
        say(f"{self._before}channel {name}, {shown}")
        self._next = 0.0

    def close(self) -> None:
        if self._dirty:
            self._write("")
            self._dirty = False

    def _write(self, text: str) -> None:
        sys.stderr.write(f"\r{text}\x1b[K")
        sys.stderr.flush()
