# SPDX-License-Identifier: Apache-2.0
"""The scripts of examples/slurm, and the launcher in an allocation, under a real Slurm."""

import os
import sys

import pytest
from cluster import CPUS, ROOT
from ranks.launch import open_mpi

SCRIPTS = ROOT / "examples" / "slurm"
MPI_TYPE = "pmix" if open_mpi() else "pmi2"
pytestmark = pytest.mark.limit(150)

WHO = """
import os
import horovod_data as hvdata
import tensorflow as tf
hvdata.init()
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
dataset = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(8), batch="per_rank")
say("WHO", hvdata.rank(), hvdata.size(), "reads" if hvdata.is_reader() else "",
    "devices:", os.environ.get("CUDA_VISIBLE_DEVICES"))
hvdata.serve()
say("GOT", sorted(int(x) for x in dataset))
"""


@pytest.fixture
def train(tmp_path):
    """The words that start a program which says who it is and what it was given."""
    (tmp_path / "train.py").write_text(WHO)
    return [sys.executable, str(tmp_path / "train.py")]


@pytest.fixture
def run(slurm, tmp_path):
    """Runs a batch script with the Python and the launcher under test in PATH."""

    def run(script, *arguments, **env):
        launcher = tmp_path / "bin" / "horovod-data-run"
        launcher.parent.mkdir(exist_ok=True)
        launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -m horovod_data.launcher "$@"\n')
        launcher.chmod(0o755)
        path = f"{launcher.parent}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        env = {"PATH": path, "MPI_TYPE": MPI_TYPE, "CUDA_VISIBLE_DEVICES": "0", **env}
        return slurm.submit(script, *arguments, env=env, cwd=tmp_path)

    return run


# What the tests otherwise tell Open MPI, and the launcher finds out by itself.
NO_HINTS = dict.fromkeys(
    ("OMPI_MCA_rmaps_base_oversubscribe", "OMPI_MCA_mpi_yield_when_idle", "OMPI_MCA_hwloc_base_binding_policy")
)
GOT_4 = ["[0, 4]", "[1, 5]", "[2, 6]", "[3, 7]"]


@pytest.mark.commit
def test_srun(run, train):
    job = run(SCRIPTS / "srun.sbatch", *train)
    assert job.returncode == 0, job
    assert job.lines("GOT") == GOT_4, job
    assert job.lines("WHO") == ["0 4 reads devices: 0"] + [f"{rank} 4  devices: 0" for rank in (1, 2, 3)], job


def test_srun_with_a_dedicated_reader(run, train):
    job = run(SCRIPTS / "reader.sbatch", *train)
    assert job.returncode == 0, job
    assert job.lines("GOT") == GOT_4, job
    assert job.lines("WHO") == [f"{rank} 4  devices: 0" for rank in range(4)] + ["None None reads devices:"], job


def test_the_launcher_in_an_allocation(run, train):
    job = run(SCRIPTS / "launcher.sbatch", *train, **NO_HINTS)
    assert job.returncode == 0, job
    assert job.lines("GOT") == GOT_4, job
    assert job.lines("WHO") == [f"{rank} 4  devices: 0" for rank in range(4)] + ["None None reads devices:"], job
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
    # By the launcher it is the rank's own; srun's is that of the rank that has the highest, those that it killed included.
    assert job.returncode == 3 if script == "launcher.sbatch" else job.returncode != 0, job
