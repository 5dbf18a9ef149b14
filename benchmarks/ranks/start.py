# SPDX-License-Identifier: Apache-2.0
"""The start of every job. Ranks meet here, and write their results."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mpi4py import MPI  # first, because it requests MPI_THREAD_MULTIPLE

import horovod_data as hvdata
from ranks.setting import Job

NAP = 0.002


def start(horovod: bool = False) -> tuple[Job, dict[str, Any]]:
    """Starts this rank. Returns its place in the job, and the job's settings.

    A job that does not measure Horovod's operations runs without Horovod. Otherwise Horovod's threads, one per rank,
    meet in every cycle, and the first thread spins until the last arrives.
    """
    if not horovod:
        sys.modules["horovod"] = None  # type: ignore[assignment]  # makes Horovod look as if it were not installed
    hvdata.init()
    if not horovod:
        del sys.modules["horovod"]
    comm = MPI.COMM_WORLD.Dup()
    return Job(comm.rank, comm.size, comm), json.loads(sys.argv[1])


@contextlib.contextmanager
def horovod_running() -> Iterator[None]:
    """Runs Horovod only during a measurement, in a job that started without it.

    Its threads sometimes spin on cores of other ranks.
    """
    import horovod.tensorflow as hvd  # only after start()

    hvd.init()
    try:
        yield
    finally:
        hvd.shutdown()


def tell(given: dict[str, Any], results: list[dict[str, Any]]) -> None:
    """Writes the results. May be called again with more results."""
    path = Path(given["out"])
    path.with_suffix(".new").write_text(json.dumps(results))
    os.replace(path.with_suffix(".new"), path)


def finish(job: Job, given: dict[str, Any], results: list[dict[str, Any]]) -> None:
    """The end of a job: the reader writes the results, and all ranks shut down."""
    if job.reads:
        tell(given, results)
    hvdata.shutdown()


def meet(comm: Any) -> None:
    """A barrier that leaves the cores free."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(NAP)


def in_turns(job: Job, rounds: int, steps: int, ways: Mapping[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Seconds of a step of each way, of the slowest rank, round after round. `ways`: what makes a step."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(1 + rounds):  # the first warms up
        for way in list(ways)[:: 1 if turn % 2 else -1]:
            meet(job.comm)
            began = time.perf_counter()
            for _ in range(steps):
                ways[way]()
            took = max(job.comm.allgather(time.perf_counter() - began))
            if turn:
                seconds[way].append(took / steps)
    return seconds


def cpu_seconds() -> float:
    """User and system time of all threads of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
