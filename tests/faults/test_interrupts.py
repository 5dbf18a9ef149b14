# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while a rank waits for data or for others: the wait returns to Python."""

import pytest
from jobs import run_job

pytestmark = pytest.mark.usefixtures("verified")

PRELUDE = """
import os, signal, threading, time
import tensorflow as tf
import horovod_data as hvdata

hvdata.init()

def interrupt_after(seconds):
    threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT)).start()

def interrupted(call):
    interrupt_after(1)
    began = time.monotonic()
    try:
        call()
    except (KeyboardInterrupt, RuntimeError) as error:  # TensorFlow may wrap it when an op returns at that moment
        print("interrupted by", repr(error), flush=True)
        assert "KeyboardInterrupt" in repr(error)
    assert time.monotonic() - began < 3, time.monotonic() - began
"""

NEXT = PRELUDE + """
def slow():
    yield from range(hvdata.size())
    time.sleep(6)
    yield from range(hvdata.size(), 2 * hvdata.size())

source = tf.data.Dataset.from_generator(slow, output_signature=tf.TensorSpec([], tf.int64))
ds = hvdata.distribute_dataset(source, batch="per_rank")
it = iter(ds)
print("got", int(next(it)))
if hvdata.rank() == hvdata.size() - 1:
    interrupted(lambda: next(it))
    del it
else:
    print("rest", [int(x) for x in it], flush=True)
"""

DISTRIBUTE = PRELUDE + """
if hvdata.rank() == 1:
    interrupted(lambda: hvdata.distribute_dataset(None, batch="per_rank"))
else:
    time.sleep(8)
os._exit(0)
"""


@pytest.mark.parametrize("np", [1, 2])
def test_in_next(np):
    """The interrupted rank lets go of its iterator, the others get the rest."""
    job = run_job(NEXT, np, timeout=60)
    assert "KeyboardInterrupt" in job.stdout[np - 1], job.describe()
    for rank in range(np - 1):
        assert f"rest [{np + rank}]" in job.stdout[rank], job.describe()
    assert job.returncode == 0, job.describe()


def test_in_distribute_dataset():
    job = run_job(DISTRIBUTE, 2, timeout=60)
    assert "KeyboardInterrupt" in job.stdout[1], job.describe()
