# SPDX-License-Identifier: Apache-2.0
"""Shows on stderr how far the epochs are: a line every few seconds."""

from __future__ import annotations

from typing import Mapping

from ...errors import say


class Lines:
    """Writes a line for each channel whose epoch is running, every `seconds` seconds.

    `attempt`: the number of this start of the job. 1 is not shown.
    """

    def __init__(self, seconds: float, attempt: int = 1) -> None:
        self._before, self._seconds = f"attempt {attempt}, " if attempt > 1 else "", seconds
        self._due: dict[str, float] = {}
        self._steps: dict[str, int] = {}  # the steps at the last line

    def show(self, channels: Mapping[str, tuple[str, int]], at: float) -> None:
        """Shows the channels whose epochs are running: by name, their text and their steps. `at`: seconds of a clock.

        Omits a channel that stands still while another channel moves: a training's channel stands still while the
        program validates in mid-epoch.
        """
        self._due = {name: self._due.get(name, at + self._seconds) for name in channels}
        moved = {name for name, (_, steps) in channels.items() if steps != self._steps.get(name)}
        for name, (text, steps) in channels.items():
            if at >= self._due[name]:
                self._due[name] = at + self._seconds
                if name in moved or not moved:
                    self.end(name, text)
                self._steps[name] = steps

    def end(self, name: str, text: str) -> None:
        """Writes the last line of a channel's epoch."""
        say(f"{self._before}channel {name}, {text}")
