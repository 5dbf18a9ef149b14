# SPDX-License-Identifier: Apache-2.0
"""However a rank ends, the job ends with it: with its status, within seconds, without a wait for those that hang."""

import functools
import re
import shutil
import subprocess

import jobs
import pytest
from jobs import SOON
from ranks.worlds import CAN_NAME_HOSTS

run_job = functools.partial(jobs.run_job, timeout=120)  # for a machine under load: most take 5 s
pytestmark = [
    pytest.mark.limit(150),
    pytest.mark.usefixtures("verified"),
]  # so that a job that hangs fails with its stacks

# Rank 1 ends in its own way while rank 0 waits in a collective for it.
ONE_FAILS = """
import os, sys, threading, time
{before}
import horovod_data as hvdata
hvdata.init()
if hvdata.rank() == 1:
    print('ENDS', time.monotonic(), flush=True)
    {end}
import horovod.tensorflow as hvd
import tensorflow as tf
hvd.allreduce(tf.zeros(2), name="waits for rank 1")
time.sleep(1000)
"""

BARE = "sys.modules['horovod'] = None  # as if it were not installed"
AFTER_HOROVOD = "import horovod.tensorflow as hvd; hvd.init()"
AFTER_MPI4PY = "from mpi4py import MPI"


@pytest.mark.horovod
@pytest.mark.parametrize("end, status, said", [
    ("sys.exit(3)", 3, r"\[rank 1 on \S+\] the program ends with status 3, and the job with it"),
    ("quit(5)", 5, r"\[rank 1 on \S+\] the program ends with status 5, and the job with it"),
    ("sys.exit('out of coffee')", 1, "out of coffee"),
    ("raise ValueError('no such file')", 1, "ValueError: no such file"),
    ("sys.excepthook = lambda *error: print('my own hook'); raise ValueError", 1, "my own hook"),
    ("threading.Thread(target=time.sleep, args=(1000,)).start(); raise ValueError('threads')", 1, "threads"),
    ("os.kill(os.getpid(), 2); time.sleep(1000)", 130, "KeyboardInterrupt"),
])  # fmt: skip
def test_one_rank_fails(end, status, said):
    job = run_job(ONE_FAILS.format(before="", end=end), np=2)
    assert job.returncode == status, job.describe()
    assert re.search(said, job.stdout[1] + job.stderr[1]), job.describe()
    assert job.seconds_since("ENDS", 1) < SOON, job.describe()


@pytest.mark.horovod
@pytest.mark.parametrize("before", [AFTER_HOROVOD, AFTER_MPI4PY])
def test_one_rank_fails_where_somebody_else_started_mpi(before):
    job = run_job(ONE_FAILS.format(before=before, end="sys.exit(3)"), np=2)
    assert job.returncode == 3, job.describe()
    assert job.seconds_since("ENDS", 1) < SOON, job.describe()


@pytest.mark.commit
def test_one_rank_fails_without_horovod():
    script = ONE_FAILS.replace("import horovod.tensorflow as hvd\n", "time.sleep(1000)\n")
    job = run_job(script.format(before=BARE, end="raise ValueError('bare')"), np=2)
    assert job.returncode == 1 and "ValueError: bare" in job.stderr[1], job.describe()
    assert job.seconds_since("ENDS", 1) < SOON, job.describe()


# A reader that trains, and so would wait for the others before it ends.
READER_FAILS = """
import os, sys, time
{before}
import horovod_data as hvdata
import horovod.tensorflow as hvd
import tensorflow as tf
hvdata.init()
next(iter(hvdata.distribute_dataset(tf.data.Dataset.range(100), batch="per_rank")))
if hvdata.rank() == 0:
    print('ENDS', time.monotonic(), flush=True)
    {end}
hvd.allreduce(tf.zeros(2), name="waits for rank 0")
time.sleep(1000)
"""


