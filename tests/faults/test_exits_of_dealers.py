# SPDX-License-Identifier: Apache-2.0
"""A reader leaves: its dealers, and the sessions in which they run datasets of TF1 graphs, end before Python does."""

import os
import subprocess
import sys

import jobs
import pytest

pytestmark = pytest.mark.limit(150)

# Six datasets of TF1 graphs, each iterated to its end where batches come.
SIX = """
import gc, os, sys, threading
gc.disable()  # so that all six graphs, and with them the channels, are there to the end
import tensorflow as tf
tf.get_logger().setLevel("ERROR")
v1 = tf.compat.v1

def six():
    import horovod_data as hvdata
    hvdata.init()
    v1.disable_eager_execution()
    for _ in range(6):
        with tf.Graph().as_default(), v1.Session() as session:
            source = v1.data.Dataset.from_generator(lambda: iter(range(5)), tf.int64, []) if hvdata.is_reader() else None
            iterator = v1.data.make_initializable_iterator(hvdata.distribute_dataset(source, batch="per_rank"))
            if not hvdata.is_trainer():
                continue
            fetch = iterator.get_next()
            session.run(iterator.initializer)
            got = []
            while True:
                try:
                    got.append(int(session.run(fetch)))
                except tf.errors.OutOfRangeError:
                    break
            assert got, "no step"
    return hvdata
"""

# Jobs of one rank, two at a time. They are forked before TensorFlow starts threads, so they need not import TensorFlow.
# Each job initialises MPI and exits like any program, through the whole end of Python. Each job has its own folder for
# temporary files. In a common folder, files of Open MPI from a new job would disturb a job that ends.
MANY = (
    SIX
    + """
import shutil, tempfile
folder = tempfile.mkdtemp(prefix="hvx-")
failed = []

def reap():
    pid, status = os.wait()
    if status:
        failed.append(os.waitstatus_to_exitcode(status))

running = 0
for number in range(int(sys.argv[1])):
    if running == 2:
        reap()
    else:
        running += 1
    if os.fork() == 0:
        running = 0
        os.environ["TMPDIR"] = f"{folder}/{number}"
        os.mkdir(os.environ["TMPDIR"])
        six()
        sys.exit(0)
for _ in range(running):
    reap()
shutil.rmtree(folder, ignore_errors=True)
print("failed:", failed, flush=True)
os._exit(bool(failed))
"""
)


EXITS = 196 if os.environ.get("HVDATA_TEST_ALL_FAULTS") == "1" else 36  # each takes a second of a core


@pytest.mark.slow
@pytest.mark.limit(1500)
def test_no_exit_aborts(tmp_path):
    """A thread closes a session while Python, at its end, ends that thread in the middle of C++ code."""
    script = tmp_path / "many.py"
    script.write_text(MANY)
    command = [sys.executable, str(script), str(EXITS)]
    env = jobs.launch.environment(tmp_path, 0, {})
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60 + 6 * EXITS)
    assert done.returncode == 0 and "failed: []" in done.stdout, done.stdout[-3000:] + done.stderr[-6000:]


@pytest.mark.commit("0")
@pytest.mark.parametrize("readers", [0, 1])
def test_no_dealer_outlives_shutdown(readers):
    """No session of a dealer outlives shutdown(), either."""
    script = (
        SIX
        + """
hvdata = six()
try:
    hvdata.serve()  # leaves on a dedicated reader
    hvdata.shutdown()
except SystemExit:
    pass
left = [thread.name for thread in threading.enumerate() if "dealer" in thread.name]
gc.enable()
gc.collect()
open_sessions = [one for one in gc.get_objects() if type(one).__name__ == "Session" and not one._closed]
print("left:", left, len(open_sessions), flush=True)
"""
    )
    job = jobs.run_job(script, np=2 - readers, readers=readers, timeout=120)
    assert job.returncode == 0 and all("left: [] 0" in out for out in job.stdout), job.describe()
