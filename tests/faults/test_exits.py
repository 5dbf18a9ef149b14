# SPDX-License-Identifier: Apache-2.0
"""However a rank ends, the job ends with it: with the rank's status, within seconds, and other ranks do not hang."""

import re

import pytest
from jobs import SOON, run_program

pytestmark = [pytest.mark.limit(150), pytest.mark.usefixtures("verified")]

BARE = "sys.modules['horovod'] = None  # as if it were not installed"
HVD = "import horovod.tensorflow as hvd; hvd.init()"
MPI4PY = "from mpi4py import MPI"
FINALLY = "finally: hvdata.shutdown()"

# One rank ends in its own way. The other rank waits for it in a collective, and is itself in the middle of an epoch.
ONE_ENDS = """
next(iter({data}))
try:
    if rank == {ender}:
        now("ENDS")
        {end}
    {wait}
    time.sleep(1000)
{behind}
"""
WAIT = "import horovod.tensorflow as hvd; hvd.allreduce(tf.zeros(2), name='waits')"


def case(name, ender, end, status, said="", before="", behind="finally: pass", wait=WAIT):
    marks = [pytest.mark.horovod] if wait else []
    return pytest.param(ender, end, status, said, before, behind, wait, id=name, marks=marks)


ENDS_BY_SHUTDOWN = "import atexit; atexit.register(hvdata.shutdown); sys.exit(%d)"


@pytest.mark.commit("bare", "shutdown behind ValueError")
@pytest.mark.parametrize("ender, end, status, said, before, behind, wait", [
    case("quit", 1, "quit(5)", 5, r"\[rank 1 on \S+\] the program ends with status 5.*, and the job with it"),
    case("text", 1, "sys.exit('out of coffee')", 1, "out of coffee"),
    case("hook", 1, "sys.excepthook = lambda *error: print('my own hook'); raise ValueError", 1, "my own hook"),
    case("thread", 1, "threading.Thread(target=time.sleep, args=(1000,)).start(); raise ValueError('mine')", 1, "mine"),
    case("SIGINT", 1, "os.kill(os.getpid(), 2); time.sleep(1000)", 130, "KeyboardInterrupt"),
    case("horovod first", 1, "sys.exit(3)", 3, before=HVD),
    case("mpi4py first", 1, "sys.exit(3)", 3, before=MPI4PY),
    case("bare", 1, "raise ValueError('bare')", 1, "ValueError: bare", before=BARE, wait=""),
    # Rank 0 reads. Without an error it would serve the other rank before it ends.
    case("reader", 0, "raise SystemExit(6)", 6),
    case("reader, text", 0, "raise SystemExit('out of tea')", 1, "out of tea"),
    case("reader, own class", 0, "raise type('Quit', (SystemExit,), {})(7)", 7),
    case("reader, exit", 0, "exit(4)", 4),
    case("shutdown behind ValueError", 0, "raise ValueError('no file')", 1, "ValueError: no file", behind=FINALLY),
    case("shutdown behind exit", 0, "sys.exit(3)", 3, behind=FINALLY),
    case("shutdown behind SIGINT", 0, "os.kill(os.getpid(), 2); time.sleep(1000)", 130, "KeyboardInterrupt", behind=FINALLY),
    case("shutdown in except", 0, "raise ValueError('no file')", 1, "ValueError: no file",
         behind="except BaseException:\n    hvdata.shutdown()\n    raise"),
    # It ends Horovod on the other rank, whose error may end the job before this error is printed.
    case("horovod's shutdown", 0, "raise ValueError('no file')", 1, before=HVD, behind="finally: hvd.shutdown()",
         said=r"horovod_data: \[rank 0 on \S+\] hvd.shutdown\(\) is called during ValueError: no file"),
    # Horovod ends first, so the other rank fails.
    case("shutdown at exit", 0, ENDS_BY_SHUTDOWN % 0, 1, "Horovod has been shut down"),
    case("shutdown at exit 3", 0, ENDS_BY_SHUTDOWN % 3, 3),
])  # fmt: skip
def test_one_rank_ends(ender, end, status, said, before, behind, wait):
    data = "train(lambda: tf.data.Dataset.range(100))" if wait else "load(range(100))"
    script = ONE_ENDS.format(data=data, ender=ender, end=end, behind=behind, wait=wait)
    job = run_program(script, 2, before=before, status=status)
    job.assert_said(said)
    job.assert_soon("ENDS", ender)