@pytest.mark.horovod
@pytest.mark.parametrize("end, status", [
    ("raise SystemExit(6)", 6), ("raise SystemExit('out of tea')", 1), ("raise type('Quit', (SystemExit,), {})(7)", 7),
    ("sys.exit(3)", 3), ("exit(4)", 4),
])  # fmt: skip
def test_the_reader_exits_with_a_status(end, status):
    job = run_job(READER_FAILS.format(before="", end=end), np=2)
    assert job.returncode == status, job.describe()
    assert job.seconds_since("ENDS", 0) < SOON, job.describe()


SHUTS_DOWN = """
import contextlib, os, sys, time
{before}
import horovod_data as hvdata
import horovod.tensorflow as hvd
import tensorflow as tf
hvdata.init()
next(iter(hvdata.distribute_dataset(tf.data.Dataset.range(100), batch="per_rank", name="train")))
try:
    if hvdata.rank() == 0:
        print('ENDS', time.monotonic(), flush=True)
        {end}
    hvd.allreduce(tf.zeros(2), name="waits for rank 0")
    time.sleep(1000)
{how}
"""


@pytest.mark.horovod
@pytest.mark.parametrize(
    "how",
    ["finally:\n    hvdata.shutdown()", "except BaseException:\n    hvdata.shutdown()\n    raise"],
    ids=["finally", "except"],
)
@pytest.mark.parametrize("end, status, said", [
    ("raise ValueError('no such file')", 1, "ValueError: no such file"), ("sys.exit(3)", 3, ""),
    ("os.kill(os.getpid(), 2); time.sleep(1000)", 130, "KeyboardInterrupt")], ids=["ValueError", "exit", "SIGINT"])  # fmt: skip
def test_shutdown_behind_an_error_lets_it_be_seen(end, status, said, how):
    """A reader that trains serves the others in shutdown(), which wait for it in a collective."""
    job = run_job(SHUTS_DOWN.format(before="", end=end, how=how), np=2)
    assert job.returncode == status, job.describe()
    assert said in job.stderr[0], job.describe()
    assert job.seconds_since("ENDS", 0) < SOON, job.describe()


@pytest.mark.horovod
def test_horovods_shutdown_behind_an_error_says_it():
    """It ends Horovod on the others too, whose error may end the job before this one is printed."""
    how = "finally:\n    hvd.shutdown()"
    job = run_job(SHUTS_DOWN.format(before=AFTER_HOROVOD, end="raise ValueError('no such file')", how=how), np=2)
    assert job.returncode == 1, job.describe()
    assert re.search(
        r"horovod_data: \[rank 0 on \S+\] hvd.shutdown\(\) is called behind ValueError: no such file", job.stderr[0]
    ), job.describe()
    assert job.seconds_since("ENDS", 0) < SOON, job.describe()


@pytest.mark.horovod
@pytest.mark.parametrize("status", [0, 3])
def test_shutdown_at_exit_is_what_an_exit_without_it_does(status):
    """Horovod is ended first, or the job with this status."""
    job = run_job(
        SHUTS_DOWN.format(
            before="import atexit",
            end=f"atexit.register(hvdata.shutdown); sys.exit({status})",
            how="finally:\n    pass",
        ),
        np=2,
    )
    assert job.returncode == (status or 1), job.describe()
    assert status or "Horovod has been shut down" in job.stderr[1], job.describe()
    assert job.seconds_since("ENDS", 0) < SOON, job.describe()


@pytest.mark.horovod
def test_shutdown_behind_an_error_that_is_caught():
    """No more data on that rank; it serves the others until it comes to shutdown() or its exit, and doesn't stall them."""
    job = run_job(
        """
import time
import horovod.tensorflow as hvd
import tensorflow as tf
import horovod_data as hvdata
hvdata.init()
dataset = hvdata.distribute_dataset(tf.data.Dataset.range(40), batch="per_rank", name="train")
try:
    for step, x in enumerate(dataset):
        if hvdata.rank() == 0 and step == 3:
            raise ValueError("early stop")
except ValueError:
    hvdata.shutdown()
    try:
        iter(hvdata.distribute_dataset(tf.data.Dataset.range(8), batch="per_rank"))
    except RuntimeError as error:
        print("is over", "after the end of the job" in str(error))
print("steps", step + 1, flush=True)
hvd.allreduce(tf.zeros(2), name="the others get here while rank 0 is still there")
hvdata.shutdown()
print("end")
""",
        np=2,
    )
    assert job.returncode == 0, job.describe()
    assert job.stdout == ["is over True\nsteps 4\nend\n", "steps 20\nend\n"], job.describe()
    assert re.search(r"hvdata.shutdown\(\) is called behind ValueError: early stop", job.stderr[0]), job.describe()


