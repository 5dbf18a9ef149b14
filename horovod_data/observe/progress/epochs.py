# SPDX-License-Identifier: Apache-2.0
"""The epochs of one channel, computed from looks at the numbers of rank 0. Pure arithmetic.

A look gives the rows and steps of the running epoch (`Tally`), and the sums over all epochs (`Total`). Looks come a few
times per second, and epochs may be shorter. The difference of two totals shows what happened between two looks.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Optional

from ...errors import counted


class Tally(NamedTuple):
    """Counts of the running epoch, or of the last epoch. They are exact at the epoch's end."""

    epoch: int  # from 1; 0: there was no epoch
    steps: int
    rows: int


class Total(NamedTuple):
    """Counts of all epochs. They grow until stats(reset=True) sets them to 0."""

    steps: int
    rows: int
    seconds: float
    wait: float  # seconds

    def since(self, then: Total) -> Total:
        if self.steps < then.steps or self.seconds < then.seconds:  # it was reset between the two looks
            return self
        return Total(self.steps - then.steps, self.rows - then.rows, self.seconds - then.seconds, self.wait - then.wait)


@dataclasses.dataclass(frozen=True)
class Ended:
    """An epoch that has ended, or several epochs that have ended between two looks."""

    first: int
    last: int
    steps: int
    rows: int
    seconds: float
    wait: float
    expected: Optional[int]  # steps of each epoch; None: unknown before its end

    def text(self) -> str:
        each = f"epoch {self.first}" if self.first == self.last else f"epochs {self.first} to {self.last}"
        whole = (self.last - self.first + 1) * (self.expected or 0)
        early = f" of {whole:,}" if self.steps < whole else ""
        rate = f", {_rate(self.rows / self.seconds)}" if self.seconds > 0 else ""
        steps, rows = counted(self.steps, "step"), counted(self.rows, "row")
        waits = _waits(self.wait, self.seconds)
        return f"{each} ended after {steps}{early}: {rows} on rank 0 in {self.seconds:.1f} s{rate}{waits}"


class Epochs:
    """The epochs of a channel."""

    def __init__(self, expected: Optional[int] = None, channel: int = 0) -> None:
        """
        Args:
          expected: the steps of an epoch. None: its cardinality is unknown.
          channel: a number that tells channels of one name apart.
        """
        self.expected, self.channel = expected, channel
        self.loading = ""  # how far the load of cache="job" is
        self.under_way = False
        self.number = self.steps = self.rows = 0
        self.seconds = self.wait = 0.0  # of the running epoch
        self._before: Optional[int] = None  # the steps of the last epoch that has ended
        self._total = Total(0, 0, 0.0, 0.0)

    def look(self, tally: Tally, total: Total) -> list[Ended]:
        """The epochs that have ended since the last look."""
        grown = total.since(self._total)
        self._total = total
        if tally.epoch == self.number and tally.steps >= self.steps:
            over = self.under_way and grown.seconds == 0  # the time of an epoch grows until its end
            self.seconds, self.wait = self.seconds + grown.seconds, self.wait + grown.wait
            self.steps, self.rows = tally.steps, tally.rows
            return self.over() if over else []
        # Another epoch, or a new channel of the same name, which counts from 0. `steps`, `rows` and `part` are the part
        # of the growth that came before the running epoch.
        steps, rows = max(0, grown.steps - tally.steps), max(0, grown.rows - tally.rows)
        part = steps / grown.steps if grown.steps else float(self.under_way)
        last = max(self.number, tally.epoch - 1)
        ended = []
        if self.under_way or last > self.number:
            ended.append(self._end(last, Total(steps, rows, grown.seconds * part, grown.wait * part)))
        self.number, self.steps, self.rows = tally
        rest = 1 - part if ended else 1.0
        self.seconds, self.wait = grown.seconds * rest, grown.wait * rest
        self.under_way = tally.epoch > 0
        return ended

    def over(self) -> list[Ended]:
        """Ends the running epoch as it is."""
        return [self._end(self.number, Total(0, 0, 0.0, 0.0))] if self.under_way else []

    def _end(self, last: int, grown: Total) -> Ended:
        """Ends the running epoch and all later epochs up to `last`, which have grown by `grown` since the last look."""
        first = self.number + 1
        if self.under_way:
            first = self.number
            seconds, wait = self.seconds + grown.seconds, self.wait + grown.wait
            grown = Total(self.steps + grown.steps, self.rows + grown.rows, seconds, wait)
        self._before = round(grown.steps / (last - first + 1))
        self.under_way = False
        return Ended(first, last, *grown, self.expected)

    def text(self) -> str:
        """A text that says how far the running epoch is."""
        whole = self._before if self.expected is None else self.expected
        if not whole or (self.expected is None and whole < self.steps):
            far = counted(self.steps, "step")
        elif self.expected is None:
            far = f"about {100 * self.steps // whole} %, {counted(self.steps, 'step')} ({whole:,} in the epoch before)"
        else:
            far = f"{min(100, 100 * self.steps // whole)} %, {self.steps:,} of {whole:,} steps"
        rate = _rate(self.rows / self.seconds if self.seconds > 0 else 0.0)
        waits = f"; {self.loading}" if self.loading else _waits(self.wait, self.seconds)
        return f"epoch {self.number}: {far}, {rate} on rank 0{waits}"


def _rate(rate: float) -> str:
    return f"{rate:,.0f} rows/s" if rate >= 10 else f"{rate:.2g} rows/s"


def _waits(wait: float, seconds: float) -> str:
    return f"; rank 0 waits {100 * wait / seconds:.0f} % of the time" if seconds > 0 else ""
