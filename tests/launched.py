# SPDX-License-Identifier: Apache-2.0
"""Jobs that horovod-data-run starts as real processes.

done = run_launcher("-np", "2", python("print('up')"))
with start_launcher("-np", "2", python(script)) as job:
    job.wait_for("up", times=2)
    job.send(signal.SIGTERM)
    status = job.finish(20)
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jobs import SOON, Job
from ranks import launch

LAUNCHER = [sys.executable, "-m", "horovod_data.launcher"]

# The beginning of a program that does without the library, so that it starts and ends at once.
WITHOUT_LIBRARY = """
import os, sys, time
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
def say(*words):  # in one piece, because ranks share the output
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""


def executable(path: Path, text: str) -> Path:
    """Writes a shell script."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def environment(extra: Mapping[str, str | None]) -> dict[str, str]:
    """The variables of tests, without those that the launcher must find out by itself."""
    ours = {
        "OMPI_MCA_rmaps_base_oversubscribe": None,
        "OMPI_MCA_mpi_yield_when_idle": None,
        "OMPI_MCA_hwloc_base_binding_policy": None,
        "HOROVOD_DATA_EMBEDDED": None,
        **{name: None for name in os.environ if name.startswith(("SLURM_", "PBS_", "LSB_"))},
    }
    return launch.environment(Path(tempfile.gettempdir()), 0, {**ours, **extra})


class Launched(Job):
    """A running horovod-data-run. Its output and that of its ranks are one text."""

    def __init__(self, words: list[str], env: Mapping[str, str | None], cwd: Path | None):
        self._folder = tempfile.TemporaryDirectory(prefix="hvdata-launched-")
        self.directory = Path(self._folder.name)
        self.processes, self._stopped = 0, set()  # no rank has files of its own
        self.started = time.monotonic()
        with open(self.directory / "log", "wb") as log:
            self._launcher = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment({**env, "HVDATA_TEST_DIR": str(self.directory)}),
                cwd=cwd,
                start_new_session=True,  # so that _members() finds all processes
            )

    @property
    def output(self) -> str:
        return self.log()

    def lines(self, start: str) -> list[str]:
        """The sorted lines that begin with `start`, without it."""
        return sorted(line[len(start) :].strip() for line in self.output.splitlines() if line.startswith(start))

    def wait_for(self, text: str, times: int = 1, timeout: float = 60) -> None:
        self.wait_until(lambda: self.output.count(text) >= times, f"{text!r} was not written {times} times", timeout)

    def send(self, number: int, everybody: bool = False) -> None:
        """Sends a signal to the launcher, or to all processes of its group, as a terminal does."""
        (os.killpg if everybody else os.kill)(self._launcher.pid, number)


@contextlib.contextmanager
def start_launcher(
    *words: str,
    env: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
    bed: Any = None,
    left: float = SOON,
) -> Iterator[Launched]:
    """Starts horovod-data-run with the MPI under test, and kills the job's processes at the end.

    Fails the test if a process still runs `left` seconds after finish(). `bed`: a Bed of tests/cluster/bed.py. The
    launcher then runs on its first host, with Open MPI.
    """
    if bed is None:
        job = Launched([*LAUNCHER, "--mpirun", " ".join(launch.launcher()), *words], env or {}, cwd)
    else:
        path = f"{bed.environment['PATH'].partition(':')[0]}:{os.environ['PATH']}"
        job = Launched([*bed.enter(), *LAUNCHER, *words], {**bed.environment, "PATH": path, **(env or {})}, cwd)
    try:
        yield job
        if job.returncode is not None:
            job.assert_gone(left)
    finally:
        job.kill()


def run_launcher(*words: str, status: int | None = 0, timeout: float = 120, **more: Any) -> Launched:
    """Runs a job to its end, and asserts its status. With None the caller looks at it. See start_launcher."""
    with start_launcher(*words, **more) as job:
        job.finish(timeout)
        assert status in (None, job.returncode), job.output
        return job


def ask_launcher(*words: str, env: Mapping[str, str | None] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs horovod-data-run for output without a job: --dry-run, --version, errors."""
    return subprocess.run(
        [*LAUNCHER, *words],
        capture_output=True,
        text=True,
        env=environment(env or {}),
        timeout=170,
        stdin=subprocess.DEVNULL,
    )
