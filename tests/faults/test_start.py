# SPDX-License-Identifier: Apache-2.0
"""Jobs that were started in a way that can't work, or whose ranks disagree: every rank says so, and nobody hangs."""

import functools
import importlib.util
import os
import re
import shutil
import socket
import sys
from pathlib import Path

import jobs
import pytest
from ranks.launch import open_mpi

run_job = functools.partial(jobs.run_job, timeout=120)  # for a machine under load: most take 5 s
pytestmark = pytest.mark.limit(150)  # so that a job that hangs fails with its stacks

HOROVODRUN = shutil.which("horovodrun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
# Every rank prints what init() raised: an uncaught error would end the job before the last rank has printed its own.
CAUGHT = """
import sys, time
{before}
import horovod_data as hvdata
try:
    hvdata.init({arguments})
    print("no error")
except Exception as error:
    print(type(error).__name__ + ":", error)
time.sleep({stay})
"""


def caught(before: str = "", arguments: str = "", stay: float = 0) -> str:
    return CAUGHT.format(before=before, arguments=arguments, stay=stay)


def every_rank_said(job, pattern: str) -> None:
    assert job.returncode == 0, job.describe()
    for rank, out in enumerate(job.stdout):
        assert re.search(pattern, out), f"rank {rank}: no {pattern!r}\n{job.describe()}"


@pytest.mark.commit
@pytest.mark.skipif(HOROVODRUN is None, reason="needs Horovod")
def test_horovodrun_with_gloo():
    job = run_job(caught(), np=2, launcher=f"{HOROVODRUN} --gloo")
    theirs = "`horovodrun --mpi -np 2 python train.py` or " if open_mpi() else ""
    every_rank_said(
        job,
        r"RuntimeError: This job of 2 processes was started by horovodrun with Gloo \("
        rf"HOROVOD_CONTROLLER=gloo\): .* Start it with {theirs}`mpirun -np 2 python train.py`",
    )


def test_the_launcher_of_another_mpi():
    other = "mpirun.mpich" if open_mpi() else "mpirun.openmpi"
    if shutil.which(other) is None:
        pytest.skip(f"needs {other}")
    job = run_job(caught(), np=2, launcher=other)
    every_rank_said(
        job,
        r"RuntimeError: MPI sees this process alone, but .*=2\): the launcher doesn't belong to the "
        r"MPI that horovod_data was built with, .*\. Start the job with .*`mpirun -np 2 python",
    )


def test_horovod_knows_of_more_processes_than_mpi():
    pretend = (
        "import horovod.tensorflow as hvd\nhvd.is_initialized, hvd.rank, hvd.size = lambda: True, lambda: 0, lambda: 4"
    )
    if importlib.util.find_spec("horovod") is None:
        pytest.skip("needs Horovod")
    job = run_job(caught(before=pretend), np=1)
    every_rank_said(job, r"RuntimeError: MPI sees this process alone, but hvd.size\(\) is 4: .*-np 4 python train.py")


def test_threads_disabled():
    job = run_job(caught(), np=2, env={"HOROVOD_MPI_THREADS_DISABLE": "1"})
    every_rank_said(job, "RuntimeError: HOROVOD_MPI_THREADS_DISABLE=1 forbids .* Unset HOROVOD_MPI_THREADS_DISABLE")


@pytest.mark.commit
def test_mpi_below_thread_multiple():
    before = "import mpi4py; mpi4py.rc.thread_level = 'funneled'; from mpi4py import MPI"
    job = run_job(caught(before=before), np=2)
    every_rank_said(
        job,
        "RuntimeError: MPI runs with MPI_THREAD_FUNNELED, but horovod_data needs MPI_THREAD_MULTIPLE: "
        ".*call horovod_data.init\\(\\) first",
    )


def test_a_dedicated_reader_and_nobody_else():
    job = run_job(caught(arguments="readers=1"), np=1)
    every_rank_said(
        job,
        "ValueError: readers=1 sets 1 process aside for reading, which leaves none to train: .*"
        "At least 2 are needed: .*`mpirun -np 2 python train.py`",
    )


@pytest.mark.commit
def test_ranks_that_disagree_about_readers():
    job = run_job(caught(before="import os; r = int(os.environ['HVDATA_TEST_RANK'])", arguments="readers=r % 2"), np=3)
    every_rank_said(
        job,
        r"RuntimeError: \[rank \d on \S+\] The ranks disagree about readers: 0 on ranks 0, 2 \(host "
        r"\S+\); 1 on rank 1 \(host \S+\)\. Call horovod_data.init\(\) with the same arguments on all",
    )


def test_a_disagreement_that_nobody_catches_ends_the_job():
    script = "import os\nimport horovod_data as hvdata\nhvdata.init(readers=int(os.environ['HVDATA_TEST_RANK']) % 2)\n"
    job = run_job(script, np=2)
    assert job.returncode == 1, job.describe()
    assert any("The ranks disagree about readers" in err for err in job.stderr), job.describe()


def test_a_rank_that_never_calls_init():
    script = caught(before="from mpi4py import MPI\nif MPI.COMM_WORLD.rank == 0: time.sleep(20); sys.exit()")
    job = run_job(script, np=2, env={"HOROVOD_DATA_STALL_SECONDS": "1", "HOROVOD_DATA_TIMEOUT": "10"})
    assert re.search(
        r"horovod_data: \[rank 1 on \S+\] After \d+ s not all of the 2 processes have called", job.stderr[1]
    )
    assert re.search(r"\[rank 1 on \S+\] waiting in init\(\) for \d+ s: not all of the 2 processes", job.stderr[1])


@pytest.mark.commit
def test_calls_before_init():
    job = run_job(
        """
import horovod_data as hvdata
for name in ("rank", "size", "is_reader", "is_trainer", "num_readers"):
    try:
        getattr(hvdata, name)()
    except RuntimeError as error:
        print(error)
hvdata.shutdown()  # nothing to shut down: nothing to complain about
""",
        np=1,
    )
    assert job.returncode == 0, job.describe()
    for name in ("rank", "size", "is_reader", "is_trainer", "num_readers"):
        assert f"{name}() was called before horovod_data.init(). Call horovod_data.init() first." in job.stdout[0]


def test_collective_calls_before_init_and_after_shutdown():
    job = run_job(
        """
import tensorflow as tf
import horovod_data as hvdata

def calls():
    for name, arguments in (("distribute_dataset", dict(dataset_or_fn=tf.data.Dataset.range(4), batch="per_rank")),
                            ("distribute_datasets_from_function", dict(fn=lambda: tf.data.Dataset.range(4), batch="per_rank")),
                            ("scatter", dict(x=tf.range(4))), ("serve", {})):
        try:
            getattr(hvdata, name)(**arguments)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}")

calls()
hvdata.init()
hvdata.shutdown()
calls()
""",
        np=2,
    )
    assert job.returncode == 0, job.describe()
    names = ("distribute_dataset", "distribute_datasets_from_function", "scatter", "serve")
    for rank, out in enumerate(job.stdout):
        before = [
            f"{name}: RuntimeError: {name}() was called before horovod_data.init(). Call horovod_data.init() first."
            for name in names
        ]
        after = [
            f"{name}: RuntimeError: [rank {rank} on {socket.gethostname()}] {name}() was called after the end of the "
            "job: horovod_data.shutdown() has been called, or MPI has been finalised (by hvd.shutdown(), say). Shut "
            "down when nothing more is to be read; a process can't join again."
            for name in names
        ]
        assert out.splitlines() == before + after, job.describe()


@pytest.mark.commit
def test_init_twice():
    job = run_job(
        """
import horovod_data as hvdata
hvdata.init()
hvdata.init(readers=0)
for again in (dict(readers=1), dict()):
    try:
        hvdata.init(**again)
    except RuntimeError as error:
        print(error)
    hvdata.shutdown()
""",
        np=2,
    )
    every_rank_said(job, r"init\(\) was called a second time with other arguments: readers=1, .*; it runs with")
    every_rank_said(job, r"init\(\) was called after the end of the job")


def test_init_twice_with_another_environment():
    """The settings of the first call stay."""
    job = run_job(
        """
import os
import horovod_data as hvdata
hvdata.init()
os.environ.update(HOROVOD_DATA_REPORT="1", HOROVOD_DATA_READERS="1", HOROVOD_DATA_TIMEOUT="soon")
hvdata.init()
print("went on with", hvdata.num_readers(), hvdata.size())
try:
    hvdata.init(readers=1)
except RuntimeError as error:
    print(error)
""",
        np=2,
    )
    every_rank_said(job, "went on with 1 2")
    every_rank_said(
        job, r"init\(\) was called a second time with other arguments: readers=1, .*; it runs with readers=0, "
    )


@pytest.mark.parametrize("comm, text", [
    ("[0, 1]", r"TypeError: comm must be an mpi4py intracommunicator, not \[0, 1\]"),
    ("MPI.COMM_NULL", r"(Type|Value)Error: comm "),
])  # fmt: skip
def test_a_comm_that_is_none(comm, text):
    every_rank_said(run_job(caught(before="from mpi4py import MPI", arguments=f"comm={comm}"), np=2), text)


@pytest.mark.commit
@pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="needs Horovod")
def test_who_is_who():
    script = """
import horovod.tensorflow as hvd
import horovod_data as hvdata
hvdata.init()
print(hvdata.rank(), hvdata.size(), hvdata.is_reader(), hvdata.is_trainer(), hvdata.num_readers(),
      (hvd.rank(), hvd.size()) if hvd.is_initialized() else None)
"""
    job = run_job(script, np=2)
    assert job.stdout == ["0 2 True True 1 (0, 2)\n", "1 2 False True 1 (1, 2)\n"], job.describe()
    job = run_job(script, np=2, readers=1)
    assert job.stdout == ["0 2 False True 1 (0, 2)\n", "1 2 False True 1 (1, 2)\n", "None None True False 1 None\n"]
    assert job.returncode == 0, job.describe()


@pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="needs Horovod")
def test_a_sub_communicator():
    job = run_job(
        """
from mpi4py import MPI
import horovod_data as hvdata
world = MPI.COMM_WORLD
hvdata.init(comm=world.Split(world.rank % 2, -world.rank))
import horovod.tensorflow as hvd
print(hvdata.rank(), hvdata.size(), hvd.rank(), hvd.size())
""",
        np=4,
    )
    assert job.returncode == 0, job.describe()
    assert job.stdout == ["1 2 1 2\n", "1 2 1 2\n", "0 2 0 2\n", "0 2 0 2\n"], job.describe()


@pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="needs Horovod")
@pytest.mark.parametrize("before, arguments, text", [
    ("import horovod.tensorflow as hvd; hvd.init()", "readers=1",
     r"RuntimeError: \[.*\] reader 0 on \S+ is a dedicated reader, but Horovod counts it: hvd.init\(\) was called "
     r"first\. Call horovod_data.init\(\) instead of hvd.init\(\)"),
    ("import horovod.tensorflow as hvd; hvd.init(); from mpi4py import MPI", "comm=MPI.COMM_WORLD.Split(hvd.rank())",
     r"RuntimeError: .* Horovod was initialised for other processes: on rank 0 on \S+ hvd.rank\(\) is \d of 2, but it "
     r"is trainer 0 of 1"),
])  # fmt: skip
def test_horovod_was_initialised_for_others(before, arguments, text):
    every_rank_said(run_job(caught(before, arguments, stay=1), np=2), text)


