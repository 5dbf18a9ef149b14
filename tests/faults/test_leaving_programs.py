# SPDX-License-Identifier: Apache-2.0
"""A program that leaves where nobody expects it: from its dataset function, or through MPI_Finalize in mid-epoch."""

import re
import time

import pytest
from jobs import SOON, run_job
from ranks.worlds import CAN_NAME_HOSTS

pytestmark = [pytest.mark.limit(150), pytest.mark.usefixtures("verified")]

FROM_THE_FUNCTION = """
import sys, time
from sys import exit as leave  # before init() can see to it
import horovod_data as hvdata
import tensorflow as tf
hvdata.init()

def raises():
    raise SystemExit(3)

def make({parameter}):
    if {when}:
        print("ENDS", time.monotonic(), flush=True)
        {how}
    return tf.data.Dataset.range(8)

ds = hvdata.distribute_dataset(make, batch="per_rank", name="train")
hvdata.serve()
for _ in range(2):
    print("steps", len(list(ds)), flush=True)
"""


@pytest.mark.commit("sys.exit(3)-3-0")
@pytest.mark.parametrize("readers", [0, 1])
@pytest.mark.parametrize(
    "how, status", [("sys.exit(3)", 3), ("raises()", 3), ("leave(3)", 3), ("sys.exit('no data')", 1)]
)
def test_from_the_dataset_function(how, status, readers):
    """Whoever ends first, the reader by it or another rank by the error that it has of it, says who has done that."""
    job = run_job(FROM_THE_FUNCTION.format(parameter="", when="True", how=how), np=2, readers=readers, timeout=90)
    assert job.returncode == status and "steps" not in "".join(job.stdout), job.describe()
    reader = 2 if readers else 0
    assert job.seconds_since("ENDS", reader) < SOON, job.describe()
    assert "no data" not in how or "no data" in "".join(job.stderr), job.describe()
    name = rf"\[{'reader 0' if readers else 'rank 0'} on \S+\]"
    assert re.search(
        rf"{name} (the program ends with status {status}|distribute_dataset\(name='train'\) failed: SystemExit: )",
        "".join(job.stderr),
    ), job.describe()


FROM_THE_MODEL = """
import atexit, sys, time
import tensorflow as tf
import horovod_data as hvdata

hvdata.init()
if hvdata.rank() == 1:
    atexit.register(time.sleep, 3)  # the others end first
hvdata.predict(lambda x: sys.exit(3) if hvdata.rank() == 1 else x, lambda: tf.data.Dataset.range(40).batch(4))
"""


def test_from_a_model_that_predicts():
    """The others hear of it: whoever of them ends first, too, ends with that status."""
    job = run_job(FROM_THE_MODEL, np=3, timeout=90)
    assert job.returncode == 3, job.describe()


@pytest.mark.parametrize("readers", [0, 1])
def test_from_the_call_for_a_later_epoch(readers):
    """Which is not made on the main thread."""
    script = FROM_THE_FUNCTION.format(parameter="epoch", when="epoch == 2", how="sys.exit(3)")
    job = run_job(script, np=2, readers=readers, timeout=90)
    assert job.returncode == 3, job.describe()
    had = [[line for line in out.splitlines() if not line.startswith("ENDS")] for out in job.stdout[:2]]
    assert all(lines in ([], ["steps 4"]) for lines in had) and ["steps 4"] in had, (
        job.describe()
    )  # the job's end may come first
    assert job.seconds_since("ENDS", 2 if readers else 0) < SOON, job.describe()
    place = rf"\[{'reader 0' if readers else 'rank 0'} on \S+, channel train, epoch 2\]"
    assert re.search(
        rf"{place} the dataset function ends the program with status 3, and the job with it",
        job.stderr[2 if readers else 0],
    ), job.describe()


def test_without_a_status_from_the_call_for_a_later_epoch():
    """There is no end of the job to be had from that: an error on every rank."""
    script = FROM_THE_FUNCTION.format(parameter="epoch", when="epoch == 2", how="sys.exit()")
    job = run_job(script, np=2, timeout=90)
    assert job.returncode == 1, job.describe()
    assert any("the dataset function has called sys.exit()" in err for err in job.stderr), job.describe()


