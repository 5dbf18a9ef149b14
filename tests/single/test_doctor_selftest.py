# SPDX-License-Identifier: Apache-2.0
"""What the doctor makes of a job: of what its ranks tell, of what MPI says of its transports, and of one that fails.

The lines of MPI libraries are what real ones have written.
"""

import copy

import pytest

from horovod_data.doctor import rank as rank_of_job
from horovod_data.doctor import selftest, transports
from horovod_data.doctor.children import Told
from horovod_data.doctor.findings import Finding
from horovod_data.job.layout import make_layout

OPEN_MPI = """\
[vm:04033] select: component v not in the include list
[vm:04033] selected ob1 best priority 20
[vm:04033] select: component ob1 selected
[vm:04033] check:select: PML check not necessary on self
[vm:04033] mca: bml: Using vader btl for send to [[25411,1],1] on node vm
[vm:04034] mca: bml: Using vader btl for send to [[25411,1],0] on node vm
[vm:04033] mca: bml: Using self btl for send to [[25411,1],0] on node vm
[vm:04033] mca: bml: Using tcp btl for send to [[25411,1],2] on node other
"""
UCX = """\
[1795249708.613094] [vm:4033 :0]     ucp_context.c:1849 UCX  INFO  Version 1.13.1 (loaded from /lib/libucp.so.0)
[1795249708.658653] [vm:4033 :0]      ucp_worker.c:1763 UCX  INFO    ep_cfg[0]: tag(sysv/memory cma/memory) \
rma(sysv/memory posix/memory) am(sysv/memory cma/memory)
[1795249708.659168] [vm:9:0]      ucp_worker.c:1763 UCX  INFO    ep_cfg[0]: tag(tcp/eth0)
"""


def job(hosts=("vm", "vm", "other"), layout=None, **of_all) -> list[dict]:
    """What the ranks of a healthy job tell. Rank 0 reads, unless a layout says who does."""
    layout = layout or make_layout(hosts)
    same = {"findings": [], "said": "", "cores_present": 8, "import_seconds": 3.0, "init_seconds": 1.0, "wrong": "",
            "yields": False, "steps_per_second": {"small": 5000.0, "large": 100.0}}  # fmt: skip
    lanes = [{"reader": reader, "to": to, "rate": None, "arena": 9 * (hosts[to] == hosts[reader]),
              "message": 9 * (hosts[to] != hosts[reader])} for reader, to in rank_of_job.lanes_of(layout)]  # fmt: skip
    ranks = []
    for rank, host in enumerate(hosts):
        mine = [{**lane, "rate": 2e9 if lane["to"] == rank else None} for lane in lanes]
        roles = {"reads": layout.reader_index[rank] >= 0, "trains": layout.trainer_index[rank] >= 0,
                 "group": layout.group[rank]}  # fmt: skip
        mine = [lane if rank in (lane["reader"], lane["to"]) else {**lane, "arena": 0, "message": 0} for lane in mine]
        ranks.append(
            copy.deepcopy({**same, **roles, **of_all, "rank": rank, "host": host, "pid": 4033 + rank, "lanes": mine})
        )
    return ranks


def judge(ranks, payload="auto", stderr="", mpi="Open MPI v4.1.4", ended="", environ=None) -> dict[str, Finding]:
    told = Told([{"started": True}, {"ranks": ranks}], ended, stderr)
    found = selftest.judge(told, payload, ["mpirun"], mpi, environ or {"OMPI_MCA_oob_tcp_keepalive_time": "1"})
    return {one.name: one for one in found}


def problems(found) -> set[str]:
    return {name for name, one in found.items() if one.level != "ok"}


def between(stderr, ranks, mpi) -> Finding:
    return transports.between(stderr, ranks[0], ranks, mpi)


# ---- Transports.


def test_what_open_mpi_says():
    assert transports.btls_of(OPEN_MPI, 4033) == {0: {"self"}, 1: {"vader"}, 2: {"tcp"}}
    assert transports.btls_of(OPEN_MPI, 4034) == {0: {"vader"}}
    found = between(OPEN_MPI, job(), "Open MPI v4.1.4")
    assert (found.level, found.value) == ("ok", "Open MPI's ob1: vader to 1 on vm, tcp to 2 on other")


def test_what_ucx_says_and_what_it_does_not():
    assert transports.ucx_of(UCX, 4033) == ["sysv", "cma", "posix"]
    found = between(UCX, job(), "MPICH 4.0.2")
    assert "sysv, cma, posix; it doesn't say to which rank" in found.value
    assert "ranks 0, 1 on vm, rank 2 on other" in found.value


def test_an_mpi_that_says_nothing():
    assert "MPICH 4.0.2 doesn't say which transport" in between("", job(), "MPICH 4.0.2").value
    cm = "[vm:04033] select: component cm selected\n"
    assert "Open MPI v4.1.4 with its cm doesn't say" in between(cm, job(), "Open MPI v4.1.4").value


def test_tcp_within_a_host():
    found = between(OPEN_MPI.replace("vader", "tcp"), job(), "Open MPI v4.1.4")
    assert found.level == "warning" and "Messages to 1 on the same host" in found.advice and "add vader" in found.advice


def test_each_reader_says_which_way_it_sends_to_those_that_it_serves():
    """What it said on its own host. Of other ranks, which it serves nothing, MPI may speak too."""
    hosts = ["vm", "vm", "other", "other"]
    ranks = job(hosts, make_layout(hosts, readers_per_node=1))
    ranks[1]["said"] = transports.telling(
        "noise\n[vm:4034] mca: bml: Using vader btl for send to [[1,1],0] on node vm\n"
        "[vm:4034] mca: bml: Using tcp btl for send to [[1,1],2] on node other"
    )
    ranks[3]["said"] = "[other:4036] mca: bml: Using tcp btl for send to [[1,1],2] on node other"
    found = judge(ranks, stderr=OPEN_MPI)
    assert {name for name in found if name.startswith("transports.from")} == {
        "transports.from rank 1",
        "transports.from rank 3",
    }
    assert (
        "noise" not in ranks[1]["said"] and found["transports.from rank 1"].value == "Open MPI's ob1: vader to 0 on vm"
    )
    assert found["transports.from rank 3"].level == "warning"


