# SPDX-License-Identifier: Apache-2.0
"""Several readers on bad days: what they say, and how the job ends."""

import json
import re
import signal
import socket
import time

import pytest
from jobs import SOON, run_job, start_job
from ranks.launch import open_mpi
from ranks.worlds import CAN_NAME_HOSTS

pytestmark = [pytest.mark.limit(120), pytest.mark.usefixtures("verified")]
HOST = re.escape(socket.gethostname())
PRELUDE = """
import json, os, sys, time
import numpy as np
import tensorflow as tf
import horovod_data as hvdata
hvdata.init()
"""
two_hosts = {"HVDATA_TEST_HOSTS": "2", "HOROVOD_DATA_READERS_PER_NODE": "1", "HOROVOD_DATA_EMBEDDED": "1"}
needs_hosts = pytest.mark.skipif(not CAN_NAME_HOSTS, reason="host names of their own need root")


def said(text: str, pattern: str) -> list[str]:
    return re.findall(pattern, text, re.S)


@pytest.mark.commit
def test_readers_leave_with_status_0_when_the_trainers_are_done():
    job = run_job(
        PRELUDE
        + """
ds = hvdata.distribute_dataset(lambda context: tf.data.Dataset.range(10), batch="per_rank")
hvdata.serve()
print("after serve", hvdata.rank(), flush=True)
list(ds)
""",
        np=2,
        readers=2,
        timeout=90,
    )
    assert job.returncode == 0, job.describe()
    assert ["after serve" in text for text in job.stdout] == [True, True, False, False]


@pytest.mark.parametrize("make, warns", [
    ("lambda: tf.data.Dataset.range(8).map(lambda i: i + 1)", True),
    ("lambda context: tf.data.TextLineDataset('/dev/null').concatenate(tf.data.TextLineDataset('/dev/null'))", True),
    ("lambda context: tf.data.Dataset.range(8).shard(context.num_input_pipelines, context.input_pipeline_id)", False),
    ("lambda: tf.data.Dataset.from_generator(lambda: iter([1]), output_signature=tf.TensorSpec([], tf.int64))", False),
    # To compare these would be slow.
    ("lambda: tf.data.Dataset.from_tensor_slices(np.zeros(5_000_000))", False),
    ("lambda big=tf.zeros(5_000_000): tf.data.Dataset.range(8).map(lambda i: big[i]).prefetch(1)", False),
    ("lambda big=np.zeros(5_000_000): tf.data.Dataset.range(8).map(lambda i: tf.gather(big, i))", False),
    ("lambda: tf.data.Dataset.range(8).flat_map(lambda i, big=tf.data.Dataset.from_tensor_slices(tf.zeros(5_000_000)): big)", False),
])  # fmt: skip
def test_readers_that_read_the_same(make, warns):
    job = run_job(
        PRELUDE
        + f"""
ds = hvdata.distribute_dataset({make}, batch="per_rank", name="same")
hvdata.serve()
next(iter(ds), None)
""",
        np=1,
        readers=2,
        timeout=90,
    )
    assert job.returncode == 0, job.describe()
    pattern = (
        rf"\[reader 0 on {HOST}, channel same\] reader 0 on {HOST}, reader 1 on {HOST} have the same pipeline: if they "
        "find the same data too, every element is delivered several times. Let the dataset function take a "
        r"tf\.distribute\.InputContext and shard its files"
    )
    assert [len(said(text, pattern)) for text in job.stderr] == [0, int(warns), 0], job.describe()


def test_an_odd_rest_is_dropped_once():
    job = run_job(
        PRELUDE
        + """
ds = hvdata.distribute_dataset(lambda context: tf.data.Dataset.range(3 + context.input_pipeline_id), batch="per_rank", name="d")
hvdata.serve()
for _ in range(2): assert len(list(ds)) == 3
""",
        np=2,
        readers=2,
        timeout=90,
    )
    assert job.returncode == 0, job.describe()
    lines = [
        said(text, r"reader (\d) on [^]]*\] remainder=\"drop\" left out (\d+) element\(s\) of this epoch")
        for text in job.stderr
    ]
    assert lines == [[], [], [("0", "1")] * 2, []], job.describe()


@pytest.mark.commit
def test_a_reader_that_fails_and_is_left_behind():
    job = run_job(
        PRELUDE
        + """
def make(context):
    ds = tf.data.Dataset.range(10)
    if context.input_pipeline_id == 1:
        ds = ds.map(lambda i: tf.debugging.check_numerics(1.0 / tf.cast(i - 4, tf.float32), "bad row")).map(lambda x: tf.cast(x, tf.int64))
    return ds
ds = hvdata.distribute_dataset(make, batch="per_rank", name="c", on_reader_error="continue")
hvdata.serve()
assert len(list(ds)) == (10 + 4) // 2
""",
        np=2,
        readers=2,
        timeout=90,
    )
    assert job.returncode == 0, job.describe()
    pattern = (
        rf"\[reader 1 on {HOST}, channel c, epoch 1, step 2 of its own\] .*bad row.*on_reader_error=\"continue\": the epoch goes on "
        r"without this reader; 6 of its 10 elements are lost"
    )
    assert [len(said(text, pattern)) for text in job.stderr] == [0, 0, 0, 1], job.describe()