def test_the_end_of_the_data_is_no_error_for_shutdown():
    job = run_job(
        """
import tensorflow as tf
import horovod_data as hvdata
hvdata.init()
elements = iter(hvdata.distribute_dataset(tf.data.Dataset.range(8), batch="per_rank"))
try:
    while True:
        next(elements)
except StopIteration:
    hvdata.shutdown()
try:
    iter(hvdata.distribute_dataset(tf.data.Dataset.range(8), batch="per_rank"))
except RuntimeError as error:
    assert "after the end of the job" in str(error), error
    print("is over")
""",
        np=2,
    )
    assert job.returncode == 0, job.describe()
    assert all("is over" in text for text in job.stdout), job.describe()


@pytest.mark.horovod
@pytest.mark.parametrize("status", [0, 143, "'preempted'"])
def test_a_signal_whose_handler_exits_while_a_finished_rank_serves(status):
    job = run_job(
        f"""
import os, signal, sys, threading, time
import tensorflow as tf
import horovod_data as hvdata
hvdata.init()
signal.signal(signal.SIGTERM, lambda *_: sys.exit({status}))
elements = iter(hvdata.distribute_dataset(tf.data.Dataset.range(100), batch="per_rank"))
next(elements)
if hvdata.rank() == 0:
    def end():
        time.sleep(3)
        print('ENDS', time.monotonic(), flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
    threading.Thread(target=end, daemon=True).start()
else:
    time.sleep(1000)
""",
        np=2,
    )
    assert job.returncode == (143 if status == 143 else 1), job.describe()
    assert "Traceback" not in job.stderr[0] and ("preempted" in job.stderr[0]) == (status == "'preempted'"), (
        job.describe()
    )
    assert job.seconds_since("ENDS", 0) < SOON, job.describe()


@pytest.mark.horovod
def test_a_system_exit_that_is_caught_ends_nothing():
    job = run_job(
        """
import copy, pickle, sys, time
import horovod_data as hvdata
hvdata.init()
for leave in (lambda: sys.exit(3), lambda: quit(3), lambda: exec("raise SystemExit(3)")):
    try:
        leave()
    except SystemExit as error:
        assert error.code == 3 and str(error) == "3" and pickle.loads(pickle.dumps(error)).code == 3
        error.code = 4
        assert error.code == 4
        del error.code
        assert error.code is None
time.sleep(6)
print("still here")
""",
        np=2,
    )
    assert job.returncode == 0, job.describe()
    assert all("still here" in text for text in job.stdout), job.describe()


@pytest.mark.horovod
def test_wrong_arguments_on_one_rank_after_hvd_init():
    job = run_job(
        """
import horovod.tensorflow as hvd
hvd.init()
import horovod_data as hvdata
hvdata.init(readers=-1 if hvd.rank() == 1 else 0)
""",
        np=2,
    )
    assert job.returncode == 1, job.describe()
    assert "ValueError: readers must be 0 or more, not -1" in job.stderr[1], job.describe()


@pytest.mark.commit("-")
@pytest.mark.parametrize("before, end", [
    ("", ""), (BARE, ""), pytest.param(AFTER_HOROVOD, "", marks=pytest.mark.horovod), (AFTER_MPI4PY, ""), ("", "hvdata.shutdown(); hvdata.shutdown()"),
    ("", "sys.exit(0)"),
])  # fmt: skip
def test_a_normal_end(before, end):
    job = run_job(f"import sys\n{before}\nimport horovod_data as hvdata\nhvdata.init()\nprint('ran')\n{end}\n", np=2)
    assert job.returncode == 0, job.describe()
    assert job.stdout == ["ran\n", "ran\n"] and "Traceback" not in "".join(job.stderr), job.describe()


