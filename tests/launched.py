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

from ranks import launch
from ranks.slowness import slowness

LAUNCHER = [sys.executable, "-m", "horovod_data.launcher"]


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


class Launched(launch.RunningJob):
    """A running horovod-data-run. Its output and that of its ranks are one text."""

    def __init__(self, words: list[str], env: Mapping[str, str | None], cwd: Path | None):
        self._folder = tempfile.TemporaryDirectory(prefix="hvdata-launched-")
        self.directory = Path(self._folder.name)
        self.processes, self._stopped = 0, set()  # no rank has files of its own
        self.returncode: int | None = None
        self.seconds = 0.0
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
        deadline = time.monotonic() + 2 * slowness() * timeout
        while self.output.count(text) < times:
            ended = (
                self.poll() is not None and self.output.count(text) < times
            )  # it may have written just before its end
            if ended or time.monotonic() > deadline:
                raise AssertionError(f"{text!r} was not written {times} times\n{self.output}")
            time.sleep(0.02)

    def send(self, number: int, everybody: bool = False) -> None:
        """Sends a signal to the launcher, or to all processes of its group, as a terminal does."""
        (os.killpg if everybody else os.kill)(self._launcher.pid, number)

    def finish(self, timeout: float) -> int:
        timeout *= 2 * slowness()
        self.returncode = self.wait(timeout)
        if self.returncode is None:
            raise AssertionError(f"the job had not ended after {timeout:g} s\n{self.output}")
        self.seconds = time.monotonic() - self.started
        return self.returncode

    def assert_gone(self, seconds: float = 10) -> None:
        """No process of the job runs after so many seconds, or more on slow machines."""
        left = self.left(seconds * slowness())
        assert not left, left


@contextlib.contextmanager
def start_launcher(
    *words: str, env: Mapping[str, str | None] | None = None, cwd: Path | None = None, bed: Any = None
) -> Iterator[Launched]:
    """Starts horovod-data-run with the MPI under test, and kills the job's processes at the end.

    `bed`: a Bed of tests/cluster/bed.py. The launcher then runs on its first host, with Open MPI.
    """
    if bed is None:
        job = Launched([*LAUNCHER, "--mpirun", " ".join(launch.launcher()), *words], env or {}, cwd)
    else:
        path = f"{bed.environment['PATH'].partition(':')[0]}:{os.environ['PATH']}"
        job = Launched([*bed.enter(), *LAUNCHER, *words], {**bed.environment, "PATH": path, **(env or {})}, cwd)
    try:
        yield job
    finally:
        job.kill()


def run_launcher(
    *words: str, env: Mapping[str, str | None] | None = None, cwd: Path | None = None, timeout: float = 60
) -> Launched:
    """Runs a job to its end. See start_launcher."""
    with start_launcher(*words, env=env, cwd=cwd) as job:
        job.finish(timeout)
        job.assert_gone()
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
