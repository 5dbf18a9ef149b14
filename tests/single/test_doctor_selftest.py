# SPDX-License-Identifier: Apache-2.0
"""The doctor's findings about a job: from what its ranks measure, and after a failure."""

import pytest

from horovod_data.doctor import selftest
from horovod_data.doctor.children import Output
from horovod_data.doctor.findings import Finding
from horovod_data.job.layout import make_layout


def job(hosts=("vm", "vm", "other"), layout=None, **of_all) -> list[dict]:
    """What the ranks of a healthy job measure. Rank 0 reads, unless a layout says who does."""
    layout = layout or make_layout(hosts)
    ranks = []
    for rank, host in enumerate(hosts):
        serves = [to for to in layout.group_trainers(rank) if to != rank] if rank in layout.readers else []
        near = [hosts[to] == host for to in serves]
        ranks.append({
            "rank": rank, "host": host, "trains": layout.trainer_index[rank] >= 0, "serves": serves,
            "arena": 9 * any(near), "message": 9 * (not all(near)), "init_seconds": 1.0,
            "steps_per_second": {"small": 5000.0, "large": 100.0}, **of_all,
        })  # fmt: skip
    return ranks


def judge(ranks, payload="auto") -> dict[str, Finding]:
    return {one.name: one for one in selftest.of_ranks(ranks, payload, "this job")}


def judge_started(ranks, ended="", stderr="") -> dict[str, Finding]:
    output = Output([{"started": True}, {"ranks": ranks}], ended, stderr)
    return {one.name: one for one in selftest.judge(output, "arena", ["mpirun"])}


def problems(found) -> set[str]:
    return {name for name, one in found.items() if one.level != "ok"}


# ---- A job that works.


def test_all_is_well():
    assert not problems(judge(job(hosts=["vm"])))
    found = judge(job())
    assert not problems(found)
    assert found["this job.start"].value == "3 ranks on 2 hosts (vm, other); 1.0 s for init()"
    together = found["this job.together"].value
    assert (
        together
        == "5,000 steps/s with 4 KiB per rank; 100 steps/s with 4 MiB, 1.26 GB/s for all ranks (arena and message)"
    )


def test_dedicated_readers():
    """Dedicated readers receive nothing, so the job's rates are those of the trainers."""
    ranks = job(layout=make_layout(["vm", "vm", "other"], readers=1))
    ranks[2]["steps_per_second"] = {"small": 0.0, "large": 0.0}
    found = judge(ranks)
    assert not problems(found)
    assert found["this job.together"].value.endswith("100 steps/s with 4 MiB, 0.84 GB/s for all ranks (message)")


def test_readers_that_serve_nobody_but_themselves():
    hosts = ["vm", "other"]
    found = judge(job(hosts, make_layout(hosts, readers_per_node=1, embedded=True)))
    assert not problems(found) and found["this job.together"].value.endswith("(no other rank)")


def test_a_self_test_that_ends_badly():
    found = judge_started(job(), ended="by signal 6 (SIGABRT)")["self-test, arena.end"]
    assert found.level == "error" and "SIGABRT" in found.value


@pytest.mark.parametrize("hosts, arena", [(("vm", "vm", "other"), 0), (("vm", "vm", "vm"), 9)])
def test_shared_memory_that_is_not_used(hosts, arena):
    """Or that one of two ranks uses."""
    ranks = job(hosts)
    ranks[0] |= {"arena": arena, "message": 9}
    assert problems(judge(ranks)) == {"this job.shared memory"} and not problems(judge(ranks, "message"))
    why = "horovod_data: [rank 1 on vm] can't use the shared memory of rank 0 on vm (connecting failed: Connection refused)"
    found = judge_started(ranks, stderr=f"noise\n{why}\n")["self-test, arena.shared memory"]
    assert why in found.value and "seccomp" in found.advice


# ---- A job that doesn't.


@pytest.mark.parametrize("stderr, ended, value, advice", [
    ("There are not enough slots available in the system\n", "with status 1", "with status 1: There are not", "--np"),
    ("mpirun has detected an attempt to run as root.\n", "with status 1", "as root", "OMPI_ALLOW_RUN_AS_ROOT=1"),
    ("ORTE was unable to reliably start one or more daemons.\n", "with status 1", "daemons", "without a password"),
    ("sh: python: command not found\n", "with status 127", "127", "in the same folders"),
    ("", "not within 90 s", "not within 90 s: it printed nothing", "`mpirun -np 2 hostname`"),
])  # fmt: skip
def test_a_job_that_does_not_start(stderr, ended, value, advice):
    (found,) = selftest.judge(Output([], ended, stderr), "arena", ["mpirun"])
    assert (found.name, found.level) == ("self-test, arena.start", "error")
    assert value in found.value and advice in found.advice


def test_a_rank_that_says_why():
    why = "RuntimeError: MPI sees this process alone. Start the job with `mpirun`."
    failed = {"failed": why, "host": "vm"}
    (found,) = selftest.judge(Output([failed], "with status 1", "noise"), "message", ["mpirun"])
    assert (found.name, found.value) == ("self-test, message.start", "on vm: RuntimeError: MPI sees this process alone")
    assert found.advice == "Start the job with `mpirun`"
    (found,) = selftest.judge(Output([{"started": True}, failed], "", ""), "message", ["mpirun"])
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
