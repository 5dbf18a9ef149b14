# SPDX-License-Identifier: Apache-2.0
"""Jobs over the hosts of a bed, and what tests ask about them.

with Bed(2, rate="1gbit") as bed:
    with start_over(bed, SCRIPT, places=[0, 0, 1, 1]) as job:  # two ranks on each host
        job.wait_for("step 10", rank=2)
        bed.cut(1)
        assert job.finish(timeout=30) != 0
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from bed import Bed
from jobs import SOON, Job, start_job
from ranks import launch

# MPI asks each host's daemon every second. After five lost questions it takes the host for lost, within 7 s. So a job
# survives a host that is silent for 4 s. Three questions would all be lost in 3 s of silence.
KEEPALIVE = {"OMPI_MCA_oob_tcp_keepalive_time": "1", "OMPI_MCA_oob_tcp_keepalive_intvl": "1",
             "OMPI_MCA_oob_tcp_keepalive_probes": "5"}  # fmt: skip


class JobOverHosts(Job):
    """Process r runs on host places[r] of the bed.

    A launcher other than mpirun places processes by its own options. It gets -np `np`, or the number of processes.
    """

    def __init__(
        self, *args: Any, bed: Bed, places: Sequence[int], np: int | None, env: Mapping[str, str | None], **more: Any
    ) -> None:
        self._bed = bed
        self._places = places
        self._np = np or len(places)
        super().__init__(*args, env={**bed.environment, "HVDATA_TEST_PROC": str(bed.proc), **env}, **more)

    def _launch(self, launcher: Sequence[str], env: Mapping[str, str]) -> Sequence[str]:
        if launcher == launch.launcher():
            launcher = self._bed.mpirun(self._places, env)
        else:
            launcher = [*self._bed.enter(), *launcher]
        return [*launcher, "-np", str(self._np)]

    def _members(self) -> list[int]:
        return [*super()._members(), *self._bed.processes()]


@contextlib.contextmanager
def start_over(
    bed: Bed, script: str | Path, places: Sequence[int], *args: str, readers: int = 0,
    env: Mapping[str, str | None] | None = None, launcher: str = "", np: int | None = None,
) -> Iterator[Job]:  # fmt: skip
    """A job of len(places) processes, of which the last `readers` read: see jobs.start_job."""
    running = functools.partial(JobOverHosts, bed=bed, places=places, np=np)
    with start_job(script, len(places) - readers, *args, readers=readers, launcher=launcher, running=running,
                   env={**({} if launcher else KEEPALIVE), **(env or {})}) as job:  # fmt: skip
        yield job
        assert_nothing_left(bed)


@contextlib.contextmanager
def silent_for_three_seconds(
    begin: Callable[[], AbstractContextManager[Job]], bed: Bed, in_its_stride: Callable[[Job], object],
    goes_on: Callable[[Job], object],
) -> Iterator[Job]:  # fmt: skip
    """Returns a job that has gone on after host 1 was silent for three seconds.

    A job survives four seconds. On a busy machine the silence may last longer and end the job. Then another job is
    tried.
    """
    while True:
        with begin() as job:
            in_its_stride(job)
            began = time.monotonic()
            bed.cut(1)
            time.sleep(3)
            bed.reconnect(1)
            silence = time.monotonic() - began
            try:
                goes_on(job)
            except AssertionError as lost:
                if silence < 4:
                    raise AssertionError(f"host 1 was silent for {silence:.2f} s\n{lost}") from lost
                job.finish()
                continue
            yield job
            return


def assert_nothing_left(bed: Bed, seconds: float = 10) -> None:
    """No process of the job runs on any host, and no host has shared memory with a name of ours."""
    gone = launch.until(lambda: not bed.processes(), seconds)
    assert gone, f"{seconds:g} s after the job's end there are still {list(map(launch.command_of, bed.processes()))}"
    for host in range(len(bed.names)):
        files = [name for name in os.listdir(bed.root(host) / "dev" / "shm") if "hvd" in name]
        assert not files, f"left in /dev/shm of host {host}: {files}"


def assert_ends_soon(job: Job, bed: Bed) -> None:
    """After a fault. Nothing is left then."""
    began = time.monotonic()
    assert job.finish_soon() != 0, job.describe()
    assert_nothing_left(bed, began + SOON - time.monotonic())