@pytest.mark.commit
@pytest.mark.horovod
def test_hvd_shutdown_in_mid_run():
    job = run_job(
        """
import horovod.tensorflow as hvd
hvd.init()
import horovod_data as hvdata
hvdata.init()
hvd.shutdown()
try:
    hvdata.distribute_dataset(None, batch="global")
except RuntimeError as error:
    print(error)
""",
        np=2,
    )
    assert job.returncode == 0, job.describe()
    for out in job.stdout:
        assert "was called after the end of the job" in out, job.describe()


# Between rank 0's last step of init() and rank 1's, rank 0 has time to reach hvd.shutdown().
SLOW_ALLGATHER = r"""
#include <mpi.h>
#include <unistd.h>
int MPI_Allgather(const void *s, int n, MPI_Datatype t, void *r, int m, MPI_Datatype u, MPI_Comm comm) {
  const int code = PMPI_Allgather(s, n, t, r, m, u, comm);
  int rank = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 1) sleep(2);
  return code;
}
"""


@pytest.mark.horovod
@pytest.mark.skipif(not shutil.which("mpicc"), reason="needs mpicc")
def test_hvd_shutdown_while_another_rank_still_joins(tmp_path):
    (tmp_path / "slow.c").write_text(SLOW_ALLGATHER)
    subprocess.run(["mpicc", "-shared", "-fPIC", "slow.c", "-o", "slow.so"], cwd=tmp_path, check=True)
    job = run_job(
        """
import horovod.tensorflow as hvd
hvd.init()
import horovod_data as hvdata
hvdata.init()
hvd.shutdown()
print("left")
""",
        np=2,
        env={"LD_PRELOAD": str(tmp_path / "slow.so")},
    )
    assert job.returncode == 0 and job.stdout == ["left\n"] * 2, job.describe()


def test_what_the_program_survives_does_not_fail_it():
    job = run_job(
        """
import sys, threading
import horovod_data as hvdata
hvdata.init()
for leave in (sys.exit, exit):
    try:
        leave(7)
    except SystemExit as error:
        assert error.code == 7 and error.args == (7,) and repr(error) == "SystemExit(7)", repr(error)
try:
    raise ValueError("caught")
except ValueError:
    sys.excepthook(*sys.exc_info())
for end in (lambda: sys.exit(9), lambda: 1 / 0):
    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
print("goes on")
""",
        np=2,
    )
    assert job.returncode == 0, job.describe()
    assert job.stdout == ["goes on\n"] * 2
    for err in job.stderr:
        assert "ValueError: caught" in err and "ZeroDivisionError" in err and "SystemExit" not in err


@pytest.mark.commit
def test_a_forked_child_is_no_rank():
    job = run_job(
        """
import os, sys
import horovod_data as hvdata
hvdata.init()
child = os.fork()
if child == 0:
    for call in (hvdata.rank, hvdata.shutdown, hvdata.init, lambda: hvdata.distribute_dataset(None, batch="global")):
        try:
            call()
            print("no error")
        except RuntimeError as error:
            print(error)
    sys.exit(4)
print("child:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "rank:", hvdata.rank())
""",
        np=2,
    )
    assert job.returncode == 0, job.describe()
    for rank, out in enumerate(job.stdout):
        assert f"child: 4 rank: {rank}" in out and "no error" not in out, job.describe()
        for call in ("rank()", "shutdown()", "init()", "distribute_dataset"):
            assert any(line.split("] ")[-1].startswith(call) and "was called in a forked child" in line
                       for line in out.splitlines()), (call, out)  # fmt: skip


def test_a_spawned_child_is_a_process_like_any_other():
    job = run_job(
        """
import multiprocessing, sys
import horovod_data as hvdata

def child():
    sys.exit(4)

if __name__ == "__main__":
    hvdata.init()
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join()
    print("child:", process.exitcode)
""",
        np=2,
    )
    assert job.returncode == 0 and job.stdout == ["child: 4\n"] * 2, job.describe()


@pytest.mark.commit
def test_alone_a_failure_is_python_s_own():
    job = run_job("import horovod_data as hvdata\nhvdata.init()\nraise ValueError('alone')\n", np=1)
    assert job.returncode == 1 and "ValueError: alone" in job.stderr[0], job.describe()
    assert "MPI_ABORT" not in (job.log + job.stderr[0]).upper(), job.describe()


