# SPDX-License-Identifier: Apache-2.0
"""A program that leaves in unusual places: from its dataset function, or through MPI_Finalize in mid-epoch."""

import re
import time

import pytest
from jobs import SOON, run_program
from ranks.worlds import CAN_NAME_HOSTS

pytestmark = [pytest.mark.limit(150), pytest.mark.usefixtures("verified")]

FROM_THE_FUNCTION = """
def raises():
    raise SystemExit(3)

def make({parameter}):
    if {when}:
        now("ENDS")
        {how}
    return {data}

ds = {call}(make)
hvdata.serve()
for _ in range(2):
    say("steps", len(list(ds)))
"""


def from_the_function(parameter, when, how, of_loader=False):
    data, call = ("range(8)", "load") if of_loader else ("tf.data.Dataset.range(8)", "train")
    return FROM_THE_FUNCTION.format(parameter=parameter, when=when, how=how, data=data, call=call)


IMPORTED = "from sys import exit as leave  # before init() can replace it"


@pytest.mark.commit("exit-dedicated")
@pytest.mark.parametrize("how, status, readers", [
    pytest.param("sys.exit(3)", 3, 1, id="exit-dedicated"), ("raises()", 3, 0), ("leave(3)", 3, 0), ("leave(3)", 3, 1),
    ("sys.exit('no data')", 1, 0),
])  # fmt: skip
def test_from_the_dataset_function(how, status, readers):
    """The rank that ends first, the reader or a rank that has the reader's error, reports who called sys.exit()."""
    of_loader = how.startswith("sys")
    script = from_the_function("", "True", how, of_loader)
    job = run_program(script, 2, readers=readers, before=IMPORTED, status=status)
    assert "steps" not in "".join(job.stdout), job.describe()
    job.assert_soon("ENDS", 2 if readers else 0)
    assert "no data" not in how or "no data" in "".join(job.stderr), job.describe()
    name = rf"\[{'reader 0' if readers else 'rank 0'} on \S+\]"
    ends = rf"the program ends with status {status}|(distribute_dataset|loader)\(name='train'\) failed: SystemExit: "
    job.assert_said(f"{name} ({ends})")


def test_from_a_model_that_predicts():
    """The other ranks get an error, and end with the same status even if they end first."""
    run_program("""
import atexit
if rank == 1:
    atexit.register(time.sleep, 3)  # the other ranks end first
hvdata.predict(lambda x: sys.exit(3) if rank == 1 else x, lambda: tf.data.Dataset.range(40).batch(4))
""", 3, status=3)  # fmt: skip


@pytest.mark.parametrize("readers", [0, 1])
def test_from_the_call_for_a_later_epoch(readers):
    """This call is not on the main thread."""
    script = from_the_function("epoch", "epoch == 2", "sys.exit(3)")
    job = run_program(script, 2, readers=readers, status=3)
    had = [[line for line in out.splitlines() if not line.startswith("ENDS")] for out in job.stdout[:2]]
    # On a rank the job's end may come first.
    assert all(lines in ([], ["steps 4"]) for lines in had) and ["steps 4"] in had, job.describe()
    reader = 2 if readers else 0
    job.assert_soon("ENDS", reader)
    place = rf"\[{'reader 0' if readers else 'rank 0'} on \S+, channel train, epoch 2\]"
    job.assert_said(f"{place} the dataset function ends the program with status 3, and the job with it", reader)


def test_without_a_status_from_the_call_for_a_later_epoch():
    """sys.exit() without a status can't end the job: it is an error on every rank."""
    script = from_the_function("epoch", "epoch == 2", "sys.exit()")
    job = run_program(script, 2, status=1)
    job.assert_said(r"the dataset function has called sys.exit\(\)")


FINALIZES = """
from mpi4py import MPI
def fail(error):
    say("at", time.time(), type(error).__name__, error)
    raise error

def shares():
    try:
        yield from train(lambda: {make}, {batch})
    except Exception as error:
        fail(error)

step = 0
for step, x in enumerate(shares(), 1):
    if rank == {leaver} and step == 5:
        say("at", time.time())
        MPI.Finalize()
        sys.exit(0)
    try:
        {collective}
    except Exception as error:
        fail(error)
    time.sleep(0.01)
say("steps", step)
"""
ENDLESS = "tf.data.Dataset.range(10**9).repeat()"


def finalizes(leaver, make, np=2, *, batch="batch='per_rank'", collective="pass", before="", **more):
    """The job, and when a rank called MPI_Finalize or had an error."""
    script = FINALIZES.format(leaver=leaver, make=make, batch=batch, collective=collective)
    job = run_program(script, np, before=before, **more)
    return job, [float(at) for out in job.stdout for at in re.findall(r"^at ([\d.]+)", out, re.MULTILINE)]


@pytest.mark.parametrize("make, batch", [
    pytest.param(ENDLESS, "batch='per_rank'", id="whole"),
    # What was dropped so far is no end of the epoch.
    pytest.param(ENDLESS.replace(".repeat()", ".batch(3)"), "batch='global'", id="drops rows"),
])  # fmt: skip
def test_the_reader_finalises_mpi_in_mid_epoch(make, batch):
    """The reader deals for some seconds more, also to ranks that are about to end.

    Then the other ranks get an error.
    """
    job, (left, told) = finalizes(0, make, batch=batch, status=1)
    job.assert_said("UnavailableError.*channel train, epoch 1.*the program of rank 0 on .*has called MPI_Finalize", 1)
    assert told - left < SOON, job.describe()


@pytest.mark.skipif(not CAN_NAME_HOSTS, reason="host names of their own need root")
def test_the_reader_that_keeps_hosts_in_step_finalises_mpi_in_mid_epoch():
    """Ranks of other hosts wait for this reader, too."""
    env = {"HVDATA_TEST_HOSTS": "2", "HOROVOD_DATA_READERS_PER_NODE": "1", "HOROVOD_DATA_EMBEDDED": "1"}
    job, times = finalizes(0, ENDLESS, env=env, status=1)
    job.assert_said("UnavailableError.*has called MPI_Finalize", 1)
    assert time.time() - times[0] < 2 * SOON, job.describe()


def test_a_trainer_finalises_mpi_in_mid_epoch():
    """The other ranks get the rest of the data, as after the end of a rank."""
    job, times = finalizes(1, "tf.data.Dataset.range(100)", 3)
    took = time.time() - times[0]
    assert [job.stdout[rank].split()[-1] for rank in (0, 2)] == ["33", "33"], job.describe()
    assert took < SOON, job.describe()


@pytest.mark.horovod
@pytest.mark.parametrize("leaver, before", [(0, "hvd.init()"), (1, "hvd.init()"), (0, "")])
def test_collectives_do_not_wait_for_a_rank_that_has_finalised_mpi(leaver, before):
    job, times = finalizes(
        leaver,
        "tf.data.Dataset.range(100).repeat(100)",
        collective="hvd.allreduce(tf.zeros(2), name='gradient')",
        before=f"import horovod.tensorflow as hvd\n{before}",
        status=1,
    )
    job.assert_said("Horovod has been shut down", 1 - leaver)
    assert len(times) == 2 and abs(times[1] - times[0]) < SOON, job.describe()
