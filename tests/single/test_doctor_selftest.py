# SPDX-License-Identifier: Apache-2.0
"""The doctor's findings about a job: from what its ranks tell, and after a failure."""

import copy

import pytest

from horovod_data.doctor import rank as rank_of_job
from horovod_data.doctor import selftest
from horovod_data.doctor.children import Told
from horovod_data.doctor.findings import Finding
from horovod_data.job.layout import make_layout


def job(hosts=("vm", "vm", "other"), layout=None, **of_all) -> list[dict]:
    """What the ranks of a healthy job tell. Rank 0 reads, unless a layout says who does."""
    layout = layout or make_layout(hosts)
    same = {"findings": [], "cores_present": 8, "init_seconds": 1.0, "wrong": "",
            "yields": False, "steps_per_second": {"small": 5000.0, "large": 100.0}}  # fmt: skip
    lanes = [{"reader": reader, "to": to, "rate": None, "arena": 9 * (hosts[to] == hosts[reader]),
              "message": 9 * (hosts[to] != hosts[reader])} for reader, to in rank_of_job.lanes_of(layout)]  # fmt: skip
    ranks = []
    for rank, host in enumerate(hosts):
        mine = [{**lane, "rate": 2e9 if lane["to"] == rank else None} for lane in lanes]
        trains = layout.trainer_index[rank] >= 0
        mine = [lane if rank in (lane["reader"], lane["to"]) else {**lane, "arena": 0, "message": 0} for lane in mine]
        ranks.append(copy.deepcopy({**same, **of_all, "trains": trains, "rank": rank, "host": host, "lanes": mine}))
    return ranks


def judge(ranks, payload="auto", stderr="", mpi="Open MPI v4.1.4", ended="", environ=None) -> dict[str, Finding]:
    told = Told([{"started": True}, {"ranks": ranks}], ended, stderr)
    found = selftest.judge(told, payload, ["mpirun"], mpi, environ or {"OMPI_MCA_oob_tcp_keepalive_time": "1"})
    return {one.name: one for one in found}


def problems(found) -> set[str]:
    return {name for name, one in found.items() if one.level != "ok"}


# ---- A job that works.


def test_all_is_well():
    assert not problems(judge(job(hosts=["vm"])))
    found = judge(job())
    assert not problems(found)
    assert found["this job.start"].value == "3 ranks on 2 hosts (vm, other); 1.0 s for init()"
    assert found["this job.lanes"].value.endswith("to 1 2.00 GB/s (arena), to 2 2.00 GB/s (message)")
    assert "5,000 steps/s with 4 KiB per rank; 100 steps/s with 4 MiB, 1.26 GB/s" in found["this job.together"].value


def test_dedicated_readers():
    """They receive nothing, so the job's rates are those of the trainers."""
    ranks = job(layout=make_layout(["vm", "vm", "other"], readers=1))
    ranks[2]["steps_per_second"] = {"small": 0.0, "large": 0.0}
    found = judge(ranks)
    assert not problems(found)
    assert found["this job.lanes"].value == (
        "one by one, batches of 4 MiB: from rank 2 to 0 2.00 GB/s (message), to 1 2.00 GB/s (message)"
    )
    assert "100 steps/s with 4 MiB, 0.84 GB/s" in found["this job.together"].value
    lanes = judge(job(["vm"] * 4, make_layout(["vm"] * 4, readers=2)))["this job.lanes"].value
    assert lanes.count("from rank 2 to 0 2.00 GB/s (arena), to 1 ") == lanes.count("from rank 3 to 0 ") == 1


def test_readers_that_serve_nobody_but_themselves():
    hosts = ["vm", "other"]
    found = judge(job(hosts, make_layout(hosts, readers_per_node=1, embedded=True)))
    assert not problems(found) and found["this job.lanes"].value.startswith("none: ")


NOWHERE = {"PATH": ""}


@pytest.mark.parametrize("ranks, given, name, level, value, advice", [
    ({"wrong": "rank 2 got 3, not 4"}, {"payload": "arena"}, "self-test, arena.delivery", "error", "rank 2 got 3", "don't train"),
    ({"cores_present": 1}, {}, "this job.waiting", "warning", "on vm", "mpi_yield_when_idle 1"),
    ({}, {"environ": NOWHERE}, "this job.lost hosts", "warning", "", "--mca oob_tcp_keepalive_time 1"),
    ({}, {"ended": "by signal 6 (SIGABRT)"}, "this job.end", "error", "SIGABRT", ""),
])  # fmt: skip
def test_a_problem_of_the_job(ranks, given, name, level, value, advice):
    found = judge(job(**ranks), **given)[name]
    assert found.level == level and value in found.value and advice in found.advice, found


