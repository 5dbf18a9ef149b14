# SPDX-License-Identifier: Apache-2.0
"""Shows on stderr how far the epochs are: a line every few seconds."""

from __future__ import annotations

from typing import Mapping, NamedTuple

from ...errors import say


class Shown(NamedTuple):
    """What is shown for a channel whose epoch is running."""

    text: str  # "epoch 2: 45 %, 450 of 1,000 steps, 3,200 rows/s on rank 0"
    waits: str  # "ranks wait 71 % for the pipeline", or empty
    steps: int

    def __str__(self) -> str:
        return f"{self.text}; {self.waits}" if self.waits else self.text


class Lines:
    """Writes a line for each channel whose epoch is running, every `seconds` seconds.

    `attempt`: the number of this start of the job. 1 is not shown.
    """

    def __init__(self, seconds: float, attempt: int = 1) -> None:
        self._before, self._seconds = f"attempt {attempt}, " if attempt > 1 else "", seconds
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
