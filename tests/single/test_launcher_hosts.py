# SPDX-License-Identifier: Apache-2.0
"""Hosts and slots in all their spellings: options, host files, Slurm, PBS, LSF, Kubernetes."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launched import executable

from horovod_data.launcher import LaunchError
from horovod_data.launcher.hosts import (
    Host,
    expand_counts,
    find_allocation,
    parse_hostfile,
    parse_hosts,
    parse_names,
    read_hostfile,
)


def spelled(hosts) -> str:
    return " ".join(map(str, hosts))


@pytest.mark.parametrize("text, hosts", [
    ("a:4", "a:4"), ("a:4,b:2", "a:4 b:2"), ("a,b", "a:1 b:1"), ("a,b,a", "a:2 b:1"), (" a:1 , b:2 ", "a:1 b:2"),
    ("gpu-01.cluster.example:8", "gpu-01.cluster.example:8"), ("10.0.0.1:2,10.0.0.2:2", "10.0.0.1:2 10.0.0.2:2"),
])  # fmt: skip
def test_lists_of_hosts(text, hosts):
    assert spelled(parse_hosts(text)) == hosts


@pytest.mark.parametrize("text, said", [
    ("", "-H : '' is not a host with its slots. Write it as -H host1:4,host2:4."), (" ", "'' is not a host"),
    ("a:4,,b:2", "-H a:4,,b:2: '' is not a host"), ("a:four", "'a:four' is not a host"), ("a:4:5", "'a:4:5' is not"),
    ("a b", "'a b' is not"), ("a:0", "-H a:0: a host with 0 slots"), ("a:-1", "'a:-1' is not"), ("-a:1", "'-a:1' is not"),
])  # fmt: skip
def test_lists_that_are_none(text, said):
    with pytest.raises(LaunchError, match=re.escape(said)):
        parse_hosts(text)


@pytest.mark.parametrize("text, said", [
    ("", "--reader-hosts : '' is not the name of a host"), (" , ", "'' is not the name of a host"),
    ("cpu1:2", "--reader-hosts cpu1:2: 'cpu1:2' is not the name of a host. Write names alone"),
])  # fmt: skip
def test_names(text, said):
    assert parse_names("cpu1, cpu2,cpu1", "--reader-hosts") == ("cpu1", "cpu2")
    with pytest.raises(LaunchError, match=re.escape(said)):
        parse_names(text, "--reader-hosts")


@pytest.mark.parametrize("text, hosts", [
    ("a slots=4\nb slots=2\n", "a:4 b:2"),  # Horovod, Open MPI
    ("a cpu=4\nb count = 2\n", "a:4 b:2"), ("a slots=4 cpu-max=8 max_count=9 count_max=9 max-cpu=8\n", "a:4"),
    ("a slots = 4 max_slots=8\n", "a:4"), ("a max-slots=8\n", "a:1"), ("a max-slots=8 slots=4\nb max_slots=2 slots=1", "a:4 b:1"), ("# ours\n\na slots=2 # the first\nb\n", "a:2 b:1"),
    ("a:4\nb:4\n", "a:4 b:4"),  # MPICH, Intel MPI
    ("a:4 binding=user:0\n", "a:4"),
    ("a\na\nb\n", "a:2 b:1"),  # PBS, LSF: a line for each slot
    ("mpi-worker-0.mpi.default.svc slots=1\nmpi-worker-1.mpi.default.svc slots=1\n",
     "mpi-worker-0.mpi.default.svc:1 mpi-worker-1.mpi.default.svc:1"),  # Kubernetes' MPI operator
])  # fmt: skip
def test_host_files(text, hosts):
    assert spelled(parse_hostfile(text, "hosts")) == hosts


@pytest.mark.parametrize("text, said", [
    ("", "hosts names no host"), ("# nothing\n", "hosts names no host"),
    ("a slots=4\nb slots=many\n", "hosts, line 2: 'b slots=many' is not a host with its slots. Write each line as `host slots=4`"),
    ("a\nb cpus=4\n", "hosts, line 2: 'b cpus=4' is not a host with its slots"), ("a slot=4\n", "'a slot=4' is not a host"),
    ("a slots=4 SLOTS=4\n", "is not a host"), ("a my-slots=4\n", "is not a host"), ("a user=me\n", "For user@host, set `User`"),
    ("a slots=4 slots=2\n", "'a slots=4 slots=2' is not a host with its slots"), ("a cpu=2 count=2\n", "is not a host with its slots"),
    ("a count=0\n", "hosts, line 1: a host with 0 slots"), ("a:4 slots=4\n", "hosts, line 1: 'a:4 slots=4'"), ("a 4\n", "hosts, line 1: 'a 4'"), ("a slots=0", "hosts, line 1: a host with 0"),
])  # fmt: skip
def test_host_files_that_are_none(text, said):
    with pytest.raises(LaunchError, match=re.escape(said)):
        parse_hostfile(text, "hosts")


names = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True)


@given(st.dictionaries(names, st.integers(1, 99), min_size=1, max_size=8))
def test_all_spellings_of_the_same_hosts(slots):
    expected = tuple(Host(name, count) for name, count in slots.items())
    assert parse_hosts(",".join(f"{name}:{count}" for name, count in slots.items())) == expected
    assert parse_hostfile("\n".join(f"{name} slots={count}" for name, count in slots.items()), "f") == expected
    assert parse_hostfile("\n".join(f"{name}:{count}" for name, count in slots.items()), "f") == expected
    assert parse_hostfile("\n".join(name for name, count in slots.items() for _ in range(count)), "f") == expected


def test_counts():
    assert expand_counts("4") == [4] and expand_counts("4(x2),3") == [4, 4, 3]
    for text in "4(x0)", "x", "0", "4,", "-1", "":
        assert expand_counts(text) == []


SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "gpu[1-3]", "SLURM_TASKS_PER_NODE": "4(x2),2"}


@pytest.fixture
def scontrol(monkeypatch, tmp_path):
    """A tool of Slurm that knows other names."""
    monkeypatch.setenv("PATH", str(tmp_path))
    executable(tmp_path / "scontrol", '[ -z "$3" ] || for i in 1 2 3; do echo $1-$2-$i; done')


def test_slurm(scontrol):
    found = find_allocation(SLURM)
    assert spelled(found.hosts) == "show-hostnames-1:4 show-hostnames-2:4 show-hostnames-3:2"
    assert found.source == "Slurm's job 7"


def test_slurm_without_its_tool(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    wrong = r"scontrol can't list the hosts of gpu\[1-3\] \(.*Say where to run with -H"
    with pytest.raises(LaunchError, match=wrong):
        find_allocation(SLURM)


@pytest.mark.parametrize("name, value", [
    ("SLURM_TASKS_PER_NODE", "4"), ("SLURM_TASKS_PER_NODE", ""), ("SLURM_JOB_NODELIST", "")])  # fmt: skip
def test_slurms_variables_that_do_not_fit(scontrol, name, value):
    wrong = "Slurm's variables do not fit together: SLURM_JOB_NODELIST=.*Say where to run"
    with pytest.raises(LaunchError, match=wrong):
        find_allocation({**SLURM, name: value})


# What the systems write about a job of 2 hosts with 2 slots each.
SLOTS, ON_SLOTS = (
    "node07.cluster\nnode07.cluster\nnode12.cluster\nnode12.cluster\n",
    "node07.cluster:2 node12.cluster:2",
)
HOSTS, ON_HOSTS = "worker-0.job.svc slots=2\nworker-1.job.svc slots=2\n", "worker-0.job.svc:2 worker-1.job.svc:2"


@pytest.mark.parametrize("variable, text, hosts, source", [
    ("PBS_NODEFILE", SLOTS, ON_SLOTS, "PBS"),
    ("LSB_DJOB_HOSTFILE", SLOTS, ON_SLOTS, "LSF"),
    ("OMPI_MCA_orte_default_hostfile", HOSTS, ON_HOSTS, "Open MPI's"),
    ("HYDRA_HOST_FILE", HOSTS.replace(" slots=", ":"), ON_HOSTS, "Hydra's"),
])  # fmt: skip
def test_files_of_batch_systems(tmp_path, variable, text, hosts, source):
    (tmp_path / "file").write_text(text)
    found = find_allocation({variable: str(tmp_path / "file")})
    assert spelled(found.hosts) == hosts and found.source.startswith(source) and variable in found.source


def test_files_that_are_not_there():
    with pytest.raises(LaunchError, match="--hostfile '' names no file. Name one, as in --hostfile hosts.txt"):
        read_hostfile("", "--hostfile")
    with pytest.raises(LaunchError, match="PBS_NODEFILE names the host file /no/such/file, which can't be read"):
        find_allocation({"PBS_NODEFILE": "/no/such/file"})
    assert find_allocation({"HOME": "/root", "PBS_NODEFILE": ""}) is None
