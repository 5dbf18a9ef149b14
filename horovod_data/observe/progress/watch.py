# SPDX-License-Identifier: Apache-2.0
"""HOROVOD_DATA_PROGRESS: a thread of rank 0 that looks at the channels' numbers a few times per second, and shows them.

It is on rank 0 of the trainers, and nowhere else: rows and steps are counted there, whoever reads, and it is where programs write
their own lines. The other processes' times, by which it says who waits, come as report() gets them: asked for and answered in
the background, at most so often as a line is new. No step waits for the thread, nor does the thread wait for a step.
"""

from __future__ import annotations

import collections
import os
import sys
import threading
import time
from typing import Any, Mapping, Optional

from ...ending.processes import fork_check
from ...errors import say, start_thread
from ...native import bindings
from .. import times
from ..report import verdict
from . import display
from .epochs import Ended, Epochs, Tally, Total, rows_per_second

_LOOK_SECONDS = 0.25
# How long answers of other processes stay new; of many processes, longer.
_FRESH_SECONDS, _FRESH_SECONDS_OF_EACH = 2.0, 0.02
# A process that has not answered by then says nothing this time.
_PATIENCE_SECONDS, _LAST_PATIENCE_SECONDS = 0.5, 0.2
# Who waits, in an epoch under way: of so many seconds before, and of one step at least.
_LATELY_SECONDS = 10.0
# A terminal that takes no output must not keep the job from its end.
_JOIN_SECONDS = 2.0

_Words = Mapping[tuple[int, int], Mapping[str, Any]]  # what processes have said of their times
_UNHEARD_OF = -1
_watch: Optional[Watch] = None
_expected: dict[str, Optional[int]] = {}  # steps of an epoch, by channel


def start(how: str, seconds: float) -> None:
    """On rank 0, once the job runs. `how`: one of settings.PROGRESS."""
    global _watch
    if how == "0" or sys.stderr is None:
        return
    watch = Watch(display.make(how, seconds))
    try:
        start_thread(watch.thread)
    except RuntimeError as error:  # a job can do without
        say(f"no progress is shown: {error}")
        return
    _watch = watch
    os.register_at_fork(before=watch.before_fork, after_in_parent=watch.after_fork, after_in_child=watch.in_child)


def stop() -> None:
    """Has the last word written, and the thread end. While the job still runs: the others are asked a last time."""
    if _watch is not None and not _watch.forked():
        _watch.stop()


def renew(channel: str) -> None:
    """A channel is about to be made, perhaps of a name that there is: what is known of the one before is gone then."""
    expected = _expected.get(channel, _UNHEARD_OF)
    if _watch is not None and expected != _UNHEARD_OF and not _watch.forked() and (words := bindings.own_epochs())[1]:
        _watch.last_words.append((*words, {channel: expected}))


def expect(channel: str, steps: int) -> None:
    """The channel is made. `steps`: of an epoch, as tf.data counts."""
    if _watch is not None:
        _expected[channel] = steps if steps >= 0 else None


def _of(name: str, said: _Words) -> _Words:
    """What they said of this channel."""
    return {
        who: dict(words, channels={name: words["channels"][name]} if name in words["channels"] else {})
        for who, words in said.items()
    }