def test_two_mpi_libraries():
    from horovod_data.native import loader

    loader.load()
    ours = loader.mpi_libraries()
    theirs = [path for path in ("/usr/lib/x86_64-linux-gnu/libmpi.so.40", "/usr/lib/x86_64-linux-gnu/libmpich.so.12")
              if os.path.exists(path) and os.path.realpath(path) not in ours]  # fmt: skip
    if not theirs:
        pytest.skip("needs a second MPI library")
    job = run_job(caught(before=f"import ctypes; ctypes.CDLL({theirs[0]!r})"), np=1)
    every_rank_said(job, r"RuntimeError: This process has loaded 2 MPI libraries: .*Each of them sees a job of its own")


FAILS_BEHIND_THE_MEETING = """
import contextlib, os, sys, time
from pathlib import Path
import horovod_data as hvdata
from horovod_data import start
with contextlib.suppress(ImportError):
    import horovod.tensorflow
here = Path(sys.argv[1])
(here / os.environ["HVDATA_TEST_RANK"]).touch()
while len(list(here.iterdir())) < 3:  # what they have to load is not limited
    time.sleep(0.01)
if os.environ["HVDATA_TEST_RANK"] == "1":
    def fails(*_):
        raise KeyboardInterrupt  # as it may come at any time
    start.with_horovod.join = start.bindings.start = fails
try:
    hvdata.init()
except KeyboardInterrupt:
    print("goes without", flush=True)
"""


def test_a_rank_whose_init_failed_when_all_had_met(tmp_path):
    """The others are in Horovod's start by then, or in ours, and wait for it there until the time limit."""
    script = FAILS_BEHIND_THE_MEETING + "time.sleep(1000)\n"
    job = run_job(script, 3, str(tmp_path), env={"HOROVOD_DATA_TIMEOUT": "6"})
    assert "goes without" in job.stdout[1] and job.returncode == 1, job.describe()
    said = r"After \d+ s not all of the 3 processes have come through horovod_data\.init\(\)"
    assert any(re.search(rf"\[rank [02] on \S+\] {said}", said_by) for said_by in job.stderr), job.describe()


AGAIN_BEHIND_THE_MEETING = """
import os, signal, time
import horovod_data as hvdata
from horovod_data.native import bindings
if os.environ["HVDATA_TEST_RANK"] == "1":
    start = bindings.start
    def starts(*args, **settings):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        start(*args, **settings)
    bindings.start = starts
try:
    hvdata.init()
except KeyboardInterrupt:
    print("interrupted", flush=True)
    hvdata.init()
import tensorflow as tf
print("got", [int(x) for x in hvdata.distribute_dataset(lambda: tf.data.Dataset.range(4), batch="per_rank")], flush=True)
"""


def test_init_that_is_interrupted_behind_the_meeting():
    """The others wait for this rank in a collective that can't be repeated, so it joins them first."""
    job = run_job(AGAIN_BEHIND_THE_MEETING, np=2, env={"HOROVOD_DATA_TIMEOUT": "60"})
    assert job.returncode == 0 and "interrupted" in job.stdout[1], job.describe()
    assert "got [0, 2]" in job.stdout[0] and "got [1, 3]" in job.stdout[1], job.describe()


def test_ranks_that_disagree_about_the_audit():
    """One that waits in an exchange that the other knows nothing of."""
    before = "import os\nif os.environ['HVDATA_TEST_RANK'] == '1': os.environ['HOROVOD_DATA_AUDIT'] = '1'"
    every_rank_said(
        run_job(caught(before), np=2),
        r"The ranks disagree about HOROVOD_DATA_AUDIT: False on rank 0 \(host \S+\); True on rank 1",
    )
