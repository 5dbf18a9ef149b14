# SPDX-License-Identifier: Apache-2.0
"""HOROVOD_DATA_PROGRESS: a thread of rank 0 that reads its channels' numbers a few times per second, and shows them.

Only trainer rank 0 has this thread, because programs usually print on rank 0. No step waits for the thread, and the
thread waits for no step.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Optional

from ...errors import fork_check, say, start_thread
from ...native import bindings
from .. import times
from . import display
from .epochs import Ended, Epochs, Tally, Total

_LOOK_SECONDS = 0.25
# A terminal or a pipe that takes no output must not delay the end of the job for longer than this.
_JOIN_SECONDS = 2.0

_watch: Optional[Watch] = None
_expected: dict[str, Optional[int]] = {}  # steps of an epoch, by channel


def start(seconds: float, attempt: int) -> None:
    """Starts the thread on rank 0, after the job has begun. Arguments: those of Lines."""
    global _watch
    if sys.stderr is None:
        return
    watch = Watch(display.Lines(seconds, attempt))
    try:
        start_thread(watch.thread)
    except RuntimeError as error:  # the job runs without progress lines
        say(f"no progress is shown: {error}")
        return
    _watch = watch
    os.register_at_fork(before=watch.before_fork, after_in_parent=watch.after_fork, after_in_child=watch.after_fork)


def stop() -> None:
    """Writes the last lines, and ends the thread. Call it while the job runs."""
    if _watch is not None and not _watch.forked():
        _watch.stop()


def renew(channel: str) -> None:
    """Notes the last numbers of this channel. Call it before a new channel of its name replaces it."""
    if _watch is not None and channel in _expected and not _watch.forked():
        _watch.look()


def expect(channel: str, steps: int) -> None:
    """Notes that the channel was made. `steps`: the steps of an epoch, as tf.data counts them."""
    if _watch is not None:
        _expected[channel] = steps if steps >= 0 else None


class Watch:
    """The thread and its data."""

    def __init__(self, lines: display.Lines) -> None:
        self.thread = threading.Thread(target=self._run, name="horovod_data progress", daemon=True)
        self.forked = fork_check()
        self._lines = lines
        self._stopped = threading.Event()
        # held while the program must not fork, because a child would inherit stderr's lock
        self._showing = threading.Lock()
        self._held = False
        self._lock = threading.Lock()  # of all that follows
        self._channels: dict[str, Epochs] = {}
        self._ended: list[tuple[str, Ended]] = []  # not yet shown

    def _run(self) -> None:
        try:
            while not self._stopped.wait(_LOOK_SECONDS):
                if bindings.state() is not bindings.State.RUNNING:
                    return
                self._show()
            for _ in range(2):  # an epoch is over if its time has not grown since the look before
                if bindings.state() is bindings.State.RUNNING:
                    self._show()
        except (OSError, ValueError):  # stderr is closed
            return

    def stop(self) -> None:
        """Ends the thread. Returns when the last line is written, or after _JOIN_SECONDS."""
        self._stopped.set()
        self.thread.join(_JOIN_SECONDS)

    def look(self) -> None:
        """Reads the times of rank 0. Any thread may call it."""
        with self._lock:
            if own := times.own():
                self._look(own)

    def _look(self, own: times.Process) -> None:
        for name, one in times.trainers(own).items():
            number, tally = own["channels"][name]["options"]["number"], own["channels"][name]["tally"]
            if name not in self._channels or self._channels[name].channel != number:
                self._end(name)  # a new channel of this name
                self._channels[name] = Epochs(channel=number)
            channel = self._channels[name]
            channel.expected = _expected.get(name)
            cache = times.cache_of([own["channels"][name]])
            channel.loading = cache.loading if cache is not None else ""
            total = Total(one.steps, one.rows, one.total, one.wait)
            ended = channel.look(Tally(tally["epoch"], tally["steps"], tally["rows"]), total)
            self._ended += [(name, each) for each in ended]
        for name in self._channels.keys() - own["channels"].keys():  # the core has forgotten them
            self._end(name)
            _expected.pop(name, None)

    def _end(self, name: str) -> None:
        if name in self._channels:
            self._ended += [(name, each) for each in self._channels.pop(name).over()]

    def _show(self) -> None:
        self.look()
        with self._lock:
            now = time.monotonic()
            ended, self._ended = self._ended, []
            running = {name: (each.text(), each.steps) for name, each in self._channels.items() if each.under_way}
        with self._showing:
            for name, each in ended:
                self._lines.end(name, each.text())
            self._lines.show(running, now)

    # ---- Forks.

    def before_fork(self) -> None:
        # With a time limit, because a blocked write must not keep the program from forking.
        self._held = self._showing.acquire(timeout=_JOIN_SECONDS)

    def after_fork(self) -> None:
        if self._held:  # in the child as well, because the child may fork, too
            self._showing.release()