class Watch:
    """What the thread does, and knows."""

    def __init__(self, shown_by: display.Display) -> None:
        self.thread = threading.Thread(target=self._run, name="horovod_data progress", daemon=True)
        self.forked = fork_check()
        self._display = shown_by
        self._stopped = threading.Event()
        self._showing = threading.Lock()  # nobody forks meanwhile: a child would inherit what a display locks
        self._held = False
        # Of channels whose names others took.
        self.last_words: collections.deque[tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Optional[int]]]] = (
            collections.deque()
        )
        self._epochs: dict[str, Epochs] = {}
        self._numbers: dict[str, int] = {}  # which channel of its name it is
        self._said: dict[tuple[int, int], dict[str, Any]] = {}  # by every process, last
        self._begun: dict[str, _Words] = {}  # by channel: when its epoch began
        # When others were asked, and rank 0's steps then.
        self._lately: dict[str, collections.deque[tuple[float, int, _Words]]] = {}
        self._asked = 0.0

    def _run(self) -> None:
        try:
            while not self._stopped.wait(_LOOK_SECONDS):
                if bindings.state() is not bindings.State.RUNNING:
                    return
                self._look(_PATIENCE_SECONDS)
            for _ in range(2):  # two looks see whether an epoch goes on
                if bindings.state() is bindings.State.RUNNING:
                    self._look(_LAST_PATIENCE_SECONDS)
            with self._showing:
                self._display.close()
        except (OSError, ValueError):  # stderr is closed
            return

    def stop(self) -> None:
        """Returns when the last word is written."""
        self._stopped.set()
        self.thread.join(_JOIN_SECONDS)

    def _look(self, patience: float) -> None:
        now = time.monotonic()
        ended: list[tuple[str, Ended]] = []
        while True:
            tallies, own = bindings.own_epochs()
            if not self.last_words:  # all that was before these
                break
            while self.last_words:
                before, its_own, expected = self.last_words.popleft()
                ended += self._seen(now, before, its_own, expected)
        if not own:
            return
        self._said[times.who(own)] = own
        ended += self._seen(now, tallies, own)
        ended += self._forget(own["channels"])
        running = {name: epochs for name, epochs in self._epochs.items() if epochs.under_way}
        if self._due(now, at_once=bool(ended), running=bool(running)):
            self._said |= {times.who(one): one for one in bindings.all_times(patience)}
            self._asked = now
        lines = [
            (name, display.line_of(name, each.text(), self._waits(name, self._begun.get(name, {}))))
            for name, each in ended
        ]
        for name in {name for name, _ in ended} & self._epochs.keys():
            self._begun[name] = _of(name, self._said)
            self._lately.pop(name, None)
        shown = {name: self._shown(name, epochs, now) for name, epochs in running.items()}
        with self._showing:
            for name, line in lines:
                self._display.end(name, line)
            self._display.show(shown, now)

    def _seen(
        self, now: float, tallies: Mapping[str, Any], own: Mapping[str, Any], expected: Mapping[str, Optional[int]] = {}
    ) -> list[tuple[str, Ended]]:
        """What has ended by then. `expected`: steps of an epoch, of channels whose names others have by now."""
        ended: list[tuple[str, Ended]] = []
        numbers = times.numbers(own)
        for name, one in times.trainers(own).items():
            if name not in tallies:  # it was made between the two lists
                continue
            if self._numbers.setdefault(name, numbers[name]) != numbers[name]:
                ended += [(name, each) for each in self._epochs.pop(name).over()]
                self._numbers[name] = numbers[name]
            epochs = self._epochs.setdefault(name, Epochs())
            epochs.expected = expected.get(name, _expected.get(name))
            tally = tallies[name]
            ended += [
                (name, each)
                for each in epochs.look(
                    now, Tally(tally["epoch"], tally["steps"], tally["rows"]), Total(one.steps, one.rows, one.total)
                )
            ]
        return ended

    def _forget(self, channels: Mapping[str, Any]) -> list[tuple[str, Ended]]:
        """What is known of others than these, which are gone. Their epochs end with them."""
        ended: list[tuple[str, Ended]] = []
        for name in self._epochs.keys() - channels.keys():
            ended += [(name, each) for each in self._epochs.pop(name).over()]
            for known in (self._numbers, self._begun, self._lately, _expected):
                known.pop(name, None)
        return ended

    def _due(self, now: float, at_once: bool, running: bool) -> bool:
        """Whether to ask the others again: the answers of many processes cost something."""
        least = _FRESH_SECONDS_OF_EACH * len(self._said)
        return (at_once and now - self._asked >= least) or (running and now - self._asked >= max(_FRESH_SECONDS, least))

    def _shown(self, name: str, epochs: Epochs, now: float) -> display.Shown:
        lately = self._lately.setdefault(name, collections.deque([(now, 0, self._begun.get(name, {}))]))
        if lately[-1][0] < self._asked:
            lately.append((self._asked, epochs.steps, _of(name, self._said)))
        while len(lately) > 2 and now - lately[1][0] >= _LATELY_SECONDS and lately[1][1] < epochs.steps:
            lately.popleft()
        return display.Shown(
            epochs.text(),
            self._waits(name, lately[0][2]),
            epochs.number,
            epochs.steps,
            epochs.whole,
            epochs.guessed,
            rows_per_second(epochs.rate()),
        )

    def _waits(self, name: str, before: _Words) -> str:
        """Who waits for whom, since then."""
        if name not in self._epochs:  # it is gone, and so are its times
            return ""
        for channel in times.channels(times.since(self._said.values(), before)):
            if channel.name == name:
                return verdict.judge(channel).brief(len(channel.trainers))
        return "" if self._epochs[name].steps else "rank 0 waits for its first batch"

    # ---- Forks.

    def before_fork(self) -> None:
        # A write that is stuck must not keep the program from forking.
        self._held = self._showing.acquire(timeout=_JOIN_SECONDS)

    def after_fork(self) -> None:
        if self._held:
            self._showing.release()

    def in_child(self) -> None:
        """The thread is not there, and what it has shown is its parent's."""
        self.after_fork()  # the child may fork, too
        forget = getattr(self._display, "forget", None)
        if forget is not None:
            forget()
