# SPDX-License-Identifier: Apache-2.0
"""Several readers over several hosts: two for all, or one on each host, whose batches never leave it."""

import pytest
from bed import Bed
from deliveries import SCRIPT, Layout, check_delivery, check_ways
from over_hosts import start_over

LAYOUTS = [
    Layout(2, 2, readers=2),
    Layout(4, 1, readers=2),
    Layout(2, 2, per_node=True),
    Layout(2, 2, per_node=True, embedded=True),
    Layout(3, 2, per_node=True, embedded=True),
    Layout(3, 2, readers=2),
    Layout(3, 2, per_node=True),
    Layout(4, 1, per_node=True),
    Layout(4, 1, per_node=True, embedded=True),
]


@pytest.mark.slow
@pytest.mark.limit(180)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_delivery(layout):
    with Bed(layout.hosts) as bed:
        with start_over(bed, SCRIPT, layout.places, *layout.arguments, env=layout.environment) as job:
            assert job.finish(90) == 0, job.describe()
        check_delivery(job, layout)
        check_ways(job, layout, bed)
