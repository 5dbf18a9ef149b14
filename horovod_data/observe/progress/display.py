# SPDX-License-Identifier: Apache-2.0
"""Three ways to show on stderr how far the epochs are.

- Lines: for files, a new line every few seconds.
- Bars: on a terminal, if tqdm is installed.
- OneLine: on a terminal without tqdm, one line that is rewritten.
"""

from __future__ import annotations

import shutil
import sys
from typing import Any, Mapping, NamedTuple, Optional, Protocol

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


class Display(Protocol):
    """At each look, the watch's thread calls end() for each epoch that has ended, and then show()."""

    def show(self, channels: Mapping[str, Shown], at: float) -> None:
        """`channels`: the channels whose epochs are running, by name; may be empty. `at`: seconds of a steady clock."""

    def end(self, name: str, line: str) -> None:
        """Writes the last line of an epoch of this channel."""

    def close(self) -> None:
        """Leaves the terminal clean. It is the last call."""

    def forget(self) -> None:
        """Called in a forked child. Clears nothing on the terminal, because the display belongs to the parent."""


def make(how: str, seconds: float) -> Display:
    """Chooses a display. `how`: a value of settings.PROGRESS. `seconds`: the time from line to line."""
    try:
        terminal = sys.stderr.isatty()
    except (AttributeError, OSError, ValueError):  # there is no stderr, it is closed, or it is an object of the program
        terminal = False
    if how != "bar" and not terminal:
        return Lines(seconds)
    try:
        return Bars()
    except ImportError:
        return OneLine()


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
        """Omits a channel that stands still while another channel moves, because programs validate in mid-epoch."""
        self._due = {name: self._due.get(name, at + self._seconds) for name in channels}
        moved = {name for name, shown in channels.items() if shown.steps != self._steps.get(name)}
        for name, shown in channels.items():
            if at >= self._due[name]:
                self._due[name] = at + self._seconds
                if name in moved or not moved:
                    self.end(name, line_of(name, shown.text, shown.waits))
                self._steps[name] = shown.steps

    def end(self, name: str, line: str) -> None:
        show(line)

    def close(self) -> None:
        pass

    def forget(self) -> None:
        pass


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
            self._write(text[: _columns() - 1])
            self._dirty = True
        else:
            self.close()

    def end(self, name: str, line: str) -> None:
        self.close()
        show(line)
        self._next = 0.0

    def close(self) -> None:
        if self._dirty:
            self._write("")
            self._dirty = False

    def forget(self) -> None:
        self._dirty = False

    def _write(self, text: str) -> None:
        sys.stderr.write(f"\r{text}\x1b[K" if text else "\r\x1b[K")
        sys.stderr.flush()


class Bars:
    """Shows a tqdm bar for each channel whose epoch is running. tqdm also keeps them apart from the program's own
    bars."""

    def __init__(self) -> None:
        from tqdm import tqdm

        # Without tqdm's own thread, which refreshes bars. Our thread refreshes them.
        self._kind: Any = type("Bar", (tqdm,), {"monitor_interval": 0})
        self._bars: dict[str, Any] = {}
        self._next = 0.0

    def show(self, channels: Mapping[str, Shown], at: float) -> None:
        for name in [name for name in self._bars if name not in channels]:
            self._close(name)
        if at < self._next:
            return
        self._next = at + _REFRESH_SECONDS
        for name, shown in channels.items():
            bar = self._bars.get(name)
            if bar is None or bar.total != shown.whole:
                self._close(name)
                about = "~" * shown.guessed
                far = (
                    f"{about}{{percentage:.0f}} %|{{bar}}| {{n_fmt}}/{about}{{total_fmt}}"
                    if shown.whole
                    else "{n_fmt} steps"
                )
                # `delay` keeps tqdm from drawing the bar before it has its numbers.
                bar = self._bars[name] = self._kind(
                    total=shown.whole,
                    file=sys.stderr,
                    leave=False,
                    mininterval=0,
                    delay=1e-9,
                    ncols=_columns() - 1,
                    bar_format="{desc}: " + far + "{postfix}",
                )
            bar.n = shown.steps
            bar.set_description_str(f"{name} {shown.number}", refresh=False)
            bar.set_postfix_str(", ".join(part for part in (shown.rate, shown.waits) if part), refresh=False)
            bar.refresh()

    def end(self, name: str, line: str) -> None:
        self._close(name)
        self._kind.write(line, file=sys.stderr)

    def _close(self, name: str) -> None:
        if name in self._bars:
            self._bars.pop(name).close()

    def close(self) -> None:
        for name in list(self._bars):
            self._close(name)

    def forget(self) -> None:
        for bar in self._bars.values():
            bar.disable = True
        self._bars.clear()


def _columns() -> int:
    """The columns of the terminal. It also works if only the launcher's stderr is a terminal."""
    return shutil.get_terminal_size().columns
