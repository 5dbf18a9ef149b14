# SPDX-License-Identifier: Apache-2.0
"""horovod-data-run over several hosts. It runs on the first host, and puts every process on the right host."""

import re
import sys
from pathlib import Path

import pytest
from bed import Bed
from deliveries import SCRIPT, Layout, check_delivery, check_ways
from endless import PLACES, cut_for_good, cut_for_three_seconds, start
from over_hosts import start_over

BEFORE_INIT = Path(__file__).parents[1] / "faults" / "programs" / "before_init.py"
# The words with which horovod-data-run starts a Python program on a rank. Tests need them because their shell script
# hides from horovod-data-run that this is a Python program.
ON_RANK = "import runpy; runpy.run_module('horovod_data.launcher.rank', run_name='__main__', alter_sys=True)"
RUN = f"{sys.executable} -m horovod_data.launcher"


def hosts(bed, per_host=2):
    return "-H " + ",".join(f"{name}:{per_host}" for name in bed.names)


@pytest.mark.commit("2x2, per node---readers-per-node 1")
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
        with start_over(
            bed, SCRIPT, layout.places, *layout.arguments, env=env, launcher=launcher, np=layout.trainers
        ) as job:
            assert job.finish(90) == 0, job.describe()
        check_delivery(job, layout)
        check_ways(job, layout, bed)


@pytest.mark.limit(180)
@pytest.mark.horovod
@pytest.mark.parametrize("how_long", ["for good", "for three seconds"])
def test_a_host_that_is_cut_off(how_long, tmp_path):
    """With the launcher's own settings, the lost host is noticed in time, and not too soon."""
    with Bed(2) as bed:
        launcher = f"{RUN} {hosts(bed)} --readers 1 --reader-hosts {bed.names[PLACES[-1]]}"

        def begin():
            return start(bed, tmp_path, readers=0, np=4, launcher=launcher)

        if how_long == "for three seconds":
            cut_for_three_seconds(begin, bed, tmp_path)
        else:
            with begin() as job:
                cut_for_good(job, bed)


@pytest.mark.limit(120)
@pytest.mark.parametrize("end", ["os._exit(0)", "sys.exit(0)"])
def test_a_rank_of_another_host_that_ends_before_init(end):
    """The rank reports it, and the job ends."""
    with Bed(2) as bed:
        with start_over(bed, ON_RANK, [0, 1], str(BEFORE_INIT), end, launcher=f"{RUN} {hosts(bed, 1)}") as job:
            job.wait_for("LEAVES", rank=1)
            assert job.finish_soon() == 1, job.describe()
        said = rf"horovod_data: \[rank 1 on {bed.names[1]}\] This program has come to its end without having called "
        assert re.search(said, job.stderr[1]), job.describe()