def test_a_checkpoint_that_cannot_be_used_is_no_failing_pipeline(tmp_path):
    """It is an error everywhere, whatever on_reader_error says."""
    job = run_job(
        PRELUDE
        + """
rows = lambda context: tf.data.Dataset.from_generator(lambda: iter(np.random.permutation(40)), output_signature=tf.TensorSpec([], tf.int64))
ds = hvdata.distribute_dataset(rows, batch="per_rank", on_reader_error="continue")
hvdata.serve()
iterator = iter(ds)
for _ in range(3): next(iterator)
checkpoint = tf.train.Checkpoint(iterator=iterator)
path = checkpoint.write(f"{sys.argv[1]}/{hvdata.rank()}")
checkpoint.read(path)
try:
    print("DELIVERED", len(list(iterator)), flush=True)
except tf.errors.DataLossError as error:
    print("LOST", error, flush=True)
""",
        2,
        str(tmp_path),
        readers=2,
        timeout=90,
    )
    assert job.returncode == 0, job.describe()
    assert all("LOST" in job.stdout[rank] for rank in range(2)), job.describe()


@needs_hosts
def test_what_the_end_of_another_host_leaves_out():
    script = (
        PRELUDE
        + """
lengths = json.loads(sys.argv[1])
ds = hvdata.distribute_dataset(lambda context: tf.data.Dataset.range(lengths[context.input_pipeline_id]), batch="per_rank", name="d")
assert len(list(ds)) == min(lengths)
"""
    )
    for lengths, who in (([3, 9], 1), ([9, 3], 0), ([5, 5], None)):
        job = run_job(script, 2, json.dumps(lengths), timeout=90, env=two_hosts)
        assert job.returncode == 0, job.describe()
        for rank in range(2):
            told = said(
                job.stderr[rank],
                rf"\[reader {rank} on host{rank}, channel d, epoch 1, step {min(lengths)}\] remainder=\"drop\": "
                r"the data of another host has ended, and with it the epoch; (.+?) left out",
            )
            # How much of a longer pipeline was ready by then, and whether one of the same length knew it, is timing.
            maybe = ["what the pipeline of this reader would still have yielded, if anything, is"]
            ready = re.compile(r"\d step\(s\) that this reader had ready are")
            if rank == who:
                assert len(told) == 1 and (told == maybe or ready.match(told[0])), job.describe()
            else:
                assert told in ([], maybe if who is None else []), job.describe()


@pytest.mark.parametrize("victim", [0, 2, 3], ids=["a trainer", "reader 0", "reader 1"])
def test_a_killed_process_ends_the_job(victim):
    with start_job(
        PRELUDE
        + """
ds = hvdata.distribute_dataset(lambda context: tf.data.Dataset.range(10).repeat(), batch="per_rank", name="long")
hvdata.serve()
for step, _ in enumerate(ds):
    if step == 100: print("going", flush=True)
""",
        np=2,
        readers=2,
    ) as job:
        for rank in range(2):
            job.wait_for("going", rank=rank)
        began = time.monotonic()
        job.kill_rank(victim, signal.SIGKILL)
        assert job.finish(30) != 0 and time.monotonic() - began < SOON, job.describe()
        others = "".join(text for rank, text in enumerate(job.stderr) if rank != victim)
        role = "rank 0" if victim == 0 else f"reader {victim - 2}"
        if open_mpi():
            assert re.search(rf"{role} on {HOST} \(process \d+\) has died", others), job.describe()
        else:  # Hydra kills the others before they know
            assert "Killed (signal 9)" in job.log, job.describe()


@pytest.mark.commit
def test_an_uncaught_exception_in_a_readers_script_ends_the_job():
    job = run_job(
        PRELUDE
        + """
ds = hvdata.distribute_dataset(lambda context: tf.data.Dataset.range(10), batch="per_rank")
if hvdata.is_reader() and hvdata.num_readers() == 2 and os.environ["HVDATA_TEST_RANK"] == "3":
    raise RuntimeError("this reader has had enough")
hvdata.serve()
list(ds)
""",
        np=2,
        readers=2,
        timeout=90,
    )
    assert job.returncode != 0
    assert "this reader has had enough" in job.stderr[3], job.describe()
