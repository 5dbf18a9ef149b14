# SPDX-License-Identifier: Apache-2.0
"""The examples for Kubernetes: what the launcher makes of them, and whether Kubeflow Trainer knows each field."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launched import ask_launcher, executable

KUBERNETES = Path(__file__).parents[2] / "examples" / "kubernetes"


def objects_of(name):
    return list(pytest.importorskip("yaml").safe_load_all((KUBERNETES / name).read_text()))


def mpi_job():
    """The launcher's container in mpijob.yaml, and the hosts and slots in the file that the MPI operator writes."""
    (spec,) = objects_of("mpijob.yaml")
    job, name = spec["spec"], spec["metadata"]["name"]
    (container,) = job["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    assert job["mpiImplementation"] == "OpenMPI"
    workers = job["mpiReplicaSpecs"]["Worker"]["replicas"]
    return container, [f"{name}-worker-{index}.{name}.default.svc" for index in range(workers)], job["slotsPerWorker"]


def train_job():
    """The job in trainjob.yaml, and the hosts and slots in the file that Kubeflow Trainer writes."""
    runtime, job = objects_of("trainjob.yaml")
    name, policy = job["metadata"]["name"], runtime["spec"]["mlPolicy"]
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert policy["mpi"]["mpiImplementation"] == "OpenMPI" and policy["numNodes"] == 1
    nodes, launcher = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert (nodes["name"], launcher["name"], launcher["dependsOn"][0]["name"]) == ("node", "launcher", "node")
    for each in nodes, launcher:  # Trainer looks for this container
        assert [one["name"] for one in each["template"]["spec"]["template"]["spec"]["containers"]] == ["node"]
    hosts = [f"{name}-node-0-{index}.{name}" for index in range(job["spec"]["trainer"]["numNodes"])]
    return job["spec"]["trainer"], hosts, policy["mpi"]["numProcPerNode"]


@pytest.mark.parametrize("read", [mpi_job, train_job])
def test_the_launcher_of_each_example(tmp_path, read):
    """The operators write a host file with the slots of each host, and a variable that names it."""
    container, hosts, slots = read()
    assert container["command"] == ["horovod-data-run"]
    (tmp_path / "hostfile").write_text("".join(f"{host} slots={slots}\n" for host in hosts))
    mpirun = executable(tmp_path / "mpirun", "echo 'mpirun (Open MPI) 4.1.4'")
    env = {"OMPI_MCA_orte_default_hostfile": str(tmp_path / "hostfile")}
    done = ask_launcher("--mpirun", str(mpirun), "--dry-run", *container["args"], env=env)
    assert done.returncode == 0, done
    assert re.findall(r"-np (\d) -host (\S+)", done.stdout) == [("4", f"{host}:4") for host in hosts] + [
        ("1", f"{hosts[0]}:1")
    ]
    assert done.stdout.rstrip().endswith("python -m horovod_data.launcher.rank /app/train.py")


MODELS = """
import json, sys
import kubeflow_trainer_api.models as models
for each in json.load(sys.stdin):
    known = getattr(models, "TrainerV1alpha1" + each["kind"]).from_dict(each)
    print(json.dumps([each, known.to_dict()]))
"""


def test_trainjob_is_as_trainers_models_have_it():
    """Trainer's models leave out fields that Trainer does not have, and refuse values of another type."""
    python = Path(__file__).parents[2] / "build" / "recipes" / "bin" / "python"
    python = str(python) if python.exists() else sys.executable
    if subprocess.run([python, "-c", "import kubeflow_trainer_api"], capture_output=True).returncode:
        pytest.skip("needs kubeflow_trainer_api: make recipes")
    ask = lambda objects: subprocess.run(
        [python, "-c", MODELS], input=json.dumps(objects), capture_output=True, text=True, timeout=60
    )
    objects = objects_of("trainjob.yaml")
    done = ask(objects)
    assert done.returncode == 0, done.stderr
    pairs = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(pairs) == 2 and all(given == known for given, known in pairs)
    objects[1]["spec"]["trainer"]["nodes"] = 2
    given, known = json.loads(ask(objects).stdout.splitlines()[1])
    assert given != known
    objects[1]["spec"]["trainer"]["numNodes"] = "2"
    assert ask(objects).returncode != 0
