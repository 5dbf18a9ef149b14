# SPDX-License-Identifier: Apache-2.0
"""One rank of the benchmark's job: measures all contestants in turn, round after round. Started by delivery.py.

A rank notes when it has its first tensor after a few untimed steps and when it has its last; a round lasts from the
first rank's first to the last rank's last, so that what was buffered before it gains nobody anything. All ranks are on
one machine and share its clock.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from pathlib import Path

from mpi4py import MPI  # first: asks for MPI_THREAD_MULTIPLE
import tensorflow as tf
import horovod_data as hvdata

import rivals
from rivals.setting import READER, Batch, Job

UNTIMED = 4  # more than anybody's window of steps under way
FEWEST = 24  # timed steps of a round: many more than the window, by which ranks may be apart
NAP = 0.001


def meet(comm) -> None:
    """A barrier that leaves the cores to others."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(NAP)


def agree(comm, value):
    """The reader's value, on every rank."""
    meet(comm)
    return comm.bcast(value, root=READER)


class Contestant:
    def __init__(self, rival, job: Job, batch: Batch) -> None:
        self.rival, self.job = rival, job
        self.count = 0  # steps of a round
        self.seconds: list[float] = []
        self.error = ""
        self._steps = rival.steps(job, batch)

    def run(self, count: int) -> float:
        """Makes `count` steps; the seconds they took the job."""
        meet(self.job.comm)
        first = last = None
        problem = ""
        try:
            if self._steps is not None:
                for _ in range(UNTIMED):
                    next(self._steps)
                first = time.monotonic()
                for _ in range(count):
                    tensor = next(self._steps)
                    view = memoryview(tensor)
                    view[0, 0], view[-1, -1]
                last = time.monotonic()
                if self.rival.CUTS and {view[0, 0], view[-1, -1]} != {float(self.job.rank)}:
                    problem = f"rank {self.job.rank} got rows of another rank"
        except (RuntimeError, tf.errors.OpError) as error:
            problem = f"rank {self.job.rank}: {error}"
        meet(self.job.comm)
        told = self.job.comm.allgather((first, last, problem))
        self.error = next((problem for _, _, problem in told if problem), "")
        times = [(first, last) for first, last, _ in told if first is not None and last is not None]
        return max(last for _, last in times) - min(first for first, _ in times) if times else 0.0

    def settle(self, seconds: float) -> None:
        """Warms up, and finds the steps that take `seconds`."""
        count = FEWEST // 2
        while not self.error:
            took = self.run(count)
            rate = count / max(took, 1e-6)
            if took > seconds / 2 or count > FEWEST and took > seconds / 4:
                self.count = max(FEWEST, round(rate * seconds))
                return
            count = min(count * 8, round(rate * seconds) + 1)

    def close(self) -> None:
        if self._steps is not None:
            self._steps.close()
        self._steps = None


def measure(job: Job, batch: Batch, wanted: list, rounds: int, seconds: float) -> list[dict]:
    contestants = []
    for rival in wanted:
        contestant = Contestant(rival, job, batch)
        contestant.settle(seconds)
        contestants.append(contestant)
    # A full collection walks all objects of TensorFlow for a third of a second, and stalls whoever has its turn.
    gc.collect()
    gc.freeze()
    for _ in range(rounds):
        for contestant in contestants:
            if not contestant.error:
                contestant.seconds.append(contestant.run(contestant.count))
    for contestant in contestants:
        meet(job.comm)
        contestant.close()
    return [{"name": c.rival.NAME, "kind": c.rival.KIND, "moves": c.rival.MOVES, "ranks": job.size,
             "bytes": batch.bytes, "steps": c.count, "seconds": c.seconds, "error": c.error} for c in contestants]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bytes", type=int, nargs="+", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    arguments = parser.parse_args()

    hvdata.init()
    comm = MPI.COMM_WORLD.Dup()
    job = Job(comm.rank, comm.size, comm)
    wanted = [r for r in rivals.ALL if not arguments.only or r.__name__.rsplit(".", 1)[1] in arguments.only]
    results = []
    for size in arguments.bytes:
        results += measure(job, Batch(size), wanted, arguments.rounds, arguments.seconds)
        if job.reads:
            arguments.out.write_text(json.dumps(results))
            print(f"[bench] {job.size} ranks, {size} bytes: done", file=sys.stderr, flush=True)
    hvdata.shutdown()


if __name__ == "__main__":
    main()