FINALIZES = """
import sys, time
import horovod_data as hvdata
import tensorflow as tf
{before}
hvdata.init()
from mpi4py import MPI
ds = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(100).repeat({repeat}), batch="per_rank", name="train")
step = 0
for step, x in enumerate(ds, 1):
    if hvdata.rank() == {leaver} and step == 5:
        print("at", time.time(), flush=True)
        MPI.Finalize()
        sys.exit(0)
    if hvdata.rank() != {leaver}:
        try:
            {collective}
        except Exception as error:
            print("at", time.time(), type(error).__name__, error, flush=True)
            raise
    time.sleep(0.01)
print("steps", step, flush=True)
"""
ALLREDUCE = "hvd.allreduce(tf.zeros(2), name='gradient')"


def times(job):
    return [float(line.split()[1]) for out in job.stdout for line in out.splitlines() if line.startswith("at ")]


@pytest.mark.parametrize("drops", [False, True], ids=["whole", "drops rows"])
def test_the_reader_finalises_mpi_in_mid_epoch(drops):
    """It serves for some seconds more, for ranks that are about to end as well; then the others are told. What was dropped so far
    is no end of the epoch."""
    script = FINALIZES.format(before="", repeat="", leaver=0, collective="pass").replace("range(100)", "range(10**9)")
    if drops:
        script = script.replace(".repeat()", ".batch(3)").replace('batch="per_rank"', 'batch="global"')
    script = script.replace(
        "for step, x in enumerate(ds, 1):",
        """
def shares():
    try:
        yield from ds
    except Exception as error:
        print("at", time.time(), type(error).__name__, error, flush=True)
        raise
for step, x in enumerate(shares(), 1):""",
    )
    job = run_job(script, np=2, timeout=100)
    assert job.returncode == 1, job.describe()
    assert "UnavailableError" in job.stdout[1] and "channel train, epoch 1" in job.stdout[1], job.describe()
    assert "the program of rank 0 on " in job.stdout[1] and "has called MPI_Finalize" in job.stdout[1], job.describe()
    left, told = times(job)
    assert told - left < SOON, job.describe()


@pytest.mark.skipif(not CAN_NAME_HOSTS, reason="host names of their own need root")
def test_the_reader_that_keeps_hosts_in_step_finalises_mpi_in_mid_epoch():
    """Its own ranks are not the only ones that wait for it."""
    job = run_job(
        FINALIZES.format(before="", repeat="", leaver=0, collective="pass").replace("range(100)", "range(10**9)"),
        np=2,
        timeout=100,
        env={"HVDATA_TEST_HOSTS": "2", "HOROVOD_DATA_READERS_PER_NODE": "1", "HOROVOD_DATA_EMBEDDED": "1"},
    )
    assert job.returncode == 1, job.describe()
    assert "UnavailableError" in job.stderr[1] and "has called MPI_Finalize" in job.stderr[1], job.describe()
    assert time.time() - times(job)[0] < 2 * SOON, job.describe()


def test_a_trainer_finalises_mpi_in_mid_epoch():
    """As one that ends does it leaves the rest to the others."""
    job = run_job(FINALIZES.format(before="", repeat=1, leaver=1, collective="pass"), np=3, timeout=100)
    assert job.returncode == 0, job.describe()
    took = time.time() - times(job)[0]
    assert [job.stdout[rank].split()[-1] for rank in (0, 2)] == ["33", "33"], job.describe()
    assert took < SOON, job.describe()


@pytest.mark.horovod
@pytest.mark.parametrize("leaver", [0, 1])
@pytest.mark.parametrize("before", ["import horovod.tensorflow as hvd", "import horovod.tensorflow as hvd; hvd.init()"])
def test_collectives_do_not_wait_for_a_rank_that_has_finalised_mpi(before, leaver):
    script = FINALIZES.format(before=before, repeat=100, leaver=leaver, collective=ALLREDUCE)
    script = script.replace(f"    if hvdata.rank() != {leaver}:", "    if True:")
    job = run_job(script, np=2, timeout=100)
    assert job.returncode == 1, job.describe()
    assert "Horovod has been shut down" in job.stdout[1 - leaver], job.describe()
    times_ = times(job)
    assert len(times_) == 2 and abs(times_[1] - times_[0]) < SOON, job.describe()
