# SPDX-License-Identifier: Apache-2.0
"""horovod-data-run over several hosts: it is run on the first, and puts every process where it was told to."""

import sys

import pytest
from bed import Bed
from deliveries import SCRIPT, Layout, check_delivery, check_ways
from endless import PLACES, cut_for_good, cut_for_three_seconds, start
from over_hosts import start_over

RUN = f"{sys.executable} -m horovod_data.launcher"


def hosts(bed, per_host=2):
    return "-H " + ",".join(f"{name}:{per_host}" for name in bed.names)


@pytest.mark.limit(180)
@pytest.mark.horovod
@pytest.mark.parametrize("layout, options", [
    (Layout(2, 2), ""),
    (Layout(2, 2, readers=2), "--readers 2 --reader-hosts {0},{1}"),
    (Layout(2, 2, per_node=True), "--readers-per-node 1"),
    (Layout(2, 2, per_node=True, embedded=True), "--readers-per-node 1 --embedded"),
], ids=str)  # fmt: skip
def test_delivery(layout, options):
    env = {name: value for name, value in layout.environment.items() if not name.startswith("HOROVOD_DATA_")}
    with Bed(layout.hosts) as bed:
        launcher = f"{RUN} {hosts(bed)} {options.format(*bed.names)}"
        with start_over(bed, SCRIPT, layout.places, *layout.arguments, env=env, launcher=launcher, np=layout.trainers) as job:
            assert job.finish(90) == 0, job.describe()
        check_delivery(job, layout)
        check_ways(job, layout, bed)


@pytest.mark.limit(180)
@pytest.mark.horovod
@pytest.mark.parametrize("how_long", ["for good", "for three seconds"])
def test_a_host_that_is_cut_off(how_long, tmp_path):
    """The launcher's own settings have it noticed in time, and not too soon."""
    with Bed(2) as bed:
        launcher = f"{RUN} {hosts(bed)} --readers 1 --reader-hosts {bed.names[PLACES[-1]]}"
        with start(bed, tmp_path, readers=0, np=4, launcher=launcher) as job:
            if how_long == "for good":
                cut_for_good(job, bed)
            else:
                cut_for_three_seconds(job, bed, tmp_path)
