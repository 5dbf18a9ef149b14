# SPDX-License-Identifier: Apache-2.0
"""The beginning of every job, and how its ranks meet and leave their results."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mpi4py import MPI  # first: asks for MPI_THREAD_MULTIPLE

import horovod_data as hvdata
from ranks.setting import Job

NAP = 0.002


def start(horovod: bool = False) -> tuple[Job, dict[str, Any]]:
    """This rank's place, and what the job was given.

    A job that does not measure Horovod's operations does without it: its threads, one a rank, meet in every cycle, and
    the first to come spins until the last is there.
    """
    if not horovod:
        sys.modules["horovod"] = None  # type: ignore[assignment]  # as if it were not installed
    hvdata.init()
    if not horovod:
        del sys.modules["horovod"]
    comm = MPI.COMM_WORLD.Dup()
    return Job(comm.rank, comm.size, comm), json.loads(sys.argv[1])


@contextlib.contextmanager
def horovod_running() -> Iterator[None]:
    """Horovod only while it is measured, in a job that started without it: its threads spin at times, on cores that others need."""
    import horovod.tensorflow as hvd  # not before start()

    hvd.init()
    try:
        yield
    finally:
        hvd.shutdown()


def tell(given: dict[str, Any], results: list[dict[str, Any]]) -> None:
    """Leaves the results; may be called again with more of them."""
    path = Path(given["out"])
    path.with_suffix(".new").write_text(json.dumps(results))
    os.replace(path.with_suffix(".new"), path)


def meet(comm: Any) -> None:
    """A barrier that leaves the cores to others."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(NAP)


def cpu_seconds() -> float:
    """User and system time of all threads of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def switches() -> int:
    """Context switches of all threads of this process, whether they had nothing to do or had to make room."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_nvcsw + usage.ru_nivcsw