LEAVES = """
import sys, time
import horovod_data as hvdata
import tensorflow as tf
hvdata.init()
leaver, name = int(sys.argv[1]), sys.argv[2] or None
x = tf.range(3)
hvdata.serve()
hvdata.scatter(x, name=name)
if hvdata.rank() == leaver:
    hvdata.shutdown()
else:
    time.sleep(1)
    for root in range(3):
        began = time.monotonic()
        try:
            print("got", hvdata.scatter(x, root=root, name=name).numpy(), flush=True)
        except tf.errors.UnavailableError as error:
            print(f"root {root}, at once: {time.monotonic() - began < 10}, {error}", flush=True)
"""


@pytest.mark.parametrize("readers, leaver, name", [(0, 0, ""), (0, 2, ""), (1, 1, ""), (0, 2, "named")])
def test_a_scatter_after_a_rank_has_left(readers, leaver, name):
    """Whoever would wait for it, or send it rows that it does not take, is told at once."""
    job = run_job(LEAVES, 3, str(leaver), name, readers=readers)
    assert job.returncode == 0, job.describe()
    for rank in {0, 1, 2} - {leaver}:
        for root in range(3):
            start = f"root {root}, at once: True"
            lines = [line for line in job.stdout[rank].splitlines() if line.startswith(start)]
            assert len(lines) == 1 and f"rank {leaver} on " in lines[0] and "has shut down" in lines[0], job.describe()


LEAVES_WITH_ITS_ROWS = """
import horovod_data as hvdata
import tensorflow as tf
hvdata.init()
rows = tf.range(12 << 20, dtype=tf.int64) if hvdata.rank() == 0 else None
part = hvdata.scatter(rows, dtype=tf.int64)
if hvdata.rank() == 0:
    hvdata.shutdown()
print(int(part[0]) >> 20, int(part[-1] + 1) >> 20, flush=True)
"""


@pytest.mark.skipif(not CAN_NAME_HOSTS, reason="can't give ranks hosts of their own")
def test_the_root_of_a_scatter_leaves_while_rows_are_on_their_way_to_another_host():
    """It says so behind them, also where small messages for that host's ranks travel as one."""
    job = run_job(LEAVES_WITH_ITS_ROWS, 4, env={"HVDATA_TEST_HOSTS": "2"})
    assert job.returncode == 0 and job.stdout == ["0 3\n", "3 6\n", "6 9\n", "9 12\n"], job.describe()


ITERATES_AFTER = """
import horovod_data as hvdata
import tensorflow as tf
hvdata.init()
ds = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(8), batch="per_rank", name="train")
list(ds)
hvdata.shutdown()
for call in lambda: next(iter(ds)), lambda: hvdata.scatter(tf.range(4)), hvdata.init:
    try:
        call()
    except Exception as error:
        print("raised", type(error).__name__, error, flush=True)
"""


@pytest.mark.commit
def test_use_after_shutdown():
    job = run_job(ITERATES_AFTER, 2)
    for rank, out in enumerate(job.stdout):
        said = [line for line in out.splitlines() if line.startswith("raised")]
        assert len(said) == 3 and "start again" not in out, job.describe()
        assert all(f"[rank {rank} on " in line and "can't join again" in line for line in said), said
        assert "FailedPreconditionError" in said[0] and ", channel train]" in said[0], said


