# SPDX-License-Identifier: Apache-2.0
"""Shows on stderr how far the epochs are: a new line every few seconds, or one line of a terminal that is rewritten."""

from __future__ import annotations

import shutil
import sys
from typing import Mapping, NamedTuple, Optional, Union

from ...errors import show

_REFRESH_SECONDS = 0.5


class Shown(NamedTuple):
    """The texts and numbers that are shown for a channel whose epoch is running."""

    text: str  # "epoch 2: 45 %, 450 of 1,000 steps, 3,200 rows/s on rank 0"
    waits: str  # "ranks wait 71 % for the pipeline", or empty
    number: int  # the epoch's number
    steps: int
    whole: Optional[int]  # all steps of the epoch. None: not known
    guessed: bool  # `whole` is the number of steps of the last epoch
    rate: str

    def short(self) -> str:
        """A short text for a terminal: "~34 %, 31/~90 steps, 3,200 rows/s, ranks wait 71 % for the pipeline"."""
        about = "~" * self.guessed
        far = f"{self.steps:,}"
        if self.whole:
            far = f"{about}{100 * self.steps // self.whole} %, {far}/{about}{self.whole:,}"
        return ", ".join(part for part in (f"{far} steps", self.rate, self.waits) if part)


def make(how: str, seconds: float) -> Union[Lines, OneLine]:
    """Chooses a display. `how`: a value of settings.PROGRESS. `seconds`: the time from line to line."""
    try:
        terminal = sys.stderr.isatty()
    except (AttributeError, OSError, ValueError):  # there is no stderr, it is closed, or it is an object of the program
        terminal = False
    return OneLine() if how == "bar" or terminal else Lines(seconds)


def line_of(name: str, text: str, waits: str = "") -> str:
    """A line that people can read and programs can search for."""
    return f"horovod_data: channel {name}, {text}{f'; {waits}' if waits else ''}"


class Lines:
    """Writes a line for each channel whose epoch is running, every `seconds` seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
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
                    self.end(line_of(name, shown.text, shown.waits))
                self._steps[name] = shown.steps

    def end(self, line: str) -> None:
        """Writes the last line of an epoch."""
        show(line)

    def close(self) -> None:
        """Leaves the terminal clean. It is the last call."""


class OneLine:
    """Rewrites one line, which shows all channels whose epochs are running."""

    def __init__(self) -> None:
        self._next = 0.0
        self._dirty = False

    def show(self, channels: Mapping[str, Shown], at: float) -> None:
        if at < self._next:
            return
        self._next = at + _REFRESH_SECONDS
        if channels:
            text = " | ".join(f"{name} {shown.number}: {shown.short()}" for name, shown in channels.items())
            columns = shutil.get_terminal_size().columns  # also if only the launcher's stderr is a terminal
            self._write(text[: columns - 1])
            self._dirty = True
        else:
            self.close()

    def end(self, line: str) -> None:
        self.close()
        show(line)
        self._next = 0.0

    def close(self) -> None:
        if self._dirty:
            self._write("")
            self._dirty = False

    def _write(self, text: str) -> None:
        sys.stderr.write(f"\r{text}\x1b[K")
        sys.stderr.flush()
