# SPDX-License-Identifier: Apache-2.0
"""HOROVOD_DATA_PROGRESS: a thread of rank 0 that reads the channels' numbers a few times per second, and shows them.

Only trainer rank 0 has this thread, because programs usually print on rank 0. The times of the other processes show
which ranks wait for which processes. The thread asks for these times every few seconds. No step waits for the thread,
and the thread waits for no step.
"""

from __future__ import annotations

import collections
import os
import sys
import threading
import time
from typing import Mapping, Optional, Union

from ...errors import fork_check, say, start_thread
from ...native import bindings
from .. import times
from ..report import verdict
from . import display
from .epochs import Ended, Epochs, Tally, Total

_LOOK_SECONDS = 0.25
# Other processes are asked again when their answers are older than both limits. The second is multiplied by their
# number.
_FRESH_SECONDS, _FRESH_SECONDS_OF_EACH = 2.0, 0.02
# If a process has not answered after this time, its last answer stays valid. The second value is for the end of the
# job.
_PATIENCE_SECONDS, _LAST_PATIENCE_SECONDS = 0.5, 0.2
# A terminal that takes no output must not delay the end of the job for longer than this.
_JOIN_SECONDS = 2.0

_Times = Mapping[tuple[int, int], times.Process]  # the key is times.who()
_watch: Optional[Watch] = None
_expected: dict[str, Optional[int]] = {}  # steps of an epoch, by channel


def start(how: str, seconds: float, attempt: int = 1) -> None:
    """Starts the thread on rank 0, after the job has begun. `how`: a value of settings.PROGRESS."""
    global _watch
    if how == "0" or sys.stderr is None:
        return
    watch = Watch(display.make(how, seconds, attempt))
    try:
        start_thread(watch.thread)
    except RuntimeError as error:  # the job runs without progress lines
        say(f"no progress is shown: {error}")
        return
    _watch = watch
    os.register_at_fork(before=watch.before_fork, after_in_parent=watch.after_fork, after_in_child=watch.after_fork)


def stop() -> None:
    """Writes the last lines, and ends the thread.

    Call it while the job runs, because it asks the other processes once more.
    """
    if _watch is not None and not _watch.forked():
        _watch.stop()


def renew(channel: str) -> None:
    """Keeps the numbers of the last channel of this name. Call it before a new channel replaces that channel."""
    if _watch is not None and channel in _expected and not _watch.forked() and (own := times.own()):
        _watch.replaced.append((own, {channel: _expected[channel]}))


def expect(channel: str, steps: int) -> None:
    """Notes that the channel was made. `steps`: the steps of an epoch, as tf.data counts them."""
    if _watch is not None:
        _expected[channel] = steps if steps >= 0 else None


