# SPDX-License-Identifier: Apache-2.0
"""When nothing moves: who waits for whom, since which step and on which host, and why; on the rank and on the reader."""

import re
import signal
import socket
import time

import pytest
from jobs import run_job, start_job
from ranks.worlds import CAN_NAME_HOSTS

pytestmark = [
    pytest.mark.limit(120),
    pytest.mark.slow,
    pytest.mark.usefixtures("verified"),
]  # quick: tests/mpi/test_waits.py
HOST = re.escape(socket.gethostname())
# A rank that waits asks the reader after two seconds of three. A reader that was asked logs that once in 50 s.
SOON = {"HOROVOD_DATA_STALL_SECONDS": "3"}
PRELUDE = """
import os, sys, time
import numpy as np
import tensorflow as tf
import horovod_data as hvdata
hvdata.init()

def slow(i):
    if i == 2:
        time.sleep(float(os.environ.get("SLEEP", 9)))
    return i
"""


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("horovod_data: ")]


def assert_said(text: str, pattern: str, job) -> None:
    assert [line for line in lines(text) if re.search(pattern, line)], f"{pattern!r} not in:\n{job.describe()}"


@pytest.fixture(scope="module", autouse=True)
def more_than_a_minute():
    """A job that waits. It runs beside the jobs of the tests before the one that checks it."""
    with start_job(
        PRELUDE
        + """
make = lambda: tf.data.Dataset.range(4).map(lambda i: tf.numpy_function(slow, [i], tf.int64))
ds = hvdata.distribute_dataset(make, batch="per_rank", name="train")
hvdata.serve()
for _ in ds: pass
""",
        np=1,
        readers=1,
        env={**SOON, "SLEEP": "72"},
    ) as job:
        yield job


def test_a_rank_that_takes_nothing():
    job = run_job(
        PRELUDE
        + """
ds = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(40), batch="per_rank", name="train", prefetch=1)
hvdata.serve()
for step, _ in enumerate(ds):
    if hvdata.rank() == 1 and step == 5: time.sleep(9)
""",
        np=2,
        readers=1,
        env=SOON,
        timeout=90,
    )
    assert job.returncode == 0, job.describe()
    why = rf"reader 0 on {HOST} has dealt \d+ steps and waits until rank 1 on {HOST} has taken more of them"
    assert_said(job.stderr[0], rf"\[rank 0 on {HOST}, channel train, epoch 1, step 7\] has waited \d+ s .*: {why}", job)


def test_a_reader_that_is_stopped():
    """Nothing comes from it at all: the same as of a link that is silent."""
    with start_job(
        PRELUDE
        + """
import signal

def stopped(i):
    if i == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    return i

make = lambda: tf.data.Dataset.range(4).map(lambda i: tf.numpy_function(stopped, [i], tf.int64))
ds = hvdata.distribute_dataset(make, batch="per_rank", name="train", prefetch=1)
hvdata.serve()
for i in ds: print("got", int(i), flush=True)
""",
        np=1,
        readers=1,
        env=SOON,
    ) as job:
        job.wait_for("got 1", rank=0)
        job.wait_for(
            "has not answered either: it writes a large state for a checkpoint, its process is stopped, or its link is silent",
            rank=0,
        )
        time.sleep(0.1)
        job.kill_rank(1, signal.SIGCONT)
        assert job.finish(60) == 0, job.describe()
        assert "got 3" in job.stdout[0]


def test_of_several_readers_the_one_whose_step_is_due():
    job = run_job(
        PRELUDE
        + """
def make(context):
    ds = tf.data.Dataset.range(4)
    return ds.map(lambda i: tf.numpy_function(slow, [i], tf.int64)) if context.input_pipeline_id == 1 else ds
ds = hvdata.distribute_dataset(make, batch="per_rank", name="train")
hvdata.serve()
for _ in ds: pass
""",
        np=1,
        readers=2,
        env=SOON,
        timeout=90,
    )
    assert job.returncode == 0, job.describe()
    assert_said(
        job.stderr[0],
        rf"\[rank 0 on {HOST}, channel train, epoch 1, step 5\] has waited \d+ s for step 5 from reader 1 on "
        rf"{HOST}: the pipeline of reader 1 on {HOST} has not produced step 2",
        job,
    )
    assert not [line for line in lines(job.stderr[1]) if "epoch 1, step 5]" in line], job.describe()


