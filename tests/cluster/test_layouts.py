# SPDX-License-Identifier: Apache-2.0
"""All modes over several hosts, with one reader, wherever it is."""

import pytest
from bed import Bed
from deliveries import SCRIPT, Layout, check_delivery, check_ways
from over_hosts import start_over

LAYOUTS = [Layout(hosts, per_host, readers) for hosts, per_host in ((2, 2), (4, 1), (3, 2)) for readers in (0, 1)]

pytestmark = pytest.mark.slow


@pytest.mark.limit(180)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_delivery(layout):
    with Bed(layout.hosts) as bed:
        with start_over(
            bed, SCRIPT, layout.places, *layout.arguments, readers=layout.readers, env=layout.environment
        ) as job:
            assert job.finish(90) == 0, job.describe()
        check_delivery(job, layout)
        check_ways(job, layout, bed)


MESSAGES = """
import json, sys
import tensorflow as tf
import horovod_data as hvdata
from mpi4py import MPI

steps = int(sys.argv[1])
hvdata.init()
dataset = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(steps * hvdata.size()).map(lambda i: tf.fill([256], i)), batch="per_rank")
before = hvdata.stats()["mpi_messages_sent"]
MPI.COMM_WORLD.Barrier()
got = [int(x[0]) for x in dataset]
assert got == list(range(hvdata.rank(), steps * hvdata.size(), hvdata.size())), got[:5]
MPI.COMM_WORLD.Barrier()
print("SENT", hvdata.stats()["mpi_messages_sent"] - before, flush=True)
print("PASSED ON", hvdata.stats()["mpi_bags_passed_on"], flush=True)
"""


@pytest.mark.limit(300)
def test_a_reader_sends_as_many_messages_as_there_are_hosts():
    """And not as there are ranks: four on each of two hosts."""
    steps, beside = 300, 60  # beside: an epoch's beginning and end
    for _ in range(3):  # a step whose first share meets an idle communication thread travels in two
        with Bed(2) as bed:
            with start_over(bed, MESSAGES, [0] * 4 + [1] * 4, str(steps)) as job:
                assert job.finish(90) == 0, job.describe()
            (sent,) = [int(line.split()[1]) for line in job.stdout[0].splitlines() if line.startswith("SENT ")]
        if 0 < sent <= steps * (2 - 1) + beside:
            return
    pytest.fail(f"{sent} messages for {steps} steps")


# On the last host's ranks: a memfd can't be made large. (Python ignores SIGXFSZ.) MPI has made its own memory by then.
REFUSES = """
import resource, socket
from mpi4py import MPI

def refuse():
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))

names = MPI.COMM_WORLD.allgather(socket.gethostname())
if names[MPI.COMM_WORLD.rank] == names[-1]:
    refuse()
"""


@pytest.mark.limit(120)
@pytest.mark.parametrize("refuses", [False, True], ids=["shares", "refuses"])
def test_a_host_whose_ranks_can_not_share_memory(refuses):
    """None of them receives for the others; the rows are the same."""
    steps = 300
    script = (REFUSES if refuses else "") + MESSAGES
    with Bed(2) as bed:
        with start_over(bed, script, [0] * 2 + [1] * 3, str(steps)) as job:
            assert job.finish(90) == 0, job.describe()
        passed_on = [
            int(line.split()[2]) for text in job.stdout for line in text.splitlines() if line.startswith("PASSED ON ")
        ]
        lines = [text.count("no shared memory for the ranks of this host") for text in job.stderr]
        assert lines == ([0, 0, 1, 0, 0] if refuses else [0] * 5), job.describe()
        assert len(passed_on) == 5 and (sum(passed_on) == 0 if refuses else passed_on[2] > 0), passed_on


@pytest.mark.limit(180)
@pytest.mark.horovod
def test_horovodrun():
    """Horovod's own launcher: looks for the hosts by ssh, and for the interfaces they have in common."""
    pytest.importorskip("horovod.tensorflow")
    layout = Layout(2, 2)
    with Bed(layout.hosts) as bed:
        hosts = ",".join(f"{name}:{layout.per_host}" for name in bed.names)
        with start_over(
            bed,
            SCRIPT,
            layout.places,
            *layout.arguments,
            env=layout.environment,
            launcher=f"horovodrun --mpi --disable-cache -H {hosts}",
        ) as job:
            assert job.finish(90) == 0, job.describe()
        check_delivery(job, layout)
        check_ways(job, layout, bed)
