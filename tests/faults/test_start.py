# SPDX-License-Identifier: Apache-2.0
"""Jobs that were started in a wrong way, or whose ranks disagree. Every rank reports this, and no rank hangs."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest
from jobs import run_program
from ranks.launch import open_mpi

pytestmark = pytest.mark.limit(150)

HOROVODRUN = shutil.which("horovodrun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
OTHER_MPI = f"/usr/lib/x86_64-linux-gnu/{'libmpich.so.12' if open_mpi() else 'libmpi.so.40'}"
OTHER_MPIRUN = shutil.which("mpirun.mpich" if open_mpi() else "mpirun.openmpi")
HVD = "import horovod.tensorflow as hvd; hvd.init()"
# Every rank prints what init() raised. An uncaught error would end the job before the last rank has printed its own.
CAUGHT = """
try:
    hvdata.init(%s)
    say("no error")
except Exception as error:
    say(type(error).__name__ + ":", error)
"""


needs_horovod = pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="needs Horovod")
needs_another_mpi = pytest.mark.skipif(OTHER_MPIRUN is None, reason="needs the mpirun of another MPI")


def case(name, said, before="", arguments="", np=2, needs=(), **more):
    return pytest.param(before, arguments, np, said, more, id=name, marks=needs)


theirs = "`horovodrun --mpi -np 2 python train.py` or " if open_mpi() else ""
USELESS = (
    r"HOROVOD_DATA_TIMELINE='{}' is no file that reader 0 can write \(rank 0 on \S+\): {}\."
    ".*Name a file in a folder that exists on that host"
)
CASES = [
    case("gloo", r"RuntimeError: This job of 2 processes was started by horovodrun with Gloo \(HOROVOD_CONTROLLER=gloo\): "
         rf".* Start it with {theirs}`mpirun -np 2 python train.py`", launcher=f"{HOROVODRUN} --gloo",
         needs=needs_horovod),
    case("another MPI's launcher", r"RuntimeError: MPI sees this process alone, but .*=2\): the launcher doesn't belong to the "
         r"MPI that horovod_data was built with, .*\. Start the job with .*`mpirun -np 2 python", launcher=f"{OTHER_MPIRUN}",
         needs=needs_another_mpi),
    case("horovod sees more", r"RuntimeError: MPI sees this process alone, but hvd.size\(\) is 4: .*-np 4 python train.py", np=1,
         before="import horovod.tensorflow as hvd\nhvd.is_initialized, hvd.rank, hvd.size = lambda: True, lambda: 0, lambda: 4",
         needs=needs_horovod),
    case("funneled", "RuntimeError: MPI runs with MPI_THREAD_FUNNELED, but horovod_data needs MPI_THREAD_MULTIPLE: .*call "
         r"horovod_data.init\(\) first", before="import mpi4py; mpi4py.rc.thread_level = 'funneled'; from mpi4py import MPI"),
    case("a reader alone", "ValueError: readers=1 sets 1 process aside for reading, which leaves none to train: .*At least 2 are "
         "needed: .*`mpirun -np 2 python train.py`", arguments="readers=1", np=1),
    case("readers disagree", r"RuntimeError: \[rank \d on \S+\] The ranks disagree about readers: 0 on ranks 0, 2 \(host \S+\); 1 on "
         r"rank 1 \(host \S+\)\. Call horovod_data.init\(\) with the same arguments on all", np=3,
         arguments="readers=int(os.environ['HVDATA_TEST_RANK']) % 2"),
    # One rank would wait in an exchange that the other rank knows nothing of.
    case("audit disagrees", r"The ranks disagree about HOROVOD_DATA_AUDIT: False on rank 0 \(host \S+\); True on rank 1",
         before="if os.environ['HVDATA_TEST_RANK'] == '1': os.environ['HOROVOD_DATA_AUDIT'] = '1'"),
    # The rank with Horovod would wait for the other rank in Horovod's start.
    case("horovod disagrees", r"The ranks disagree about Horovod: not imported on rank 0 \(.*\); horovod.tensorflow not initialised on "
         r"rank 1 .* import the same module before init\(\)", before="if os.environ['HVDATA_TEST_RANK'] == '1': import horovod.tensorflow",
         tensorflow=False, needs=needs_horovod),
    case("two MPIs", "RuntimeError: This process has loaded 2 MPI libraries: .*Each of them sees a job of its own", np=1,
         before=f"import ctypes; ctypes.CDLL({OTHER_MPI!r})", needs=pytest.mark.skipif(not os.path.exists(OTHER_MPI), reason="needs another MPI")),
    case("no timeline", USELESS.format("/no/trace.json", "No such file or directory"), env={"HOROVOD_DATA_TIMELINE": "/no/trace.json"}),
    case("a folder for a timeline", USELESS.format("/", "Is a directory"), env={"HOROVOD_DATA_TIMELINE": "/"}),
    case("one timeline", "HOROVOD_TIMELINE and HOROVOD_DATA_TIMELINE name the same file, '/tmp/x.json'. Give each its own.",
         env={"HOROVOD_DATA_TIMELINE": "/tmp/x.json", "HOROVOD_TIMELINE": "/tmp/x.json"}),
    case("comm is a list", r"TypeError: comm must be an mpi4py intracommunicator, not \[0, 1\]", arguments="comm=[0, 1]"),
    case("comm is null", "(Type|Value)Error: comm ", before="from mpi4py import MPI", arguments="comm=MPI.COMM_NULL"),
    case("horovod counts a reader", r"RuntimeError: \[.*\] reader 0 on \S+ is a dedicated reader, but Horovod counts it: hvd.init\(\) "
         r"was called first\. Call horovod_data.init\(\) instead of hvd.init\(\)", before=HVD, arguments="readers=1",
         needs=needs_horovod),
    case("horovod has other ranks", r"RuntimeError: .* Horovod was initialised for other processes: on rank 0 on \S+ hvd.rank\(\) is "
         r"\d of 2, but it is trainer 0 of 1", before=HVD + "; from mpi4py import MPI",
         arguments="comm=MPI.COMM_WORLD.Split(hvd.rank())", needs=needs_horovod),
]  # fmt: skip


@pytest.mark.commit("gloo", "readers disagree")
@pytest.mark.parametrize("before, arguments, np, said, more", CASES)
def test_a_start_that_cannot_work(before, arguments, np, said, more):
    job = run_program("time.sleep(1)", np, before=before, init=CAUGHT % arguments, **more)
    job.assert_said(said, *range(np))


def test_a_disagreement_that_nobody_catches_ends_the_job():
    job = run_program("", 2, init="hvdata.init(readers=int(os.environ['HVDATA_TEST_RANK']) % 2)", status=1)
    job.assert_said("The ranks disagree about readers")


@pytest.mark.commit
def test_calls_before_init_and_after_the_end():
    """Every public function raises an error. Only shutdown() may be called at any time."""
    job = run_program("""
