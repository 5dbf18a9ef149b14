# SPDX-License-Identifier: Apache-2.0
"""All modes over several hosts, with one reader, wherever it is."""

import pytest
from bed import Bed
from deliveries import SCRIPT, Layout, check_delivery, check_ways
from over_hosts import start_over

LAYOUTS = [Layout(hosts, per_host, readers) for hosts, per_host in ((2, 2), (4, 1), (3, 2)) for readers in (0, 1)]


@pytest.mark.limit(180)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_delivery(layout):
    with Bed(layout.hosts) as bed:
        with start_over(bed, SCRIPT, layout.places, *layout.arguments, readers=layout.readers, env=layout.environment) as job:
            assert job.finish(90) == 0, job.describe()
        check_delivery(job, layout)
        check_ways(job, layout, bed)


@pytest.mark.limit(180)
@pytest.mark.horovod
def test_horovodrun():
    """Horovod's own launcher: looks for the hosts by ssh, and for the interfaces they have in common."""
    pytest.importorskip("horovod.tensorflow")
    layout = Layout(2, 2)
    with Bed(layout.hosts) as bed:
        hosts = ",".join(f"{name}:{layout.per_host}" for name in bed.names)
        with start_over(bed, SCRIPT, layout.places, *layout.arguments, env=layout.environment,
                        launcher=f"horovodrun --mpi --disable-cache -H {hosts}") as job:
            assert job.finish(90) == 0, job.describe()
        check_delivery(job, layout)
        check_ways(job, layout, bed)
