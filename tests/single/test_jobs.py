# SPDX-License-Identifier: Apache-2.0
"""The helper with which tests of faults start their jobs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jobs import run_job, start_job
from ranks.launch import until


def test_status_output_and_environment_of_every_rank():
    job = run_job(
        "import os, sys; print('rank', os.environ['HVDATA_TEST_RANK']);"
        "print(os.environ['HOROVOD_DATA_READERS'], os.environ['FLAVOUR'], sys.argv[1], file=sys.stderr)",
        2,
        "argument",
        readers=1,
        env={"FLAVOUR": "sour"},
    )
    assert job.stdout == ["rank 0\n", "rank 1\n", "rank 2\n"]
    assert job.stderr == ["1 sour argument\n"] * 3
    assert 0 < job.seconds < 120


def test_job_that_hangs_fails_with_the_stacks_and_leaves_no_process():
    with start_job("import time\ndef forever():\n    time.sleep(99)\nprint('up')\nforever()", 2) as job:
        for rank in 0, 1:
            job.wait_for("up", rank)
        assert job.alive(0) and job.alive(1)
        shown = r"(?s)not ended after \S+ s.*rank 0: stacks.*in forever.*rank 1: stacks.*in forever"
        with pytest.raises(AssertionError, match=shown):
            job.finish(0.1)
    assert not job.alive(0) and not job.alive(1)


@pytest.mark.parametrize("session", [False, True], ids=["child", "daemon"])
def test_a_process_that_is_left_fails_and_is_ended(session):
    """A process whose parent has ended, and a process with a session of its own."""
    script = (
        "import subprocess, sys; print(subprocess.Popen(['sleep', '99'], stdout=subprocess.DEVNULL, "
        f"start_new_session={session}).pid)"
    )
    with pytest.raises(
        AssertionError, match=r"(?s)the job has ended, and \['(\d+): sleep 99 '\] still run.*of rank 0 =====\n\1"
    ) as raised:
        run_job(script, 1, left=1)
    pid = int(re.search(r"\d+", str(raised.value))[0])
    assert until(lambda: not Path(f"/proc/{pid}").exists(), 10)


def test_waiting_for_a_text_that_never_comes():
    with start_job("print('something else')", 1) as job:
        with pytest.raises(AssertionError, match="(?s)'word' before the job ended.*something else"):
            job.wait_for("word", 0, timeout=30)
