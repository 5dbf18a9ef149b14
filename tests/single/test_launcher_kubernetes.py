# SPDX-License-Identifier: Apache-2.0
"""The launcher understands examples/kubernetes/mpijob.yaml. Its form was checked by hand against the operator's schema."""

from pathlib import Path

import pytest
from launched import ask_launcher
from test_launcher_command import OPEN_MPI, mpi  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]


def test_the_job_starts_as_its_comments_say(mpi, tmp_path):  # noqa: F811
    yaml = pytest.importorskip("yaml")
    spec = yaml.safe_load((ROOT / "examples" / "kubernetes" / "mpijob.yaml").read_text())
    job = spec["spec"]
    (container,) = job["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    assert container["command"] == ["horovod-data-run"] and job["mpiImplementation"] == "OpenMPI"
    # What the operator does: a host file with the slots of each worker, and a variable that names it.
    name, workers = spec["metadata"]["name"], job["mpiReplicaSpecs"]["Worker"]["replicas"]
    hosts = [f"{name}-worker-{index}.{name}.default.svc" for index in range(workers)]
    (tmp_path / "hostfile").write_text("".join(f"{host} slots={job['slotsPerWorker']}\n" for host in hosts))
    done = ask_launcher(
        *mpi(OPEN_MPI),
        "--dry-run",
        *container["args"],
        env={"OMPI_MCA_orte_default_hostfile": str(tmp_path / "hostfile")},
    )
    assert done.returncode == 0, done
    assert f"-np 4 -host {hosts[0]}:4 " in done.stdout and f"-np 4 -host {hosts[1]}:4 " in done.stdout
    assert f"-np 1 -host {hosts[0]}:1 " in done.stdout and done.stdout.count("-np ") == 3
    assert done.stdout.rstrip().endswith("python -m horovod_data.launcher.rank /app/train.py")