class Watch:
    """The thread and its data."""

    def __init__(self, shown_by: Union[display.Lines, display.OneLine]) -> None:
        self.thread = threading.Thread(target=self._run, name="horovod_data progress", daemon=True)
        self.forked = fork_check()
        # For each channel that a new channel of its name replaced: the times of rank 0 before that, and the expected
        # steps of the old channel's epochs.
        self.replaced: collections.deque[tuple[times.Process, Mapping[str, Optional[int]]]] = collections.deque()
        self._display = shown_by
        self._stopped = threading.Event()
        # held while the program must not fork, because a child would inherit stderr's lock
        self._showing = threading.Lock()
        self._held = False
        # By channel:
        self._epochs: dict[str, Epochs] = {}
        self._numbers: dict[str, int] = {}  # tells channels of one name apart
        self._begun: dict[str, _Times] = {}  # the times at the begin of the channel's epoch
        self._times: dict[tuple[int, int], times.Process] = {}  # the last answer of each process
        self._asked = 0.0  # time of the last question

    def _run(self) -> None:
        try:
            while not self._stopped.wait(_LOOK_SECONDS):
                if bindings.state() is not bindings.State.RUNNING:
                    return
                self._look(_PATIENCE_SECONDS)
            for _ in range(2):  # an epoch is over when the second look finds no more time in it
                if bindings.state() is bindings.State.RUNNING:
                    self._look(_LAST_PATIENCE_SECONDS)
            with self._showing:
                self._display.close()
        except (OSError, ValueError):  # stderr is closed
            return

    def stop(self) -> None:
        """Ends the thread. Returns when the last line is written, or after _JOIN_SECONDS."""
        self._stopped.set()
        self.thread.join(_JOIN_SECONDS)

    def _look(self, patience: float) -> None:
        now = time.monotonic()
        ended: list[tuple[str, Ended]] = []
        while True:
            own = times.own()
            if not self.replaced:  # otherwise `replaced` may have newer times than `own`
                break
            while self.replaced:
                before, expected = self.replaced.popleft()
                ended += self._seen(now, before, expected)
        if not own:
            return
        self._times[times.who(own)] = own
        ended += self._seen(now, own)
        ended += self._forget(own)
        running = {name: epochs for name, epochs in self._epochs.items() if epochs.under_way}
        if self._due(now, at_once=bool(ended), running=bool(running)):
            self._times |= {times.who(one): one for one in times.of_all(patience)}
            self._asked = now
        over = [(name, display.Shown(each.text(), self._waits(name), each.steps)) for name, each in ended]
        for name in {name for name, _ in ended} & self._epochs.keys():
            self._begun[name] = {
                who: {**one, "channels": {name: one["channels"][name]}}
                for who, one in self._times.items()
                if name in one["channels"]
            }
        shown = {
            name: display.Shown(epochs.text(), self._waits(name), epochs.steps) for name, epochs in running.items()
        }
        with self._showing:
            for one in over:
                self._display.end(*one)
            self._display.show(shown, now)

    def _seen(
        self, now: float, own: times.Process, expected: Mapping[str, Optional[int]] = {}
    ) -> list[tuple[str, Ended]]:
        """Returns the epochs that have ended, according to these times of rank 0.

        `expected`: the steps of an epoch, for replaced channels.
        """
        ended: list[tuple[str, Ended]] = []
        for name, one in times.trainers(own).items():
            number, tally = own["channels"][name]["options"]["number"], own["channels"][name]["tally"]
            if self._numbers.setdefault(name, number) != number:  # a new channel of this name
                ended += [(name, each) for each in self._epochs.pop(name).over()]
                self._numbers[name] = number
            epochs = self._epochs.setdefault(name, Epochs())
            epochs.expected = expected.get(name, _expected.get(name))
            tally = Tally(tally["epoch"], tally["steps"], tally["rows"])
            ended += [(name, each) for each in epochs.look(now, tally, Total(one.steps, one.rows, one.total))]
        return ended

    def _forget(self, own: times.Process) -> list[tuple[str, Ended]]:
        """Forgets the channels that the core has forgotten. Their epochs end."""
        ended: list[tuple[str, Ended]] = []
        for name in self._epochs.keys() - own["channels"].keys():
            ended += [(name, each) for each in self._epochs.pop(name).over()]
            for known in (self._numbers, self._begun, _expected):
                known.pop(name, None)
        return ended

    def _due(self, now: float, at_once: bool, running: bool) -> bool:
        """Says whether to ask the other processes again. Answers of many processes are expensive."""
        least, waited = _FRESH_SECONDS_OF_EACH * len(self._times), now - self._asked
        return (at_once and waited >= least) or (running and waited >= max(_FRESH_SECONDS, least))

    def _waits(self, name: str) -> str:
        """A text that says which ranks have waited for what in the channel's epoch."""
        if name not in self._epochs:  # the core has forgotten the channel's times
            return ""
        cache = times.cache_of([one["channels"].get(name, {}) for one in self._times.values()])
        loading = cache.loading if cache is not None else ""
        for channel in times.channels(times.since(self._times.values(), self._begun.get(name, {}))):
            if channel.name == name:
                return loading or verdict.judge(channel).brief(len(channel.trainers))
        return "" if self._epochs[name].steps else loading or "rank 0 waits for its first batch"

    # ---- Forks.

    def before_fork(self) -> None:
        # With a time limit, because a blocked write must not keep the program from forking.
        self._held = self._showing.acquire(timeout=_JOIN_SECONDS)

    def after_fork(self) -> None:
        if self._held:  # in the child as well, because the child may fork, too
            self._showing.release()