def test_a_crash_of_the_communication_thread_leaves_a_trace():
    """Python's faulthandler is told of it; of no signal that a program may handle is this thread told."""
    job = run_job(
        """
import ctypes, os, platform, signal, time
import tensorflow as tf
import horovod_data as hvdata
hvdata.init()
def name_of(tid):
    try:
        return open(f"/proc/self/task/{tid}/comm").read().strip()
    except FileNotFoundError:  # it has just ended
        return ""
ours = []
while not ours:  # it gives itself its name
    ours = [tid for tid in os.listdir("/proc/self/task") if name_of(tid) == "hvdata-comm"]
(status,) = [line for line in open(f"/proc/self/task/{ours[0]}/status") if line.startswith("SigBlk")]
blocked = {number for number in range(1, 32) if int(status.split()[1], 16) >> (number - 1) & 1}
crashes = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGSYS, signal.SIGTRAP}
print(blocked == set(range(1, 32)) - crashes - {signal.SIGKILL, signal.SIGSTOP}, flush=True)
hvdata.scatter(tf.range(2) if hvdata.rank() == 0 else None, dtype=tf.int32)  # both have printed
tgkill = {"x86_64": 234, "aarch64": 131}[platform.machine()]
if hvdata.rank() == 1:
    ctypes.CDLL(None).syscall(tgkill, os.getpid(), int(ours[0]), int(signal.SIGSEGV))
time.sleep(1000)
""",
        np=2,
    )
    assert job.returncode != 0 and job.stdout == ["True\n", "True\n"], job.describe()
    assert "Fatal Python error: Segmentation fault" in job.stderr[1], job.describe()


# Rank 0 reads, takes fewer steps than the others, and comes to its end: they are in a collective with it.
FEWER_STEPS = """
import sys, time
{before}
import horovod_data as hvdata
import tensorflow as tf
hvdata.init()
import horovod.tensorflow as hvd
ds = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(99), batch="per_rank", name="train"){audited}
steps, fails = 0, ""
for x in ds:
    if steps == 5 and hvdata.rank() == 0:
        break
    steps += 1
    if not fails:
        try:
            hvd.allreduce(tf.zeros(2), name="gradient")
        except Exception as error:
            fails = str(error)
            print("FAILS", time.monotonic(), flush=True)
print("steps", steps, "shut down" in fails, flush=True)
if hvdata.rank() == 0:
    print("ENDS", time.monotonic(), flush=True)
    {end}
"""


@pytest.mark.horovod
@pytest.mark.parametrize("audited", [False, True], ids=["", "audited"])
@pytest.mark.parametrize(
    "before, end",
    [("", ""), ("", "sys.exit(0)"), (AFTER_HOROVOD, ""), (AFTER_HOROVOD, "hvd.shutdown()"), (AFTER_MPI4PY, "")],
)
def test_the_reader_comes_to_its_end_while_others_wait_for_it_in_a_collective(before, end, audited):
    """As of any rank that has left: an error of Horovod's, at once; and then the others get the rest of what it reads."""
    job = run_job(FEWER_STEPS.format(before=before, end=end, audited="\nds = hvdata.audit(ds)" * audited), np=3)
    assert job.returncode == 0, job.describe()
    assert "steps 5 False" in job.stdout[0], job.describe()
    ended = float(re.search(r"ENDS ([\d.]+)", job.stdout[0])[1])
    for out in job.stdout[1:]:
        assert "steps 33 True" in out, job.describe()
        assert float(re.search(r"FAILS ([\d.]+)", out)[1]) - ended < SOON, job.describe()


def test_a_reader_that_shuts_down_while_others_wait_for_it_says_for_whom_it_reads_on():
    job = run_job(
        """
import time
import horovod_data as hvdata
hvdata.init()
if hvdata.rank() == 1: time.sleep(4)
hvdata.shutdown()
""",
        np=2,
        env={"HOROVOD_DATA_STALL_SECONDS": "1"},
    )
    assert job.returncode == 0, job.describe()
    line = r"horovod_data: \[rank 0 on \S+\] is done\. After \d+ s it still reads for trainers that are not: rank 1 on \S+\. A rank that waits for this rank"
    assert re.search(line, job.stderr[0]) and "is done" not in job.stderr[1], job.describe()


@pytest.mark.slow
def test_alone_a_failing_program_ends_as_it_likes():
    """Nobody waits for it: what it does at its end may take longer than where others do."""
    job = run_job(
        """
import atexit, sys, time
import horovod_data as hvdata
hvdata.init()
atexit.register(lambda: (time.sleep(7), print("written", flush=True)))
sys.exit(3)
""",
        np=1,
    )
    assert (job.returncode, job.stdout[0]) == (3, "written\n"), job.describe()
