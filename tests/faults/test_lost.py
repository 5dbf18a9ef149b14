# SPDX-License-Identifier: Apache-2.0
"""A process is killed, without a word, in the middle of an epoch: the job ends within seconds, and survivors say why."""

import time

import pytest
from jobs import SOON, start_job
from ranks.launch import open_mpi

pytestmark = [pytest.mark.limit(120), pytest.mark.usefixtures("verified")]

# Batches large enough that one is always on its way, and an endless epoch.
TRAIN = """
import sys, time
import tensorflow as tf
import horovod_data as hvdata

hvdata.init()
source = tf.data.Dataset.from_tensors(tf.zeros([1 << 20])).repeat()
ds = hvdata.distribute_dataset(lambda: source, batch="per_rank", name="train")
hvdata.serve()
for step, _ in enumerate(ds):
    if step == 10:
        print("under way", flush=True)
    time.sleep(0.01)
"""


# Rank 0 is done, has told those it has made a call with, and reads on for the others.
SERVES_ON = TRAIN.replace("hvdata.serve()\n", "hvdata.scatter(tf.zeros([hvdata.size()]))\n").replace(
    "    time.sleep(0.01)\n",
    """\
    if step == 20 and hvdata.rank() == 0:
        print("is done", flush=True)
        break
    time.sleep(0.01)
""",
)


@pytest.mark.slow
@pytest.mark.parametrize("readers, killed, name", [(0, 1, "rank 1 on "), (0, 0, "rank 0 on "), (1, 2, "reader 0 on ")])
def test_a_killed_process(readers, killed, name):
    """A trainer, the reader that trains, a dedicated reader (the last process)."""
    with start_job(TRAIN, 3 - readers, readers=readers) as job:
        for rank in range(3 - readers):
            job.wait_for("under way", rank, timeout=100)
        began = time.monotonic()
        job.kill_rank(killed)
        assert job.finish(40) != 0, job.describe()
        seconds = time.monotonic() - began
    assert seconds < SOON, seconds
    said = [err for rank, err in enumerate(job.stderr) if rank != killed]
    if open_mpi():
        assert any(name in err and "has died" in err for err in said), job.describe()
    else:  # Hydra kills the others before they know
        assert "Killed (signal 9)" in job.log, job.describe()


@pytest.mark.commit
def test_a_reader_that_is_done_and_reads_on():
    with start_job(SERVES_ON, 3) as job:
        job.wait_for("is done", 0, timeout=100)
        for rank in (1, 2):
            job.wait_for("under way", rank, timeout=100)
        time.sleep(1)  # BYE is said within it
        began = time.monotonic()
        job.kill_rank(0)
        assert job.finish(40) != 0, job.describe()
        seconds = time.monotonic() - began
    assert seconds < SOON, seconds
    if open_mpi():
        assert any(
            "rank 0 on " in err and "has died (here: channel train, epoch 1, step " in err for err in job.stderr[1:]
        ), job.describe()