calls = {name: getattr(hvdata, name) for name in ("rank", "size", "is_reader", "is_trainer", "num_readers", "serve")}
calls["scatter"] = lambda: hvdata.scatter(tf.range(4))
calls["distribute_dataset"] = lambda: train(tf.data.Dataset.range(4))
calls["distribute_datasets_from_function"] = lambda: hvdata.distribute_datasets_from_function(
    lambda: tf.data.Dataset.range(4), batch="per_rank")

def call_all(when):
    for name, call in calls.items():
        try:
            call()
        except Exception as error:
            say(when, f"{name}: {type(error).__name__}: {error}")

hvdata.shutdown()
call_all("before")
hvdata.init()
dataset = train(lambda: tf.data.Dataset.range(8))
list(dataset)
hvdata.shutdown()
calls["init"] = hvdata.init
calls["next"] = lambda: next(iter(dataset))
call_all("after")
""", 2, init="")  # fmt: skip
    collective = ["serve", "scatter", "distribute_dataset", "distribute_datasets_from_function"]
    first = "was called before horovod_data.init(). Call horovod_data.init() first."
    for rank, out in enumerate(job.stdout):
        for name in ["rank", "size", "is_reader", "is_trainer", "num_readers", *collective]:
            assert f"before {name}: RuntimeError: {name}() {first}\n" in out, job.describe()
        for name in collective:
            job.assert_said(
                rf"^after {name}: RuntimeError: \[rank {rank} on \S+\] {name}\(\) was called after the end of the job: "
                r"horovod_data\.shutdown\(\) has been called, or MPI has been finalised \(by hvd\.shutdown\(\), say\)\. Call "
                r"shutdown\(\) after the last use of horovod_data; a process can't join again\.$", rank)  # fmt: skip
        job.assert_said(rf"^after init: .*\[rank {rank} on .*can't join again", rank)
        job.assert_said(
            rf"^after next: FailedPreconditionError.*\[rank {rank} on .*, channel train\].*can't join again", rank
        )


@pytest.mark.commit
def test_init_twice():
    """The settings of the first call stay, even if the environment changes."""
    job = run_program("""
hvdata.init(readers=0)
os.environ.update(HOROVOD_DATA_REPORT="1", HOROVOD_DATA_READERS="1", HOROVOD_DATA_TIMEOUT="soon")
hvdata.init()
say("went on with", hvdata.num_readers(), hvdata.size())
try:
    hvdata.init(readers=1)
