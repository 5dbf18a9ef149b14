# SPDX-License-Identifier: Apache-2.0
"""horovod-data-run --state over several hosts: a job goes on without a lost host, and later with it again."""

import os
import shutil
import signal
import sys

import pytest
import restarted
from bed import Bed
from killing import ON_HOSTS, drawn, same, same_after_all, train_under_the_launcher
from launched import start_launcher
from over_hosts import assert_nothing_left


@pytest.mark.slow
@pytest.mark.limit(400)
def test_a_lost_host_that_comes_back(tmp_path):
    """4 trainers, then 3 while host 2 is cut off, then 4."""
    words = restarted.write(tmp_path)
    with Bed(3) as bed:
        hosts = ",".join(f"{name}:{slots}" for name, slots in zip(bed.names, (2, 1, 1)))
        options = ["-np", "4", "--min-np", "3", "-H", hosts, "--state", str(tmp_path / "state"), "--max-restarts", "4"]
        # In attempt 1 the last rank gets no further than to the step at which its host is cut off.
        words = [*options, sys.executable, *words, "2:2:15:SIGKILL", "0.3"]
        with start_launcher(*words, cwd=tmp_path, bed=bed) as job:
            job.wait_until(lambda: 6 in restarted.trained(tmp_path).get(1, {}), "no rank has made step 6")
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
        restarted.check(tmp_path, {1: 0, 2: 4, 3: min(restarted.trained(tmp_path)[3])})


@pytest.mark.slow
@pytest.mark.limit(1800)
def test_many_kills_over_hosts(tmp_path):
    """20 kills, at random steps and in the middle of writes. Some hosts are cut off. 4 and 3 ranks train in turn.

    With several readers.
    """
    readers = ["--readers", "2"]
    whole = train_under_the_launcher(tmp_path / "whole", [], *readers)
    kills = drawn(20, 6, ON_HOSTS, (4, 4))
    options = [*readers, "--min-np", "3"]
    trained = train_under_the_launcher(tmp_path / "killed", kills, *options, bed=Bed(3), slots=(2, 1, 1))
    print(trained.sizes, trained.begun)
    changes = [after - before for before, after in zip(trained.sizes, trained.sizes[1:])]
    assert changes.count(-1) >= 3 and changes.count(1) >= 3, trained.sizes
    same_after_all(trained, whole, kills)


@pytest.mark.slow
@pytest.mark.limit(400)
@pytest.mark.parametrize("embedded", [[], ["--embedded"]], ids=["dedicated", "embedded"])
def test_readers_on_each_host(tmp_path, embedded):
    """The launcher waits for a host that is cut off, because fewer readers can't restore the state."""
    options, kills = ["--readers-per-node", "1", *embedded], [("step", 4, 3, 5), ("cut", 4, 3, 5)]
    whole = train_under_the_launcher(tmp_path / "whole", [], *options, bed=Bed(2), slots=(2, 2))
    trained = train_under_the_launcher(tmp_path / "killed", kills, *options, bed=Bed(2), slots=(2, 2))
    assert trained.sizes == [4, 4, 4] and "The launcher waits, because" in trained.output, trained.output
    same(trained, whole)


@pytest.mark.slow
@pytest.mark.limit(200)
@pytest.mark.skipif(shutil.which("mpirun.mpich") is None, reason="needs MPICH beside Open MPI")
def test_a_lost_host_under_hydra(tmp_path):
    """Hydra does not notice the stopped rank. The launcher does, because the rank gives no signs of life.

    The program needs no MPI.
    """
    (tmp_path / "train.py").write_text(
        "import os, time\n"
        "print('up in attempt', os.environ['HOROVOD_DATA_ATTEMPT'], flush=True)\n"
        "time.sleep(3600 * (os.environ['HOROVOD_DATA_ATTEMPT'] == '1'))\n"
    )
    with Bed(2) as bed:
        options = ["--mpirun", "mpirun.mpich", "-np", "2", "--min-np", "1", "-H", f"{bed.names[0]}:1,{bed.names[1]}:1"]
        words = [*options, "--state", str(tmp_path / "state"), "--max-restarts", "1", sys.executable, "train.py"]
        with start_launcher(*words, env={"HOROVOD_DATA_TIMEOUT": "10"}, cwd=tmp_path, bed=bed) as job:
            job.wait_for("up in attempt 1", times=2)
            bed.cut(1)
            # The files are on one machine, so signs of life need no network. A lost host gives none.
            for process in bed.processes(1):
                os.kill(process, signal.SIGSTOP)
            assert job.finish(60) == 0, job.output
            what = f"rank 1 on {bed.names[1]} has given no sign of life for 10 s. Attempt 2 starts"
            assert what in job.output and f"without {bed.names[1]}" in job.output, job.output
            assert job.output.count("up in attempt 2") == 1, job.output
