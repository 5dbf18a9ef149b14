# SPDX-License-Identifier: Apache-2.0
"""Jobs of several ranks, for tests of a job's exit status, output and duration.

job = run_program("say(rank, list(train(lambda: tf.data.Dataset.range(8))))", np=2)  # a program(), to its end
job.assert_said(r"^0 ", 0)
job = run_job(script, np=2)                   # a script of its own
with start_job(script, np=3) as job:          # for tests that disturb it
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
from typing import Any

import pytest
from ranks import launch
from ranks.slowness import slowness

# The seconds in which a fault must end a job or become an error: the 10 of docs/guarantees.md, times the slowness of
# the machine. It is three times that if HVDATA_TEST_LIMIT is set, for example with sanitizers.
SOON = (30 if os.environ.get("HVDATA_TEST_LIMIT") else 10) * slowness()

# Most programs of ranks begin with this text. `before` stands in front of the import of TensorFlow.
_LIBRARIES = """
import contextlib, gc, json, multiprocessing, os, re, signal, sys, threading, time
{before}
import numpy as np
{tensorflow}
import horovod_data as hvdata

def say(*words):
    print(*words, flush=True)

def now(word):  # for Job.when()
    print(word, time.monotonic(), flush=True)

def train(make, batch="per_rank", name="train", **options):
    return hvdata.distribute_dataset(make, batch=batch, name=name, **options)

def load(source, batch="per_rank", name="train", **options):  # without TensorFlow
    return hvdata.loader(source, batch=batch, name=name, **options)

def slowly(rows, pause, width):  # of all readers together
    def function(context):
        class Rows:
            def __iter__(self):
                for i in range(rows // context.num_input_pipelines):
                    time.sleep(pause)
                    yield np.full(width, i, np.float32)
        return Rows()
    return function
"""
_INIT = """
hvdata.init()
rank, size = hvdata.rank(), hvdata.size()
"""

_FOLDERS = tempfile.TemporaryDirectory(
    prefix="hvdata-jobs-"
)  # tests read them after a job's end; removed when this process ends


def program(body: str, before: str = "", init: str = _INIT) -> str:
    """Returns the text of a program.

    It has common imports, say(), now(), train(), load(), slowly(), `init`, `rank` and `size`, and then `body`. It
    imports TensorFlow only if it uses it, because this import takes longest.
    """
    uses = re.search(r"\b(tf\.|train\(|tensorflow)", before + init + body)
    libraries = _LIBRARIES.replace("{tensorflow}", "import tensorflow as tf" if uses else "")
    return libraries.replace("{before}", before) + init + body


class Job:
    def __init__(self, running: launch.RunningJob) -> None:
        self._running = running
        self.returncode: int | None = None
        self.seconds = 0.0

    @property
    def stdout(self) -> list[str]:
        """The output of each rank so far."""
        return [self._running.read("out", rank) for rank in range(self._running.processes)]

    @property
    def stderr(self) -> list[str]:
        return [self._running.read("err", rank) for rank in range(self._running.processes)]

    @property
    def log(self) -> str:
        """The output of the launcher itself."""
        return self._running.log()

    def pid(self, rank: int) -> int | None:
        return self._running.pid(rank)

    def alive(self, rank: int) -> bool:
        return self._running.alive(rank)

    def kill_rank(self, rank: int, number: int = signal.SIGKILL) -> None:
        self._running.signal(rank, number)

    @property
    def findings(self) -> str:
        """The findings of sanitizers, if the job runs under them."""
        return self._running.findings()

    def wait_for(self, text: str, rank: int, timeout: float = 60) -> None:
        """Waits until rank `rank` has written `text` to stdout or stderr."""
        timeout *= 2 * slowness()
        deadline = time.monotonic() + timeout
        while text not in self.stdout[rank] + self.stderr[rank]:
            ended = self._running.poll() is not None and text not in self.stdout[rank] + self.stderr[rank]
            if ended or time.monotonic() > deadline:
                why = "before the job ended" if ended else f"in {timeout:g} s"
                raise AssertionError(f"rank {rank} did not write {text!r} {why}\n{self.describe()}")
            time.sleep(0.02)

    def finish(self, timeout: float = 60) -> int:
        """Waits for the end of the job and returns its status.

        If the job takes longer than `timeout` (more on slow machines), ends it, and fails the test with the stacks of
        all ranks.
        """
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
        """The time that `rank` has printed by print(word, time.monotonic())."""
        written = re.search(rf"^{re.escape(word)} ([\d.]+)$", self.stdout[rank], re.MULTILINE)
        assert written, self.describe()
        return float(written[1])

    def seconds_since(self, word: str, rank: int) -> float:
        """Seconds from when() to the end of the job."""
        return self._running.started + self.seconds - self.when(word, rank)

    def assert_soon(self, word: str, rank: int) -> None:
        """The job ended soon after `rank` had called now(word)."""
        assert self.seconds_since(word, rank) < SOON, self.describe()

    def assert_said(self, pattern: str, *ranks: int) -> None:
        """Each of these ranks has written a text that matches; without ranks: at least one rank has."""
        texts = [out + err for out, err in zip(self.stdout, self.stderr)]
        found = [re.search(pattern, text, re.MULTILINE) is not None for text in texts]
        assert all(found[rank] for rank in ranks) if ranks else any(found), f"no {pattern!r}\n{self.describe()}"

    def describe(self) -> str:
        """All output, for failure texts: assert job.returncode == 0, job.describe()."""
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
    """Starts a script (its text or its path) on np + readers ranks, and kills its processes at the end.

    Fails the test if a process still runs `left` seconds after finish(). `env` adds to the test defaults, and None
    unsets a variable. `launcher` is a command line that takes -np, such as "horovodrun --gloo". The default is the
    mpirun under test. `running` takes the arguments of RunningJob and starts the job, for example on other hosts.
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
    except pytest.fail.Exception:  # the test's own time limit: print the stacks of the ranks
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


def run_program(
    body: str, np: int, *args: str, status: int | None = 0, before: str = "", init: str = _INIT, timeout: float = 120,
    **more: Any,
) -> Job:  # fmt: skip
    """Runs program(body, before, init) to its end, and asserts its status. With None the caller looks at the status."""
    job = run_job(program(body, before, init), np, *args, timeout=timeout, **more)
    assert status is None or job.returncode == status, job.describe()
    return job