@pytest.mark.horovod
def test_shutdown_behind_an_error_that_is_caught():
    """Rank 0 gets no more data after shutdown(). It reads for rank 1 until rank 1 comes to shutdown() or its exit.

    No stall is reported.
    """
    job = run_program("""
import horovod.tensorflow as hvd
dataset = train(lambda: tf.data.Dataset.range(40))
try:
    for step, x in enumerate(dataset):
        if rank == 0 and step == 3:
            raise ValueError("early stop")
except ValueError:
    hvdata.shutdown()
    try:
        iter(train(lambda: tf.data.Dataset.range(8)))
    except RuntimeError as error:
        say("is over", "after the end of the job" in str(error))
say("steps", step + 1)
hvd.allreduce(tf.zeros(2), name="the others get here while rank 0 is still there")
hvdata.shutdown()
say("end")
""", 2, before=HVD)  # fmt: skip
    assert job.stdout == ["is over True\nsteps 4\nend\n", "steps 20\nend\n"], job.describe()
    job.assert_said(r"hvdata.shutdown\(\) is called during ValueError: early stop", 0)


def test_the_end_of_the_data_is_no_error_for_shutdown():
    job = run_program("""
elements = iter(train(lambda: tf.data.Dataset.range(8)))
try:
    while True:
        next(elements)
except StopIteration:
    hvdata.shutdown()
try:
    iter(train(lambda: tf.data.Dataset.range(8)))
except RuntimeError as error:
    say(error)
""", 2)  # fmt: skip
    job.assert_said("after the end of the job", 0, 1)


@pytest.mark.horovod
@pytest.mark.parametrize("status", ["0", "143", "'preempted'"])
def test_a_signal_whose_handler_exits_while_a_finished_rank_serves(status):
    job = run_program(f"""
signal.signal(signal.SIGTERM, lambda *_: sys.exit({status}))
elements = iter(train(lambda: tf.data.Dataset.range(100)))
next(elements)
if rank == 0:
    def end():
        time.sleep(3)
        now("ENDS")
        os.kill(os.getpid(), signal.SIGTERM)
    threading.Thread(target=end, daemon=True).start()
else:
    time.sleep(1000)
""", 2, status=143 if status == "143" else 1)  # fmt: skip
    assert "Traceback" not in job.stderr[0], job.describe()
    assert ("preempted" in job.stderr[0]) == ("preempted" in status), job.describe()
    job.assert_soon("ENDS", 0)


def test_what_the_program_survives_does_not_fail_it():
    job = run_program("""
import pickle
for leave in (sys.exit, exit, quit, lambda status: exec("raise SystemExit(7)")):
    try:
        leave(7)
    except SystemExit as error:
        assert error.code == 7 and error.args == (7,) and repr(error) == "SystemExit(7)" and str(error) == "7"
        assert pickle.loads(pickle.dumps(error)).code == 7
        error.code = 4
        assert error.code == 4
        del error.code
        assert error.code is None
try:
    raise ValueError("caught")
except ValueError:
    sys.excepthook(*sys.exc_info())
for end in (lambda: sys.exit(9), lambda: 1 / 0):
    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
time.sleep(6)  # longer than the exit's watch
say("goes on")
""", 2)  # fmt: skip
    assert job.stdout == ["goes on\n"] * 2
    for err in job.stderr:
        assert "ValueError: caught" in err and "ZeroDivisionError" in err and "SystemExit" not in err


@pytest.mark.horovod
def test_wrong_arguments_on_one_rank_after_hvd_init():
    init = "hvdata.init(readers=-1 if hvd.rank() == 1 else 0)"
    job = run_program("", 2, before=HVD, init=init, status=1)
    job.assert_said("ValueError: readers must be 0 or more, not -1", 1)


@pytest.mark.parametrize("before, end", [
    pytest.param("", "", id="plain"), (BARE, ""), pytest.param(HVD, "", marks=pytest.mark.horovod), (MPI4PY, ""),
    ("", "hvdata.shutdown(); hvdata.shutdown()"), ("", "sys.exit(0)"),
])  # fmt: skip
def test_a_normal_end(before, end):
    job = run_program(f"say('ran' if tf.__version__ else '')\n{end}", 2, before=before)
    assert job.stdout == ["ran\n", "ran\n"] and "Traceback" not in "".join(job.stderr), job.describe()


