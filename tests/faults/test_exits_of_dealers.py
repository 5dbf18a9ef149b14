# SPDX-License-Identifier: Apache-2.0
"""A reader leaves: its dealers, and the sessions in which they run datasets of TF1 graphs, end before Python does."""

import os

import pytest
from jobs import run_program

pytestmark = pytest.mark.limit(150)

# Six datasets of TF1 graphs, each iterated to its end where batches come.
SIX = """
gc.disable()  # so that all six graphs, and with them the channels, are there to the end
v1 = tf.compat.v1
v1.disable_eager_execution()
for _ in range(6):
    with tf.Graph().as_default(), v1.Session() as session:
        source = v1.data.Dataset.from_generator(lambda: iter(range(5)), tf.int64, []) if hvdata.is_reader() else None
        iterator = v1.data.make_initializable_iterator(train(source, name=None))
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
"""
EXITS = 196 if os.environ.get("HVDATA_TEST_ALL_FAULTS") == "1" else 36


@pytest.mark.slow
@pytest.mark.limit(1500)
def test_no_exit_aborts():
    """A thread closes a session while Python, at its end, ends that thread in the middle of C++ code.

    Each process is a job of its own.
    """
    for _ in range(EXITS // 4):
        run_program(SIX, 4, before="from mpi4py import MPI", init="hvdata.init(comm=MPI.COMM_SELF)\n")


@pytest.mark.commit("0")
@pytest.mark.parametrize("readers", [0, 1])
def test_no_dealer_outlives_shutdown(readers):
    """No session of a dealer outlives shutdown(), either."""
    script = SIX + """
try:
    hvdata.serve()  # leaves on a dedicated reader
    hvdata.shutdown()
except SystemExit:
    pass
left = [thread.name for thread in threading.enumerate() if "dealer" in thread.name]
gc.enable()
gc.collect()
open_sessions = [one for one in gc.get_objects() if type(one).__name__ == "Session" and not one._closed]
say("left:", left, len(open_sessions))
"""  # fmt: skip
    job = run_program(script, 2 - readers, readers=readers)
    assert all("left: [] 0" in out for out in job.stdout), job.describe()
