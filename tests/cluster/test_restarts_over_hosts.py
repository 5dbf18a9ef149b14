# SPDX-License-Identifier: Apache-2.0
"""horovod-data-run --state over several hosts: a job goes on without a lost host, and later with it again."""

import os
import sys
import time

import pytest
import restarted
from bed import Bed
from launched import LAUNCHER, Launched
from over_hosts import assert_nothing_left


@pytest.mark.slow
@pytest.mark.limit(400)
def test_a_lost_host_that_comes_back(tmp_path):
    """4 trainers, then 3 while host 2 is cut off, then 4."""
    words = restarted.write(tmp_path)
    with Bed(3) as bed:
        hosts = ",".join(f"{name}:{slots}" for name, slots in zip(bed.names, (2, 1, 1)))
        options = ["-np", "4", "--min-np", "3", "-H", hosts, "--state", str(tmp_path / "state"), "--max-restarts", "4"]
        env = {**bed.environment, "PATH": f"{bed.environment['PATH'].partition(':')[0]}:{os.environ['PATH']}"}
        # In attempt 1 the last rank gets no further than to the step at which its host is cut off.
        job = Launched(
            [*bed.enter(), *LAUNCHER, *options, sys.executable, *words, "2:2:15:SIGKILL", "0.3"], env, tmp_path
        )
        try:
            while 6 not in restarted.trained(tmp_path).get(1, {}):
                assert job.poll() is None, job.output
                time.sleep(0.05)
            bed.cut(2)
            job.wait_for("Attempt 2 starts from epoch 0, step 4 (set-", timeout=60)
            bed.reconnect(2)
            assert job.finish(200) == 0, job.output
            assert f"the host {bed.names[2]} was lost. Attempt 2 starts" in job.output, job.output
            assert (
                f"3 trainers on {bed.names[0]}:2, {bed.names[1]}:1; rank 0 reads; without {bed.names[2]}" in job.output
            )
            assert f"rank 2 on {bed.names[1]} was killed by signal 9. Attempt 3 starts from epoch " in job.output
            assert job.output.count("in attempt 3") == 4, job.output
            assert_nothing_left(bed)
        finally:
            job.kill()
        restarted.check(tmp_path, {1: 0, 2: 4, 3: min(restarted.trained(tmp_path)[3])})
