# SPDX-License-Identifier: Apache-2.0
"""All modes over several hosts: one reader, two readers, or one on each host."""

import re

import pytest
from bed import Bed
from deliveries import SCRIPT, Layout, check_delivery, check_ways
from jobs import program
from over_hosts import start_over

LAYOUTS = [
    Layout(hosts, per_host, readers, per_node, embedded)
    for readers, per_node, embedded in (
        (0, False, False),
        (1, False, False),
        (2, False, False),
        (0, True, False),
        (0, True, True),
    )
    for hosts, per_host in ((2, 2), (4, 1), (3, 2))
]

pytestmark = pytest.mark.slow


def deliver(layout, **how):
    with Bed(layout.hosts) as bed:
        how = {name: value(bed) if callable(value) else value for name, value in how.items()}
        with start_over(bed, SCRIPT, layout.places, *layout.arguments, env=layout.environment, **how) as job:
            assert job.finish(90) == 0, job.describe()
        check_delivery(job, layout)
        check_ways(job, layout, bed)


@pytest.mark.limit(180)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_delivery(layout):
    """Batches of a reader on each host never leave the host."""
    deliver(layout, readers=0 if layout.per_node else layout.readers)


@pytest.mark.limit(180)
@pytest.mark.horovod
def test_horovodrun():
    """Horovod's own launcher looks for the hosts by ssh, and for the interfaces that they have in common."""
    pytest.importorskip("horovod.tensorflow")
    deliver(
        Layout(2, 2),
        launcher=lambda bed: f"horovodrun --mpi --disable-cache -H {','.join(f'{name}:2' for name in bed.names)}",
    )


MESSAGES = """
from mpi4py import MPI
steps = int(sys.argv[1])
dataset = train(lambda: tf.data.Dataset.range(steps * size).map(lambda i: tf.fill([256], i)))
before = hvdata.stats()["mpi_messages_sent"]
MPI.COMM_WORLD.Barrier()
got = [int(x[0]) for x in dataset]
assert got == list(range(rank, steps * size, size)), got[:5]
MPI.COMM_WORLD.Barrier()
say("SENT", hvdata.stats()["mpi_messages_sent"] - before)
say("PASSED ON", hvdata.stats()["mpi_bags_passed_on"])
"""


@pytest.mark.limit(300)
def test_a_reader_sends_as_many_messages_as_there_are_hosts():
    """Each of two hosts has four ranks, but the reader sends one message for each host."""
    steps, beside = 300, 60  # beside: an epoch's beginning and end
    for _ in range(3):  # a step whose first share meets an idle communication thread travels in two
        with Bed(2) as bed:
            with start_over(bed, program(MESSAGES), [0] * 4 + [1] * 4, str(steps)) as job:
                assert job.finish(90) == 0, job.describe()
            sent = int(re.search(r"^SENT (\d+)", job.stdout[0], re.MULTILINE)[1])
        if 0 < sent <= steps * (2 - 1) + beside:
            return
    pytest.fail(f"{sent} messages for {steps} steps")


# The last host's ranks can't make a memfd large. (Python ignores SIGXFSZ.) MPI has made its own memory by then.
REFUSES = """
import resource, socket
from mpi4py import MPI
names = MPI.COMM_WORLD.allgather(socket.gethostname())
if names[MPI.COMM_WORLD.rank] == names[-1]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
"""


@pytest.mark.limit(120)
@pytest.mark.parametrize("refuses", [False, True], ids=["shares", "refuses"])
def test_a_host_whose_ranks_can_not_share_memory(refuses):
    """No rank of that host receives for the others. The rows are the same."""
    steps = 300
    script = program(MESSAGES, before=REFUSES if refuses else "")
    with Bed(2) as bed:
        with start_over(bed, script, [0] * 2 + [1] * 3, str(steps)) as job:
            assert job.finish(90) == 0, job.describe()
        passed_on = [int(count) for text in job.stdout for count in re.findall(r"^PASSED ON (\d+)", text, re.MULTILINE)]
        lines = [text.count("no shared memory for the ranks of this host") for text in job.stderr]
        assert lines == ([0, 0, 1, 0, 0] if refuses else [0] * 5), job.describe()
        assert len(passed_on) == 5 and (sum(passed_on) == 0 if refuses else passed_on[2] > 0), passed_on
