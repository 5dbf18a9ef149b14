# SPDX-License-Identifier: Apache-2.0
"""The scripts of examples/slurm, and the launcher in an allocation, under a real Slurm."""

import os
import sys

import pytest
from cluster import CPUS, ROOT
from jobs import program
from launched import executable
from ranks.launch import open_mpi

SCRIPTS = ROOT / "examples" / "slurm"
MPI_TYPE = "pmix" if open_mpi() else "pmi2"
pytestmark = pytest.mark.limit(150)

WHO = program("""
dataset = load(range(8))
say("WHO", rank, size, "reads" if hvdata.is_reader() else "", "devices:", os.environ.get("CUDA_VISIBLE_DEVICES"))
hvdata.serve()
say("GOT", sorted(int(x) for x in dataset))
""")


@pytest.fixture
def train(tmp_path):
    """The command line of a program that prints its roles and its rows."""
    (tmp_path / "train.py").write_text(WHO)
    return [sys.executable, str(tmp_path / "train.py")]


@pytest.fixture
def begin(slurm, tmp_path):
    """Submits a batch script with the Python and the launcher under test in PATH."""

    def begin(script, *arguments, **env):
        launcher = tmp_path / "bin" / "horovod-data-run"
        launcher.parent.mkdir(exist_ok=True)
        executable(launcher, f'exec {sys.executable} -m horovod_data.launcher "$@"')
        path = f"{launcher.parent}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        env = {"PATH": path, "MPI_TYPE": MPI_TYPE, "CUDA_VISIBLE_DEVICES": "0", **env}
        return slurm.begin(script, *arguments, env=env, cwd=tmp_path)

    return begin


@pytest.fixture
def run(begin):
    """Runs a batch script to its end."""
    return lambda *script_and_arguments, **env: begin(*script_and_arguments, **env).finish(120)


# Unsets what other tests set for Open MPI. The launcher finds it out by itself.
NO_HINTS = dict.fromkeys(
    ("OMPI_MCA_rmaps_base_oversubscribe", "OMPI_MCA_mpi_yield_when_idle", "OMPI_MCA_hwloc_base_binding_policy")
)
GOT_4 = ["[0, 4]", "[1, 5]", "[2, 6]", "[3, 7]"]
DEDICATED = [f"{rank} 4  devices: 0" for rank in range(4)] + ["None None reads devices:"]


@pytest.mark.commit("srun")
@pytest.mark.parametrize("script, env, got, who", [
    pytest.param("srun", {}, GOT_4, ["0 4 reads devices: 0", *(f"{rank} 4  devices: 0" for rank in (1, 2, 3))], id="srun"),
    pytest.param("reader", {}, GOT_4, DEDICATED, id="dedicated"),
    pytest.param("launcher", NO_HINTS, GOT_4, DEDICATED, id="launcher"),
    pytest.param("readers_per_node", {}, ["[0, 2, 4, 6]", "[1, 3, 5, 7]"],
                 ["0 2  devices: 0", "1 2  devices: 0", "None None reads devices:"], id="per node", marks=pytest.mark.slow),
    pytest.param("readers_per_node", {"HOROVOD_DATA_EMBEDDED": "1"}, ["[0, 3]", "[1, 4]", "[2, 5]"],
                 ["0 3 reads devices: 0", "1 3  devices: 0", "2 3  devices: 0"], id="embedded", marks=pytest.mark.slow),
])  # fmt: skip
def test_the_scripts(run, train, script, env, got, who):
    """Only dedicated readers have no devices."""
    job = run(SCRIPTS / f"{script}.sbatch", *train, **env)
    assert job.returncode == 0 and job.lines("GOT") == got and job.lines("WHO") == who, job
    if script == "launcher":
        assert "4 trainers on " in job.output and "hosts from Slurm's job " in job.output, job