@pytest.mark.skipif(not CAN_NAME_HOSTS, reason="host names of their own need root")
def test_a_host_that_another_one_keeps_waiting():
    job = run_job(
        PRELUDE
        + """
def make(context):
    ds = tf.data.Dataset.range(4)
    return ds.map(lambda i: tf.numpy_function(slow, [i], tf.int64)) if context.input_pipeline_id == 1 else ds
ds = hvdata.distribute_dataset(make, batch="per_rank", name="train")
for _ in ds: pass
""",
        np=2,
        timeout=90,
        env={**SOON, "HVDATA_TEST_HOSTS": "2", "HOROVOD_DATA_READERS_PER_NODE": "1", "HOROVOD_DATA_EMBEDDED": "1"},
    )
    assert job.returncode == 0, job.describe()
    why = (
        r"reader 0 on host0 has step 2 and waits for reader 1 on host1, which has not: the pipeline of reader 1 on host1 has "
        r"not produced step 2"
    )
    assert_said(job.stderr[0], rf"\[rank 0 on host0, channel train, epoch 1, step 2\] has waited \d+ s .*: {why}", job)
    assert_said(job.stderr[1], r"\[rank 1 on host1, .*: the pipeline of reader 1 on host1 has not produced step 2", job)


@pytest.mark.skipif(not CAN_NAME_HOSTS, reason="host names of their own need root")
def test_a_host_that_a_rank_of_another_one_keeps_waiting():
    job = run_job(
        PRELUDE
        + """
ds = hvdata.distribute_dataset(lambda context: tf.data.Dataset.range(8), batch="per_rank", name="train", prefetch=1)
for step, _ in enumerate(ds):
    if step == 2 and hvdata.rank() == 1: time.sleep(9)
""",
        np=2,
        timeout=90,
        env={**SOON, "HVDATA_TEST_HOSTS": "2", "HOROVOD_DATA_READERS_PER_NODE": "1", "HOROVOD_DATA_EMBEDDED": "1"},
    )
    assert job.returncode == 0, job.describe()
    why = (
        r"reader 0 on host0 has step \d and waits for reader 1 on host1, which has not: reader 1 on host1 has dealt \d steps and "
        r"waits until rank 1 on host1 has taken more of them"
    )
    assert_said(job.stderr[0], rf"\[rank 0 on host0, .*: {why}", job)


def test_a_rank_that_stops_while_the_others_wait_for_it_elsewhere():
    """Nobody asks why, so the reader says it unasked."""
    with start_job(
        PRELUDE
        + """
ds = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(1000), batch="per_rank", name="train", prefetch=2)
hvdata.serve()
for step, _ in enumerate(ds):
    if step == 6 - hvdata.rank(): time.sleep(600)
""",
        np=2,
        readers=1,
        env=SOON,
    ) as job:
        job.wait_for("nothing has moved", rank=2, timeout=110)
        job.kill_rank(0)
        job.finish(30)
    assert_said(
        job.stderr[2],
        rf"\[reader 0 on {HOST}, channel train, epoch 1, step \d\] nothing has moved for \d+ s: reader 0 on "
        rf"{HOST} has dealt \d steps and waits until rank 1 on {HOST} has taken more of them",
        job,
    )


def test_a_pipeline_that_does_not_produce(more_than_a_minute):
    """For longer than a minute: one line a minute."""
    job = more_than_a_minute
    assert job.finish(110) == 0, job.describe()
    why = rf"the pipeline of reader 0 on {HOST} has not produced step 2 for \d+ s"
    assert_said(
        job.stderr[0],
        rf"\[rank 0 on {HOST}, channel train, epoch 1, step 2\] has waited \d+ s for step 2 from reader 0 on "
        rf"{HOST}: {why}",
        job,
    )
    assert_said(
        job.stderr[1],
        rf"\[reader 0 on {HOST}, channel train, epoch 1, step 2\] rank 0 on {HOST} waits for this step: {why}",
        job,
    )
    for rank in range(2):
        told = [
            int(seconds)
            for line in lines(job.stderr[rank])
            for seconds in re.findall(r"not produced step 2 for (\d+) s", line)
        ]
        assert len(told) == 2 and 55 <= told[1] - told[0] <= 68, job.describe()
