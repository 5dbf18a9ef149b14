# SPDX-License-Identifier: Apache-2.0
"""horovod-data-run places processes on several hosts. They are simulated by name alone: what takes ssh's place starts the
MPI's daemon under another host name on this machine. (tests/cluster has hosts with networks of their own.)"""

import os
import subprocess
import sys

import pytest
from launched import run_launcher

AGENT = """#!/bin/sh
while :; do case $1 in -p | -i) echo "WITH $1 $2" >&2; shift 2 ;; -*) shift ;; *) break ;; esac; done
host=$1; shift
exec unshare --uts sh -c 'hostname "$0" && exec sh -c "$*"' "$host" "$@"
"""
SHOW = (
    'echo "RUNS ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} $(hostname) devices=$CUDA_VISIBLE_DEVICES '
    '$HOROVOD_DATA_READERS $HOROVOD_DATA_READERS_PER_NODE $HOROVOD_DATA_EMBEDDED $TOKEN"'
)
may_rename = os.geteuid() == 0 and subprocess.run(["unshare", "--uts", "true"], capture_output=True).returncode == 0
pytestmark = [pytest.mark.limit(90), pytest.mark.skipif(not may_rename, reason="needs root, for host names of its own")]


@pytest.fixture
def by_name(tmp_path):
    """The variables that have both MPIs start their daemons on hosts that are there by name alone."""
    agent = tmp_path / "agent"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    return {
        "OMPI_MCA_plm_rsh_agent": str(agent),
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": str(agent),
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }  # the hosts share the cores of this one


@pytest.fixture
def place(by_name):
    """Runs the launcher with words of options; the sorted lines `RANK HOST devices=... VARIABLES` of the ranks."""

    def place(*words: str, **env: str) -> list[str]:
        env = {**by_name, "CUDA_VISIBLE_DEVICES": "3", "TOKEN": "of the launcher", **env}
        job = run_launcher(*words, "sh", "-c", SHOW, env=env, timeout=60)
        assert job.returncode == 0, job.output
        place.output = job.output
        return [" ".join(line.split()) for line in sorted(job.lines("RUNS"), key=lambda line: int(line.split()[0]))]

    return place


@pytest.mark.commit
def test_readers_per_node(place):
    hosts = place("-H", "ha:2,hb:1", "--readers-per-node", "1", "-x", "CUDA_VISIBLE_DEVICES")
    assert hosts == [
        "0 ha devices=3 1 of the launcher",
        "1 ha devices=3 1 of the launcher",
        "2 ha devices= 1 of the launcher",
        "3 hb devices=3 1 of the launcher",
        "4 hb devices= 1 of the launcher",
    ]


@pytest.mark.commit
def test_embedded_readers(place):
    hosts = place("-H", "ha:2,hb:2", "--readers-per-node", "1", "--embedded", "-x", "CUDA_VISIBLE_DEVICES")
    assert hosts == [
        f"{rank} {host} devices=3 1 1 of the launcher" for rank, host in enumerate(["ha", "ha", "hb", "hb"])
    ]


def test_readers_elsewhere(place):
    hosts = place(
        "-H", "ha:2,hb:2", "-np", "3", "--readers", "3", "--reader-hosts", "hc,hd", "-x", "CUDA_VISIBLE_DEVICES"
    )
    assert [line.split(" ")[1:3] for line in hosts] == [["ha", "devices=3"]] * 2 + [["hb", "devices=3"]] + [
        ["hc", "devices="]
    ] * 2 + [["hd", "devices="]]
    assert all(line.endswith("3 of the launcher") for line in hosts)


def test_readers_beside_trainers(place):
    hosts = place("-H", "ha:2,hb:2", "--readers", "3")
    assert [line.split(" ")[1] for line in hosts] == ["ha", "ha", "hb", "hb", "ha", "ha", "hb"]


def test_a_host_file_that_the_mpi_knows_too(place, tmp_path):
    """As in Kubernetes: Open MPI takes its slots from there as well."""
    (tmp_path / "hostfile").write_text("ha slots=2\nhb slots=2\n")
    hosts = place("--readers-per-node", "1", OMPI_MCA_orte_default_hostfile=str(tmp_path / "hostfile"))
    assert [line.split(" ")[1] for line in hosts] == ["ha", "ha", "ha", "hb", "hb", "hb"]


def test_ssh_port(place):
    place("-H", "ha:1,hb:1", "-p", "2222", "-i", "/my/key")
    assert "WITH -p 2222" in place.output and "WITH -i /my/key" in place.output


TRAINS = """
import os, socket
import horovod_data as hvdata
import tensorflow as tf
hvdata.init()
dataset = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(6), batch="per_rank")
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
if not hvdata.is_trainer():
    say("READS", socket.gethostname())
hvdata.serve()
say("GOT", socket.gethostname(), sorted(int(x) for x in dataset))
"""


@pytest.mark.commit
def test_a_job_over_hosts(by_name, tmp_path):
    (tmp_path / "train.py").write_text(TRAINS)
    job = run_launcher(
        "-H",
        "ha:2,hb:1",
        "--readers",
        "1",
        "--reader-hosts",
        "hc",
        sys.executable,
        str(tmp_path / "train.py"),
        env=by_name,
        timeout=80,
    )
    assert job.returncode == 0, job.output
    assert job.lines("READS") == ["hc"] and job.lines("GOT") == ["ha [0, 3]", "ha [1, 4]", "hb [2, 5]"], job.output
