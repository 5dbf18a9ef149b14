# SPDX-License-Identifier: Apache-2.0
"""The epochs of one channel, computed from looks at the numbers of rank 0. Pure arithmetic.

A look gives the rows and steps of the running epoch (`Tally`), and the sums over all epochs (`Total`). Looks come a few
times per second, and epochs may be shorter. The difference of two totals shows what happened between two looks.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import NamedTuple, Optional

from ...errors import counted

# A rate is computed over these last seconds, and over at least one step.
_WINDOW = 5.0


class Tally(NamedTuple):
    """Counts of the running epoch, or of the last epoch. They are exact at the epoch's end."""

    epoch: int  # from 1; 0: there was no epoch
    steps: int
    rows: int


class Total(NamedTuple):
    """Counts of all epochs. They only grow. Except: stats(reset=True) sets them to 0."""

    steps: int
    rows: int
    seconds: float

    def since(self, then: Total) -> Total:
        if self.steps < then.steps or self.seconds < then.seconds:  # it was reset between the two looks
            return self
        return Total(self.steps - then.steps, self.rows - then.rows, self.seconds - then.seconds)


@dataclasses.dataclass(frozen=True)
class Ended:
    """An epoch that has ended, or several epochs that have ended between two looks."""

    first: int
    last: int
    steps: int
    rows: int
    seconds: float
    expected: Optional[int]  # steps of each epoch; None: unknown before its end

    def text(self) -> str:
        each = f"epoch {self.first}" if self.first == self.last else f"epochs {self.first} to {self.last}"
        whole = (self.last - self.first + 1) * (self.expected or 0)
        early = f" of {whole:,}" if self.steps < whole else ""
        rate = f", {_rate(self.rows / self.seconds)}" if self.seconds > 0 else ""
        steps, rows = counted(self.steps, "step"), counted(self.rows, "row")
        return f"{each} ended after {steps}{early}: {rows} on rank 0 in {self.seconds:.1f} s{rate}"


class Epochs:
    """The epochs of a channel."""

    def __init__(self, expected: Optional[int] = None) -> None:
        """`expected`: the steps of an epoch. None: its cardinality is unknown."""
        self.expected = expected
        self.under_way = False
        self.number = self.steps = self.rows = 0
        self.seconds = 0.0  # of the running epoch
        self._before: Optional[int] = None  # the steps of the last epoch that has ended
        self._total = Total(0, 0, 0.0)
        # (time, steps, rows) of each look that found more steps than the look before.
        self._looks: collections.deque[tuple[float, int, int]] = collections.deque()
        self._at = 0.0

    def look(self, at: float, tally: Tally, total: Total) -> list[Ended]:
        """The epochs that have ended since the last look. `at`: seconds of a steady clock."""
        grown = total.since(self._total)
        self._total = total
        ended = []
        if tally.epoch == self.number and tally.steps >= self.steps:
            over = self.under_way and grown.seconds == 0  # the time of an epoch grows until its end
            self.seconds += grown.seconds
            self.steps, self.rows = tally.steps, tally.rows
            if over:
                ended.append(self._end(self.number, 0, 0, 0.0))
        else:  # another epoch, or a new channel of the same name, which counts from 0
            # The part of the growth that came before the running epoch.
            steps, rows = max(0, grown.steps - tally.steps), max(0, grown.rows - tally.rows)
            part = steps / grown.steps if grown.steps else float(self.under_way)
            last = max(self.number, tally.epoch - 1)
            if self.under_way or last > self.number:
                ended.append(self._end(last, steps, rows, grown.seconds * part))
            self.number, self.steps, self.rows = tally
            self.seconds = grown.seconds * (1 - part) if ended else grown.seconds
            self.under_way = tally.epoch > 0
            self._looks.clear()
        self._at = at
        if self.under_way and (not self._looks or self.steps > self._looks[-1][1]):
            self._looks.append((at, self.steps, self.rows))
            while len(self._looks) > 2 and at - self._looks[1][0] >= _WINDOW:
                self._looks.popleft()
        return ended

    def over(self) -> list[Ended]:
        """Ends the running epoch as it is, because the channel no longer exists."""
        return [self._end(self.number, 0, 0, 0.0)] if self.under_way else []

    def _end(self, last: int, steps: int, rows: int, seconds: float) -> Ended:
        """Ends the running epoch and all later epochs up to `last`.

        `steps`, `rows` and `seconds`: the growth of all these epochs since the last look.
        """
        first = self.number + 1
        if self.under_way:
            first, steps, rows, seconds = self.number, self.steps + steps, self.rows + rows, self.seconds + seconds
        ended = Ended(first, last, steps, rows, seconds, self.expected)
        self._before = round(ended.steps / (last - first + 1))
        self.under_way = False
        self._looks.clear()
        return ended

    @property
    def whole(self) -> Optional[int]:
        """The steps of the running epoch: the expected number, or the number of the last epoch. None: unknown."""
        if self.expected is not None:
            return self.expected
        return self._before if self._before and self._before >= self.steps else None

    def rate(self) -> float:
        """The rows per second over the last _WINDOW seconds."""
        if len(self._looks) < 2:
            return self.rows / self.seconds if self.seconds > 0 else 0.0
        (began, steps_then, had), (last, steps, has) = self._looks[0], self._looks[-1]
        of_a_step = (last - began) / (steps - steps_then)
        until = max(last, self._at - of_a_step)  # a step that takes longer than earlier steps lowers the rate
        return (has - had) / (until - began)

    def text(self) -> str:
        """A text that says how far the running epoch is."""
        whole = self.whole
        if not whole:
            far = counted(self.steps, "step")
        elif self.expected is None:
            far = f"about {100 * self.steps // whole} %, {counted(self.steps, 'step')} ({whole:,} in the epoch before)"
        else:
            far = f"{min(100, 100 * self.steps // whole)} %, {self.steps:,} of {whole:,} steps"
        return f"epoch {self.number}: {far}, {_rate(self.rate())} on rank 0"


def _rate(rate: float) -> str:
    return f"{rate:,.0f} rows/s" if rate >= 10 else f"{rate:.2g} rows/s"