# ---- A job that works.


def test_all_is_well():
    found = judge(job(), stderr=OPEN_MPI)
    assert not problems(found)
    assert found["this job.start"].value == "3 ranks on 2 hosts (vm, other); 3.0 s for imports, 1.0 s for init()"
    assert found["this job.lanes"].value.endswith("to 1 2.00 GB/s (arena), to 2 2.00 GB/s (message)")
    assert "5,000 steps/s with 4 KiB per rank; 100 steps/s with 4 MiB, 1.26 GB/s" in found["this job.together"].value


def test_one_rank_alone():
    assert not problems(judge(job(hosts=["vm"])))


def test_dedicated_readers():
    """They are given nothing, so the job's rates are those of the others."""
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


def test_wrong_batches():
    ranks = job()
    ranks[2]["wrong"] = 'batch="per_rank": rank 2 got 3, not 4'
    found = judge(ranks, "arena")["self-test, arena.delivery"]
    assert found.level == "error" and "rank 2 got 3, not 4" in found.value and "don't train" in found.advice


def test_shared_memory_that_is_not_used():
    ranks = job()
    for one in ranks:
        one["lanes"][0] |= {"arena": 0, "message": 9}
    why = "horovod_data: [rank 1 on vm] can't use the shared memory of rank 0 on vm (opening it failed: Permission denied)"
    found = judge(ranks, stderr=f"noise\n{why}\n")
    assert problems(found) == {"this job.shared memory"} and why in found["this job.shared memory"].value
    assert "seccomp" in found["this job.shared memory"].advice
    assert not problems(judge(ranks, "message"))  # as it was told to


def test_more_ranks_than_cores_that_keep_their_core():
    found = judge(job(cores_present=1))["this job.waiting"]
    assert found.level == "warning" and "mpi_yield_when_idle 1" in found.advice and "on vm" in found.value
    assert not problems(judge(job(cores_present=1, yields=True)))


@pytest.mark.parametrize("told, yields", [("", False), ("oversubscribe=1", True), ("yield_when_idle=0 oversubscribe=1", False),
                                          ("yield_when_idle=1", True)])  # fmt: skip
def test_what_the_variables_say_of_waiting(told, yields):
    environ = {f"OMPI_MCA_mpi_{name}": value for name, _, value in (one.partition("=") for one in told.split())}
    assert rank_of_job.yields(environ) == yields


def test_hosts_that_may_be_lost():
    found = judge(job(), environ={"PATH": ""})["this job.lost hosts"]
    assert found.level == "warning" and "--mca oob_tcp_keepalive_time 1" in found.advice
    assert not problems(judge(job(), mpi="MPICH 4.0.2", environ={"PATH": ""}))
    assert not problems(judge(job(hosts=["vm", "vm"]), environ={"PATH": ""}))


def test_a_job_that_ends_badly():
    found = judge(job(), ended="by signal 6 (SIGABRT)")["this job.end"]
    assert found.level == "error" and "SIGABRT" in found.value


# ---- A job that doesn't.


@pytest.mark.parametrize("stderr, ended, value, advice", [
    ("There are not enough slots available in the system\n", "with status 1", "with status 1: There are not", "--np"),
    ("mpirun has detected an attempt to run as root.\n", "with status 1", "as root", "OMPI_ALLOW_RUN_AS_ROOT=1"),
    ("ORTE was unable to reliably start one or more daemons.\n", "with status 1", "daemons", "without a password"),
    ("sh: python: command not found\n", "with status 127", "127", "in the same folders"),
    ("", "not within 90 s", "not within 90 s: it said nothing", "`mpirun -np 2 hostname`"),
])  # fmt: skip
def test_a_job_that_does_not_start(stderr, ended, value, advice):
    (found,) = selftest.judge(Told([], ended, stderr), "arena", ["mpirun"], None, {})
    assert (found.name, found.level) == ("self-test, arena.start", "error")
    assert value in found.value and advice in found.advice


def test_a_rank_that_says_why():
    failed = {
        "failed": "RuntimeError: MPI sees this process alone. Start the job with `mpirun`.",
        "host": "vm",
        "pid": 1,
    }
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


@pytest.mark.parametrize("size, lanes", [(1, []), (2, [1]), (4, [1, 2, 3]), (17, list(range(1, 17)))])
def test_all_lanes_of_small_jobs(size, lanes):
    assert rank_of_job.lanes_of(make_layout(["vm"] * size)) == [(0, to) for to in lanes]


def test_some_lanes_of_large_jobs():
    lanes = rank_of_job.lanes_of(make_layout(["vm"] * 4096))
    assert len(set(lanes)) == 16 and lanes[0] == (0, 1) and 3500 < lanes[-1][1] < 4096


def test_lanes_begin_at_those_who_read_and_end_at_those_whom_they_serve():
    assert rank_of_job.lanes_of(make_layout(["vm"] * 4, readers=2)) == [(2, 0), (2, 1), (3, 0), (3, 1)]
    hosts = ["a", "b", "a", "b"]
    assert rank_of_job.lanes_of(make_layout(hosts, readers_per_node=1)) == [(2, 0), (3, 1)]
    assert rank_of_job.lanes_of(make_layout(hosts, readers_per_node=1, embedded=True)) == [(0, 2), (1, 3)]