def test_the_launcher_may_use_fewer_slots(run, train, tmp_path):
    script = tmp_path / "fewer.sbatch"
    script.write_text('#!/bin/bash\n#SBATCH --ntasks=4\nhorovod-data-run -np 2 "$@"\n')
    job = run(script, *train)
    assert job.returncode == 0 and job.lines("GOT") == ["[0, 2, 4, 6]", "[1, 3, 5, 7]"], job


def test_too_few_slots_in_the_allocation(run, tmp_path):
    script = tmp_path / "many.sbatch"
    script.write_text(f"#!/bin/bash\n#SBATCH --ntasks=2\nhorovod-data-run -np {CPUS} hostname\n")
    job = run(script)
    assert job.returncode == 2 and f"-np {CPUS} asks for {CPUS} trainers, but there are 2 slots" in job.output, job


@pytest.mark.parametrize("script", ["srun.sbatch", "launcher.sbatch"])
@pytest.mark.parametrize(
    "before", ["", "import horovod_data as hvdata; hvdata.init()"], ids=["before init", "after init"]
)
def test_a_rank_that_fails_ends_the_job(run, tmp_path, script, before):
    (tmp_path / "fails.py").write_text(f"""
import os, sys, time
{before}
rank = next(os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID") if name in os.environ)
if rank == "1":
    sys.exit(3)
time.sleep(1000)
""")
    job = run(SCRIPTS / script, sys.executable, str(tmp_path / "fails.py"))
    # The launcher's status is that of the failed rank. srun's is the highest of all ranks, with those that srun killed.
    assert job.returncode == 3 if script == "launcher.sbatch" else job.returncode != 0, job


LONG = """
import os, signal, sys, time
sys.stdout.reconfigure(line_buffering=True)
state, attempt = os.environ["HOROVOD_DATA_STATE"], os.environ["HOROVOD_DATA_ATTEMPT"]
rank = next(os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ)
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(int(os.environ["HOROVOD_DATA_LEAVE_STATUS"])))
os.write(1, f"RUNS {rank} in attempt {attempt}, restart {os.environ.get('SLURM_RESTART_COUNT')}, in {state}\\n".encode())
time.sleep(1000 if attempt == "1" else 1)
"""


def test_a_job_that_is_queued_again(begin, slurm, tmp_path):
    """Slurm signals the batch script, as it does before the time limit. The job ends in its second allocation."""
    (tmp_path / "long.py").write_text(LONG)
    job = begin(SCRIPTS / "requeue.sbatch", sys.executable, str(tmp_path / "long.py"), STATE=str(tmp_path / "state"))
    try:
        job.wait_for(lambda: job.output.count("in attempt 1") == 4, 60)
        slurm.say("scancel", "--batch", "--signal=USR1", job.number)
        job.wait_for(lambda: slurm.field(job.number, "Restarts") == "1", 60)
    finally:
        done = job.finish(150)
    assert done.returncode == 0, f"{done}\n{slurm.logs()}"
    assert "horovod-data-run: SIGUSR1: the ranks are to save and leave." in done.output, done
    again = [f"{rank} in attempt 2, restart 1, in {tmp_path}/state" for rank in range(4)]
    assert [line for line in done.lines("RUNS ") if "attempt 2" in line] == again, done
    assert not (tmp_path / "state").exists()


def test_a_cancelled_job_is_not_queued_again(begin, slurm, tmp_path):
    (tmp_path / "long.py").write_text(LONG)
    job = begin(SCRIPTS / "requeue.sbatch", sys.executable, str(tmp_path / "long.py"), STATE=str(tmp_path / "state"))
    try:
        job.wait_for(lambda: job.output.count("in attempt 1") == 4, 60)
        slurm.say("scancel", job.number)
        job.wait_for(lambda: job.state not in ("RUNNING", "COMPLETING"), 60)
        assert job.state == "CANCELLED" and slurm.field(job.number, "Restarts") == "0", slurm.logs()
    finally:
        done = job.finish(60)
    assert "in attempt 2" not in done.output, done
