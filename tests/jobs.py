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
import json
import os
import re
import shlex
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

def say(*words):  # in one piece, because ranks may share the output
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

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

_FOLDERS = tempfile.TemporaryDirectory(prefix="hvdata-jobs-")  # tests read them after the ends of jobs


def program(body: str, before: str = "", init: str = _INIT, tensorflow: bool | None = None) -> str:
    """Returns the text of a program.

    It has common imports, say(), now(), train(), load(), slowly(), `init`, `rank` and `size`, and then `body`. It
    imports TensorFlow if `tensorflow` says so, or None and it uses TensorFlow, because this import takes longest.
    """
    if tensorflow is None:
        tensorflow = bool(re.search(r"\b(tf\.|train\(|tensorflow)", before + init + body))
    libraries = _LIBRARIES.replace("{tensorflow}", "import tensorflow as tf" if tensorflow else "")
    return libraries.replace("{before}", before) + init + body


class Job(launch.RunningJob):
    """A job that a test waits for, and whose output it compares."""

    returncode: int | None = None
    seconds = 0.0

    @property
    def stdout(self) -> list[str]:
        """The output of each rank so far."""
        return [self.read("out", rank) for rank in range(self.processes)]

    @property
    def stderr(self) -> list[str]:
        return [self.read("err", rank) for rank in range(self.processes)]

    def wait_for(self, text: str, rank: int, timeout: float = 60) -> None:
        """Waits until rank `rank` has written `text` to stdout or stderr."""
        written = lambda: text in self.stdout[rank] + self.stderr[rank]
        self.wait_until(written, f"rank {rank} did not write {text!r}", timeout)

    def wait_until(self, true: Callable[[], bool], otherwise: str, timeout: float = 60) -> None:
        """Fails with the text `otherwise` if the job ends before `true()`, or if that takes longer than `timeout` (more
        on slow machines)."""
        timeout *= 2 * slowness()
        deadline = time.monotonic() + timeout
        while not true():
            ended = self.poll() is not None and not true()  # it may have become true just before the end
            if ended or time.monotonic() > deadline:
                why = "before the job ended" if ended else f"in {timeout:g} s"
                raise AssertionError(f"{otherwise} {why}\n{self.describe()}")
            time.sleep(0.02)

    def finish(self, timeout: float = 60) -> int:
        """Waits for the end of the job and returns its status.

        If the job takes longer than `timeout` (more on slow machines), ends it, and fails the test with the stacks of
        all ranks.
        """
        timeout *= 2 * slowness()
        status = self.wait(timeout)
        if status is None:
            stacks = self.stacks()
            self.kill()
            shown = "".join(f"\n===== rank {rank}: stacks =====\n{text}" for rank, text in stacks.items())
            raise AssertionError(f"the job had not ended after {timeout:g} s\n{self.describe()}{shown}")
        self.returncode = status
        self.seconds = time.monotonic() - self.started
        return status

    def finish_soon(self) -> int:
        """Does the same for a job that must end in SOON seconds from now."""
        began = time.monotonic()
        status = self.finish(SOON)
        assert time.monotonic() - began < SOON, self.describe()
        return status

    def when(self, word: str, rank: int) -> float:
        """The time that `rank` has printed by print(word, time.monotonic())."""
        written = re.search(rf"^{re.escape(word)} ([\d.]+)$", self.stdout[rank], re.MULTILINE)
        assert written, self.describe()
        return float(written[1])

    def assert_soon(self, word: str, rank: int) -> None:
        """The job ended soon after `rank` had called now(word)."""
        assert self.started + self.seconds - self.when(word, rank) < SOON, self.describe()

    def assert_said(self, pattern: str, *ranks: int) -> None:
        """Each of these ranks has written a text that matches; without ranks: at least one rank has."""
        texts = [out + err for out, err in zip(self.stdout, self.stderr)]
        found = [re.search(pattern, text, re.MULTILINE) is not None for text in texts]
        assert all(found[rank] for rank in ranks) if ranks else any(found), f"no {pattern!r}\n{self.describe()}"

    def told(self, word: str, *ranks: int) -> list[Any]:
        """What these ranks, or all, have printed by say(word, json.dumps(it))."""
        outs = [out for rank, out in enumerate(self.stdout) if not ranks or rank in ranks]
        return [json.loads(line) for out in outs for line in re.findall(f"^{word} (.*)", out, re.MULTILINE)]

    def describe(self) -> str:
        """All output, for failure texts: assert job.returncode == 0, job.describe()."""
        parts = [f"===== launcher: status {self.returncode} =====\n{self.log()}"]
        for kind, texts in (("out", self.stdout), ("err", self.stderr)):
            parts += [f"===== std{kind} of rank {rank} =====\n{text}" for rank, text in enumerate(texts) if text]
        return "\n".join(parts)

    def assert_gone(self, seconds: float) -> None:
        left = self.left(seconds)
        assert not left, f"the job has ended, and {left} still run\n{self.describe()}"


@contextlib.contextmanager
def start_job(
    script: str | Path,
    np: int,
    *args: str,
    readers: int = 0,
    env: Mapping[str, str | None] | None = None,
    launcher: str = "",
    cwd: Path | None = None,
    running: Callable[..., Job] = Job,
    left: float = SOON,
) -> Iterator[Job]:
    """Starts a script (its text or its path) on np + readers ranks, and kills its processes at the end.

    Fails the test if a process still runs `left` seconds after finish(). `env` adds to the test defaults, and None
    unsets a variable. `launcher` is a command line that takes -np, such as "horovodrun --gloo". The default is the
    mpirun under test. `running` takes the arguments of Job and starts the job, for example on other hosts.
    """
    directory = Path(tempfile.mkdtemp(dir=_FOLDERS.name))
    if isinstance(script, str):
        path = directory / "script.py"
        path.write_text(script)
    else:
        path = script.resolve()
    job = running(
        [sys.executable, str(path), *args],
        np + readers,
        directory,
        readers=readers,
        env=env,
        launch=shlex.split(launcher) if launcher else None,
        cwd=cwd,
    )
    try:
        yield job
        if job.returncode is not None:
            job.assert_gone(left)
    except pytest.fail.Exception:  # the test's own time limit: print the stacks of the ranks
        if job.poll() is None:
            for rank, text in job.stacks().items():
                print(f"\n===== rank {rank}: stacks =====\n{text}", file=sys.stderr)
        raise
    finally:
        job.kill()


def run_job(script: str | Path, np: int, *args: str, status: int | None = 0, timeout: float = 60, **more: Any) -> Job:
    """Runs a script to its end, and asserts its status. With None the caller looks at it. See start_job."""
    with start_job(script, np, *args, **more) as job:
        job.finish(timeout)
        assert status in (None, job.returncode), job.describe()
        return job


def run_program(
    body: str, np: int, *args: str, before: str = "", init: str = _INIT, tensorflow: bool | None = None, **more: Any
) -> Job:
    """Runs a program() to its end. See run_job."""
    return run_job(program(body, before, init, tensorflow), np, *args, **{"timeout": 120, **more})