# Gives rank 0 time between its last step of init() and that of rank 1, in which it reaches hvd.shutdown().
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


@pytest.mark.commit("at once")
@pytest.mark.horovod
@pytest.mark.parametrize("joins", ["at once", "late"])
def test_hvd_shutdown_in_mid_run(preload, joins):
    """One rank may call it while another rank still joins the job."""
    env = preload(SLOW_ALLGATHER) if joins == "late" else {}
    job = run_program("""
hvd.shutdown()
try:
    train(None)
except RuntimeError as error:
    say(error)
""", 2, before=HVD, env=env)  # fmt: skip
    job.assert_said("was called after the end of the job", 0, 1)


@pytest.mark.commit
def test_alone_a_failure_is_python_s_own():
    job = run_program("raise ValueError('alone')", 1, status=1)
    job.assert_said("ValueError: alone", 0)
    assert "MPI_ABORT" not in (job.log() + job.stderr[0]).upper(), job.describe()


@pytest.mark.slow
def test_alone_a_failing_program_ends_as_it_likes():
    """No rank waits for it, so its exit handlers may take longer than in a job of several ranks."""
    script = "import atexit\natexit.register(lambda: (time.sleep(7), say('written')))\nsys.exit(3)"
    assert run_program(script, 1, status=3).stdout == ["written\n"]


def test_a_crash_of_the_communication_thread_leaves_a_trace():
    """The thread gets the signals of crashes, which Python's faulthandler reports.

    It gets no signal that a program may handle.
    """
    job = run_program("""
import ctypes, platform
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
say(blocked == set(range(1, 32)) - crashes - {signal.SIGKILL, signal.SIGSTOP})
hvdata.scatter(tf.range(2) if rank == 0 else None, dtype=tf.int32)  # both have printed
tgkill = {"x86_64": 234, "aarch64": 131}[platform.machine()]
if rank == 1:
    ctypes.CDLL(None).syscall(tgkill, os.getpid(), int(ours[0]), int(signal.SIGSEGV))
time.sleep(1000)
""", 2, status=None)  # fmt: skip
    assert job.returncode != 0 and job.stdout == ["True\n", "True\n"], job.describe()
    job.assert_said("Fatal Python error: Segmentation fault", 1)


# Rank 0 reads, takes fewer steps than the others, and ends. The others are in a collective with it.
FEWER_STEPS = """
import horovod.tensorflow as hvd
ds = train(lambda: tf.data.Dataset.range(99))
if {audited}: ds = hvdata.audit(ds)
steps, fails = 0, ""
for x in ds:
    if steps == 5 and rank == 0:
        break
    steps += 1
    if not fails:
        try:
            hvd.allreduce(tf.zeros(2), name="gradient")
        except Exception as error:
            fails = str(error)
            now("FAILS")
say("steps", steps, "shut down" in fails)
if rank == 0:
    now("ENDS")
    {end}
"""


@pytest.mark.horovod
@pytest.mark.parametrize("before, end, audited", [
    ("", "", False), ("", "sys.exit(0)", True), (HVD, "", True), (HVD, "hvd.shutdown()", False), (MPI4PY, "", False),
])  # fmt: skip
def test_the_reader_comes_to_its_end_while_others_wait_for_it_in_a_collective(before, end, audited):
    """The collective is an error of Horovod's, at once. Then the others get the rest of the data."""
    job = run_program(FEWER_STEPS.format(end=end, audited=audited), 3, before=before)
    assert "steps 5 False" in job.stdout[0], job.describe()
    job.assert_said("steps 33 True", 1, 2)
    assert all(job.when("FAILS", rank) - job.when("ENDS", 0) < SOON for rank in (1, 2)), job.describe()


def test_a_reader_that_shuts_down_while_others_wait_for_it_says_for_whom_it_reads_on():
    script = "if rank == 1: time.sleep(4)\nhvdata.shutdown()"
    job = run_program(script, 2, env={"HOROVOD_DATA_STALL_SECONDS": "1"})
    line = r"horovod_data: \[rank 0 on \S+\] is done\. After \d+ s it still reads for trainers that are not done: rank 1 on \S+\. If one of them waits for this rank"
    assert re.search(line, job.stderr[0]) and "is done" not in job.stderr[1], job.describe()