@pytest.mark.parametrize("ranks, given", [
    ({"cores_present": 1, "yields": True}, {}),
    ({}, {"mpi": "MPICH 4.0.2", "environ": NOWHERE}),
    ({"hosts": ["vm", "vm"]}, {"environ": NOWHERE}),
])  # fmt: skip
def test_no_problem_of_the_job(ranks, given):
    assert not problems(judge(job(**ranks), **given))


def test_shared_memory_that_is_not_used():
    ranks = job()
    for one in ranks:
        one["lanes"][0] |= {"arena": 0, "message": 9}
    why = "horovod_data: [rank 1 on vm] can't use the shared memory of rank 0 on vm (connecting failed: Connection refused)"
    found = judge(ranks, stderr=f"noise\n{why}\n")
    assert problems(found) == {"this job.shared memory"} and why in found["this job.shared memory"].value
    assert "seccomp" in found["this job.shared memory"].advice
    assert not problems(judge(ranks, "message"))  # as it was told to


@pytest.mark.parametrize("told, yields", [("", False), ("oversubscribe=1", True), ("yield_when_idle=0 oversubscribe=1", False),
                                          ("yield_when_idle=1", True)])  # fmt: skip
def test_what_the_variables_say_of_waiting(told, yields):
    environ = {f"OMPI_MCA_mpi_{name}": value for name, _, value in (one.partition("=") for one in told.split())}
    assert rank_of_job.yields(environ) == yields


# ---- A job that doesn't.


@pytest.mark.parametrize("stderr, ended, value, advice", [
    ("There are not enough slots available in the system\n", "with status 1", "with status 1: There are not", "--np"),
    ("mpirun has detected an attempt to run as root.\n", "with status 1", "as root", "OMPI_ALLOW_RUN_AS_ROOT=1"),
    ("ORTE was unable to reliably start one or more daemons.\n", "with status 1", "daemons", "without a password"),
    ("sh: python: command not found\n", "with status 127", "127", "in the same folders"),
    ("", "not within 90 s", "not within 90 s: it printed nothing", "`mpirun -np 2 hostname`"),
])  # fmt: skip
def test_a_job_that_does_not_start(stderr, ended, value, advice):
    (found,) = selftest.judge(Told([], ended, stderr), "arena", ["mpirun"], None, {})
    assert (found.name, found.level) == ("self-test, arena.start", "error")
    assert value in found.value and advice in found.advice


def test_a_rank_that_says_why():
    why = "RuntimeError: MPI sees this process alone. Start the job with `mpirun`."
    failed = {"failed": why, "host": "vm"}
    (found,) = selftest.judge(Told([failed], "with status 1", "noise"), "message", ["mpirun"], None, {})
    assert (found.name, found.value) == ("self-test, message.start", "on vm: RuntimeError: MPI sees this process alone")
    assert found.advice == "Start the job with `mpirun`"
    (found,) = selftest.judge(Told([{"started": True}, failed], "", ""), "message", ["mpirun"], None, {})
    assert found.name == "self-test, message.run"


@pytest.mark.parametrize("launcher, mpi, only_srun, level, advice", [
    ("mpirun", "Open MPI v4.1.4", False, "error", "Put MPI's mpirun into PATH"),
    ("mpirun", "Open MPI v4.1.4", True, "warning", "`srun --mpi=pmix -n 2 python -m horovod_data.doctor`"),
    ("mpirun", "MPICH 4.0.2", True, "warning", "`srun --mpi=pmi2 -n 2 python -m horovod_data.doctor`"),
    ("mine", "MPICH 4.0.2", True, "error", "name another launcher with --launcher"),  # asked for, and not there
])  # fmt: skip
def test_no_launcher_for_a_job(launcher, mpi, only_srun, level, advice):
    found = selftest.skipped([launcher], mpi, only_srun)
    assert (found.name, found.level) == ("self-test.skipped", level) and advice in found.advice
    assert f"there is no {launcher} in PATH" in found.value


# ---- Which lanes.


def test_all_lanes_of_small_jobs_and_some_of_large_ones():
    for size in 1, 2, 4, 17:
        assert rank_of_job.lanes_of(make_layout(["vm"] * size)) == [(0, to) for to in range(1, size)]
    lanes = rank_of_job.lanes_of(make_layout(["vm"] * 4096))
    assert len(set(lanes)) == 16 and lanes[0] == (0, 1) and 3500 < lanes[-1][1] < 4096


def test_lanes_go_from_readers_to_the_ranks_they_serve():
    assert rank_of_job.lanes_of(make_layout(["vm"] * 4, readers=2)) == [(2, 0), (2, 1), (3, 0), (3, 1)]
    hosts = ["a", "b", "a", "b"]
    assert rank_of_job.lanes_of(make_layout(hosts, readers_per_node=1)) == [(2, 0), (3, 1)]
    assert rank_of_job.lanes_of(make_layout(hosts, readers_per_node=1, embedded=True)) == [(0, 2), (1, 3)]
