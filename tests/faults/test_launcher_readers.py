# SPDX-License-Identifier: Apache-2.0
"""Jobs with several readers, or one on each host, as horovod-data-run starts them: who reads, and what each rank gets."""

import os
import subprocess
import sys

import pytest
from launched import run_launcher

pytestmark = [pytest.mark.limit(150), pytest.mark.slow]

# Reader i of R reads the numbers 100 i, 100 i + 1, ...: what a rank gets shows whose they are.
TRAINS = """
import os, socket
import horovod_data as hvdata
import tensorflow as tf
hvdata.init()
def make(context):
    return tf.data.Dataset.range(12).map(lambda x: x + 100 * context.input_pipeline_id)
dataset = hvdata.distribute_dataset(make, batch="per_rank")
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
say("WHO", socket.gethostname(), hvdata.rank(), hvdata.size(), hvdata.num_readers(),
    "reads" if hvdata.is_reader() else "", "trains" if hvdata.is_trainer() else "")
hvdata.serve()
for x in dataset:
    say("GOT", socket.gethostname(), hvdata.rank(), int(x))
"""

AGENT = """#!/bin/sh
while :; do case $1 in -*) shift ;; *) break ;; esac; done
host=$1; shift
exec unshare --uts sh -c 'hostname "$0" && exec sh -c "$*"' "$host" "$@"
"""
may_rename = os.geteuid() == 0 and subprocess.run(["unshare", "--uts", "true"], capture_output=True).returncode == 0
over_hosts = pytest.mark.skipif(not may_rename, reason="needs root, for host names of its own")


@pytest.fixture
def train(tmp_path):
    (tmp_path / "train.py").write_text(TRAINS)
    return [sys.executable, str(tmp_path / "train.py")]


@pytest.fixture
def by_name(tmp_path):
    """The variables that have both MPIs start their daemons on hosts that are there by name alone."""
    (tmp_path / "agent").write_text(AGENT)
    (tmp_path / "agent").chmod(0o755)
    agent = str(tmp_path / "agent")
    return {
        "OMPI_MCA_plm_rsh_agent": agent,
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": agent,
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }  # the hosts share the cores of this one


def got(job) -> dict[int, list[int]]:
    """The numbers of each trainer."""
    found: dict[int, list[int]] = {}
    for line in job.lines("GOT"):
        _, rank, number = line.split()
        found.setdefault(int(rank), []).append(int(number))
    return {rank: sorted(numbers) for rank, numbers in found.items()}


def test_two_readers(train):
    job = run_launcher("-np", "2", "--readers", "2", *train, timeout=120)
    assert job.returncode == 0, job.output
    who = [line.split(" ", 1)[1] for line in job.lines("WHO")]
    assert who == ["0 2 2  trains", "1 2 2  trains"] + ["None None 2 reads"] * 2, job.output
    assert sorted(sum(got(job).values(), [])) == list(range(12)) + list(range(100, 112)), job.output
    assert len(got(job)[0]) == len(got(job)[1]) == 12


@over_hosts
def test_a_reader_on_each_host(train, by_name):
    job = run_launcher("-H", "ha:2,hb:2", "--readers-per-node", "1", *train, env=by_name, timeout=120)
    assert job.returncode == 0, job.output
    assert job.lines("WHO") == [
        "ha 0 4 2  trains",
        "ha 1 4 2  trains",
        "ha None None 2 reads",
        "hb 2 4 2  trains",
        "hb 3 4 2  trains",
        "hb None None 2 reads",
    ], job.output
    numbers = got(job)
    assert sorted(numbers[0] + numbers[1]) == list(range(12))  # trainers are served by their own host's reader
    assert sorted(numbers[2] + numbers[3]) == list(range(100, 112))


@over_hosts
def test_the_first_trainer_of_each_host_reads(train, by_name):
    job = run_launcher("-H", "ha:2,hb:2", "--readers-per-node", "1", "--embedded", *train, env=by_name, timeout=120)
    assert job.returncode == 0, job.output
    assert job.lines("WHO") == [
        "ha 0 4 2 reads trains",
        "ha 1 4 2  trains",
        "hb 2 4 2 reads trains",
        "hb 3 4 2  trains",
    ], job.output
    numbers = got(job)
    assert sorted(numbers[0] + numbers[1]) == list(range(12))
    assert sorted(numbers[2] + numbers[3]) == list(range(100, 112))
