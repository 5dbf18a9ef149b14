# SPDX-License-Identifier: Apache-2.0
"""Contestants of one job, measured in turns, round after round.

A rank notes the time of its first tensor after a few untimed steps, and the time of its last tensor. A round lasts from
the earliest first tensor to the latest last tensor. So batches that were buffered before the round give no advantage.
All ranks are on one machine and share its clock. Processor time is the sum over all ranks, with the untimed steps.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Generator
from typing import Any

import tensorflow as tf

from ranks.setting import Job
from ranks.start import cpu_seconds, meet

UNTIMED = 2  # untimed steps before a round, as a multiple of the steps that a contestant may have on their way
FEWEST = 12  # the same multiple for timed steps, because ranks may be apart by the steps on their way

Steps = Generator[tf.Tensor, None, None]


class Contestant:
    """`steps`: an endless iterator of this rank's tensors, with two axes. None: this rank takes no part.

    `own_rows`: the tensors must hold the number of their rank. `ahead`: the steps that it may have on their way.
    """

    def __init__(self, job: Job, steps: Steps | None, own_rows: bool = False, ahead: int = 2) -> None:
        self.job, self.own_rows = job, own_rows
        self.untimed, self.fewest = UNTIMED * ahead, FEWEST * ahead
        self.count = 0  # steps of a round
        self.seconds: list[float] = []
        self.cpu: list[float] = []
        self.error = ""
        self._steps = steps

    def run(self, count: int) -> tuple[float, float]:
        """Makes `count` steps. Returns the job's seconds, and its processor seconds."""
        meet(self.job.comm)
        used = cpu_seconds()
        first = last = None
        problem = ""
        try:
            if self._steps is not None:
                for _ in range(self.untimed):
                    next(self._steps)
                first = time.monotonic()
                for _ in range(count):
                    tensor = next(self._steps)
                    view = memoryview(tensor)
                    view[0, 0], view[-1, -1]
                last = time.monotonic()
                if self.own_rows and {view[0, 0], view[-1, -1]} != {float(self.job.rank)}:
                    problem = f"rank {self.job.rank} got rows of another rank"
        except (RuntimeError, tf.errors.OpError) as error:
            problem = f"rank {self.job.rank}: {error}"
        meet(self.job.comm)
        told = self.job.comm.allgather((first, last, cpu_seconds() - used, problem))
        self.error = next((problem for *_, problem in told if problem), "")
        times = [(first, last) for first, last, *_ in told if first is not None and last is not None]
        elapsed = max(last for _, last in times) - min(first for first, _ in times) if times else 0.0
        return elapsed, sum(used for _, _, used, _ in told)

    def settle(self, seconds: float) -> None:
        """Warms up, and finds the number of steps that take `seconds`."""
        count = self.fewest // 2
        while not self.error:
            took, _ = self.run(count)
            rate = count / max(took, 1e-6)
            if took > seconds / 2 or count > self.fewest and took > seconds / 4:
                self.count = max(self.fewest, round(rate * seconds))
                return
            count = min(count * 8, round(rate * seconds) + 1)

    def close(self) -> None:
        if self._steps is not None:
            self._steps.close()
        self._steps = None

    def told(self) -> dict[str, Any]:
        """The results. `cpu_steps`: the number of steps to which `cpu` belongs."""
        return {
            "steps": self.count,
            "seconds": self.seconds,
            "cpu_steps": self.count + self.untimed,
            "cpu": self.cpu,
            "error": self.error,
        }


def take_turns(job: Job, contestants: list[Contestant], rounds: int, seconds: float) -> None:
    for contestant in contestants:
        contestant.settle(seconds)
    # A full collection walks all objects of TensorFlow for a third of a second, which would delay one contestant's
    # turn.
    gc.collect()
    gc.freeze()
    for _ in range(rounds):
        for contestant in contestants:
            if not contestant.error:
                elapsed, cpu = contestant.run(contestant.count)
                contestant.seconds.append(elapsed)
                contestant.cpu.append(cpu)
    for contestant in contestants:
        meet(job.comm)
        contestant.close()
