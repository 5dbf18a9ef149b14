# SPDX-License-Identifier: Apache-2.0
"""Jobs of several ranks for tests of bad days: a whole job's exit status, output and duration are what is tested.

job = run_job(script, np=2)                   # to its end
with start_job(script, np=3) as job:          # to meddle with it
    job.wait_for("step 3", rank=1)
    job.kill_rank(1)
    assert job.finish(timeout=20) != 0
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from ranks import launch
from ranks.slowness import slowness

# Seconds that a fault may take to end a job, or to become an error: what docs/guarantees.md promises, on a machine that is not slow;
# three times that where HVDATA_TEST_LIMIT is set, as for sanitizers.
SOON = (30 if os.environ.get("HVDATA_TEST_LIMIT") else 10) * slowness()

_FOLDERS = tempfile.TemporaryDirectory(prefix="hvdata-jobs-")  # read after a job's end; removed at ours


class Job:
    def __init__(self, running: launch.RunningJob) -> None:
        self._running = running
        self.returncode: int | None = None
        self.seconds = 0.0

    @property
    def stdout(self) -> list[str]:
        """Of each rank, as far as it has come."""
        return [self._running.read("out", rank) for rank in range(self._running.processes)]

    @property
    def stderr(self) -> list[str]:
        return [self._running.read("err", rank) for rank in range(self._running.processes)]

    @property
    def log(self) -> str:
        """What the launcher itself said."""
        return self._running.log()

    def pid(self, rank: int) -> int | None:
        return self._running.pid(rank)

    def alive(self, rank: int) -> bool:
        return self._running.alive(rank)

    def kill_rank(self, rank: int, number: int = signal.SIGKILL) -> None:
        self._running.signal(rank, number)

    @property
    def findings(self) -> str:
        """What sanitizers found, if it runs under them."""
        return self._running.findings()

    def wait_for(self, text: str, rank: int, timeout: float = 60) -> None:
        """Until rank `rank` has written `text`, to stdout or stderr."""
        timeout *= 2 * slowness()
        deadline = time.monotonic() + timeout
        while text not in self.stdout[rank] + self.stderr[rank]:
            ended = self._running.poll() is not None and text not in self.stdout[rank] + self.stderr[rank]
            if ended or time.monotonic() > deadline:
                why = "before the job ended" if ended else f"in {timeout:g} s"
                raise AssertionError(f"rank {rank} did not write {text!r} {why}\n{self.describe()}")
            time.sleep(0.02)

    def finish(self, timeout: float = 60) -> int:
        """The job's status. One that has not ended in time, which is longer on slow machines, is ended, and fails the test with all
        ranks' stacks."""
        timeout *= 2 * slowness()
        status = self._running.wait(timeout)
        if status is None:
            stacks = self._running.stacks()
            self._running.kill()
            shown = "".join(f"\n===== rank {rank}: stacks =====\n{text}" for rank, text in stacks.items())
            raise AssertionError(f"the job had not ended after {timeout:g} s\n{self.describe()}{shown}")
        self.returncode = status
        self.seconds = time.monotonic() - self._running.started
        return status

    def when(self, word: str, rank: int) -> float:
        """The moment at which `rank` wrote print(word, time.monotonic())."""
        written = re.search(rf"^{re.escape(word)} ([\d.]+)$", self.stdout[rank], re.MULTILINE)
        assert written, self.describe()
        return float(written[1])

    def seconds_since(self, word: str, rank: int) -> float:
        """From when() to the job's end."""
        return self._running.started + self.seconds - self.when(word, rank)

    def describe(self) -> str:
        """Everything that was written, for failure texts: assert job.returncode == 0, job.describe()."""
        parts = [f"===== launcher: status {self.returncode} =====\n{self.log}"]
        for kind, texts in (("out", self.stdout), ("err", self.stderr)):
            parts += [f"===== std{kind} of rank {rank} =====\n{text}" for rank, text in enumerate(texts) if text]
        return "\n".join(parts)


@contextlib.contextmanager
def start_job(
    script: str | Path,
    np: int,
    *args: str,
    readers: int = 0,
    env: Mapping[str, str | None] | None = None,
    launcher: str = "",
    cwd: Path | None = None,
    running: Callable[..., launch.RunningJob] = launch.RunningJob,
    left: float = SOON,
) -> Iterator[Job]:
    """Starts a script (its text or its path) on np + readers ranks; whatever is left of it at the end is killed. Of a job that has
    come to its end, finish(), no process may be left `left` seconds later.

    `env` is set on top of the test defaults, None unsets. `launcher` is a command line such as "horovodrun --gloo" that
    takes -np; the default is the mpirun under test. `running` is made with what RunningJob takes: a job elsewhere.
    """
    directory = Path(tempfile.mkdtemp(dir=_FOLDERS.name))
    if isinstance(script, str):
        path = directory / "script.py"
        path.write_text(script)
    else:
        path = script.resolve()
    started = running(
        [sys.executable, str(path), *args],
        np + readers,
        directory,
        readers=readers,
        env=env,
        launch=shlex.split(launcher) if launcher else None,
        cwd=cwd,
    )
    try:
        job = Job(started)
        yield job
        runs = started.left(left) if job.returncode is not None else []
        assert not runs, f"the job has ended, and {runs} still run\n{job.describe()}"
    except pytest.fail.Exception:  # the test's own time limit: say where the ranks are
        if started.poll() is None:
            for rank, text in started.stacks().items():
                print(f"\n===== rank {rank}: stacks =====\n{text}", file=sys.stderr)
        raise
    finally:
        started.kill()


def run_job(
    script: str | Path,
    np: int,
    *args: str,
    readers: int = 0,
    env: Mapping[str, str | None] | None = None,
    timeout: float = 60,
    launcher: str = "",
    cwd: Path | None = None,
    left: float = SOON,
) -> Job:
    """Runs a script to its end. See start_job."""
    with start_job(script, np, *args, readers=readers, env=env, launcher=launcher, cwd=cwd, left=left) as job:
        job.finish(timeout)
        return job