except RuntimeError as error:
    say(error)
""", 2)  # fmt: skip
    job.assert_said("went on with 1 2", 0, 1)
    job.assert_said(
        r"init\(\) was called a second time with other arguments: readers=1, .*; the job runs with readers=0, ", 0, 1
    )


@pytest.mark.horovod
@pytest.mark.parametrize("readers", [0, 1])
def test_who_is_who(readers):
    job = run_program("""
import horovod.tensorflow as hvd
say(hvdata.rank(), hvdata.size(), hvdata.is_reader(), hvdata.is_trainer(), hvdata.num_readers(),
    (hvd.rank(), hvd.size()) if hvd.is_initialized() else None)
""", 2, readers=readers)  # fmt: skip
    who = [f"0 2 {not readers} True 1 (0, 2)\n", "1 2 False True 1 (1, 2)\n", "None None True False 1 None\n"]
    assert job.stdout == who[: 2 + readers], job.describe()


@pytest.mark.horovod
def test_a_sub_communicator():
    init = "world = MPI.COMM_WORLD\nhvdata.init(comm=world.Split(world.rank % 2, -world.rank))\n"
    script = "import horovod.tensorflow as hvd\nprint(hvdata.rank(), hvdata.size(), hvd.rank(), hvd.size())"
    job = run_program(script, 4, before="from mpi4py import MPI", init=init)
    assert job.stdout == ["1 2 1 2\n", "1 2 1 2\n", "0 2 0 2\n", "0 2 0 2\n"], job.describe()


@pytest.mark.commit("after")
@pytest.mark.horovod
@pytest.mark.parametrize("before, after", [
    pytest.param("", "import horovod.tensorflow as hvd", id="after"),
    pytest.param("import horovod.tensorflow.keras as hvd", "", id="keras"),
    pytest.param("import horovod.keras as hvd", "", id="old keras"),
])  # fmt: skip
def test_hvd_init_on_a_dedicated_reader(before, after):
    """An error at once, whichever module the program imports, before or after init()."""
    job = run_program(f"""
{after}
try:
    hvd.init()
    say("joined as rank", hvd.rank())
except RuntimeError as error:
    say(error)
hvdata.serve()
say("behind serve", hvd.size())
""", 1, readers=1, before=before)  # fmt: skip
    assert job.stdout[0] == "joined as rank 0\nbehind serve 1\n" and "joined" not in job.stdout[1], job.describe()
    job.assert_said(r"reader 0 on .*hvd.init\(\) was called on a dedicated reader.*serve\(\)", 1)


def test_a_rank_whose_init_failed_when_all_had_met(tmp_path):
    """The other ranks are already in the start of Horovod or horovod_data.

    There they wait for rank 1 until the time limit.
    """
    init = """
from pathlib import Path
from horovod_data import start
with contextlib.suppress(ImportError):
    import horovod.tensorflow
here = Path(sys.argv[1])
(here / os.environ["HVDATA_TEST_RANK"]).touch()
while len(list(here.iterdir())) < 3:  # the time limit is not for what ranks load
    time.sleep(0.01)
if os.environ["HVDATA_TEST_RANK"] == "1":
    def fails(*_, **__):
        raise KeyboardInterrupt  # as it may come at any time
    start.with_horovod.join = start.bindings.start = fails
try:
    hvdata.init()
except KeyboardInterrupt:
    say("goes without")
"""
    env = {"HOROVOD_DATA_TIMEOUT": "6"}
    job = run_program("time.sleep(1000)", 3, str(tmp_path), init=init, env=env, status=1)
    job.assert_said("goes without", 1)
    job.assert_said(
        r"\[rank [02] on \S+\] After \d+ s not all of the 3 processes have come through horovod_data\.init\(\)"
    )


def test_init_that_is_interrupted_behind_the_meeting():
    """The other ranks wait for rank 1 in a collective that can't be repeated. So rank 1 joins it before it raises."""
    init = """
from horovod_data.native import bindings
if os.environ["HVDATA_TEST_RANK"] == "1":
    start = bindings.start
    def starts(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        start(*args, **kwargs)
    bindings.start = starts
try:
    hvdata.init()
except KeyboardInterrupt:
    say("interrupted")
    hvdata.init()
"""
    script = "say('got', [int(x) for x in train(lambda: tf.data.Dataset.range(4))])"
    job = run_program(script, 2, init=init, env={"HOROVOD_DATA_TIMEOUT": "60"})
    job.assert_said("interrupted", 1)
    job.assert_said(r"got \[0, 2\]", 0)
    job.assert_said(r"got \[1, 3\]", 1)
