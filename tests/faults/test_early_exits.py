# SPDX-License-Identifier: Apache-2.0
"""A rank whose process ends takes nothing from the others, whoever initialised MPI: they are given the rest of the data."""

import functools
import re
import shutil
import subprocess

import jobs
import pytest

run_job = functools.partial(jobs.run_job, timeout=120)  # for a machine under load: most take 5 s
pytestmark = [
    pytest.mark.limit(150),
    pytest.mark.usefixtures("verified"),
]  # so that a job that hangs fails with its stacks

HVD_FIRST = pytest.param("import horovod.tensorflow as hvd; hvd.init()", "", marks=pytest.mark.horovod, id="hvd first")
MPI_FIRST = pytest.param(
    "from mpi4py import MPI", "comm=MPI.COMM_WORLD.Split(0, MPI.COMM_WORLD.rank)", id="mpi4py first"
)
OURS_FIRST = pytest.param("", "", id="hvdata first")

# 40 elements, the first of them for the rank that leaves at once; the others take 50 ms for each.
DYNAMIC = """
import sys, time
{before}
import horovod_data as hvdata
import tensorflow as tf
hvdata.init({arguments})
ds = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(40), batch="per_rank", schedule="dynamic", name="train")
for x in ds:
    print(int(x), flush=True)
    if hvdata.rank() == 1:
        break
    time.sleep(0.05)
{end}
"""


def taken(job) -> list[int]:
    assert job.returncode == 0, job.describe()
    return sorted(int(line) for out in job.stdout for line in out.split())


@pytest.mark.commit("mpi4py first")
@pytest.mark.parametrize("before, arguments", [HVD_FIRST, MPI_FIRST, OURS_FIRST])
def test_a_trainer_is_done_first(before, arguments):
    job = run_job(DYNAMIC.format(before=before, arguments=arguments, end=""), np=3)
    assert taken(job) == list(range(40)), job.describe()
    assert all(len(job.stdout[rank].split()) > 1 for rank in (0, 2)), job.describe()


@pytest.mark.horovod
@pytest.mark.parametrize(
    "end", ["hvd.shutdown()", "hvdata.shutdown()", "hvdata.shutdown(); hvd.shutdown()", "sys.exit(0)"]
)
def test_a_trainer_shuts_down_first(end):
    before = "import horovod.tensorflow as hvd; hvd.init()"
    assert taken(run_job(DYNAMIC.format(before=before, arguments="", end=end), np=3)) == list(range(40))


@pytest.mark.parametrize("before, arguments", [HVD_FIRST, MPI_FIRST, OURS_FIRST])
def test_the_reader_is_done_first(before, arguments):
    """Under the static schedule, where the others go on without the steps of the rank that has left."""
    job = run_job(
        f"""
import time
{before}
import horovod_data as hvdata
import tensorflow as tf
hvdata.init({arguments})
ds = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(90), batch="per_rank", name="train")
for step, x in enumerate(ds):
    if hvdata.rank() == 0 and step == 3:
        break
    print(int(x), flush=True)
    time.sleep(0.05)
""",
        np=3,
    )
    assert job.returncode == 0, job.describe()
    for rank, steps in enumerate([3, 30, 30]):
        assert job.stdout[rank].split() == [str(3 * step + rank) for step in range(steps)], job.describe()


@pytest.mark.horovod
@pytest.mark.parametrize("before", ["hvd.init()", ""])
def test_a_collective_after_a_rank_has_left_is_an_error(before):
    """Horovod's own, at once: the rank's end must not be kept from it for the sake of the data."""
    job = run_job(
        f"""
import horovod.tensorflow as hvd
{before}
import horovod_data as hvdata
import tensorflow as tf
hvdata.init()
if hvd.rank() < 2:
    try:
        hvd.allreduce(tf.zeros(2), name="waits for rank 2")
    except Exception as error:
        print(type(error).__name__, error)
""",
        np=3,
    )
    assert job.returncode == 0, job.describe()
    assert all("Horovod has been shut down" in out for out in job.stdout[:2]), job.describe()
    assert job.seconds < 60, job.describe()


@pytest.mark.horovod
def test_the_communication_threads_end_before_horovod_finalises_mpi():
    """Of ranks that end together. MPICH's MPI_Finalize takes no locks any more by the time it tells us that it has begun:
    what our thread has locked then stays locked, and MPI_Finalize fails."""
    script = """
import horovod.tensorflow as hvd
hvd.init()
import time
import horovod_data as hvdata
import tensorflow as tf
library = hvd.shutdown.__self__.MPI_LIB_CTYPES
shut_down = library.horovod_shutdown
def noted():
    print("ENDS", time.monotonic(), flush=True)
    return shut_down()
library.horovod_shutdown = noted  # what init() wraps
hvdata.init()
hvd.allreduce(tf.zeros(1))
if hvd.rank() == 1:
    time.sleep(0.4)  # within the second for which who is done waits with Horovod's end
print("COMES", time.monotonic(), flush=True)
hvd.shutdown()
"""
    for _ in range(3):  # of a rank that was held up for longer than that second nobody waits
        job = run_job(script, np=2)
        assert job.returncode == 0, job.describe()
        if "ENDS" in job.stdout[0]:
            break
    assert job.when("ENDS", 0) > job.when("COMES", 1), job.describe()


@pytest.mark.horovod
def test_mpi_finalize_on_the_program_s_own_thread_does_not_wait_for_that_thread():
    """It ends our part; that Horovod's thread, which still calls MPI, may then end the job is not our affair."""
    job = run_job(
        """
import horovod.tensorflow as hvd
hvd.init()
import horovod_data as hvdata
hvdata.init()
from mpi4py import MPI
print("goes", flush=True)
MPI.Finalize()
""",
        np=2,
    )
    # MPICH's UCX may add a warning of what Horovod has not finished.
    assert all(out.startswith("goes\n") for out in job.stdout) and job.seconds < 60, job.describe()


# A wait of more than 20 s is over after 2 s, and then the clock is put forward as if it had lasted: so a limit shows. And
# the communication thread is caught where MPI has ended under it.
IMPATIENT = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static _Atomic long ahead;  // of the clock, in s
int clock_gettime(clockid_t clock, struct timespec *now) {
  const long code = syscall(SYS_clock_gettime, clock, now);
  if (clock == CLOCK_MONOTONIC) now->tv_sec += ahead;
  return (int)code;
}
int pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock, const struct timespec *until) {
  static int (*real)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
  if (!real) *(void **)&real = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
  struct timespec end = *until, now;
  end.tv_sec -= ahead;
  syscall(SYS_clock_gettime, clock, &now);
  const long cut = end.tv_sec - now.tv_sec > 20 ? end.tv_sec - now.tv_sec - 2 : 0;
  end.tv_sec -= cut;
  const int code = real(cond, mutex, clock, &end);
  ahead += cut;
  return code;
}
int MPI_Improbe(int source, int tag, MPI_Comm comm, int *flag, MPI_Message *message, MPI_Status *status) {
  int finalized = 0;
  PMPI_Finalized(&finalized);
  if (finalized) {
    fputs("MPI_Improbe after MPI_Finalize\n", stderr);
    _exit(9);
  }
  return PMPI_Improbe(source, tag, comm, flag, message, status);
}
"""


@pytest.mark.commit
@pytest.mark.skipif(not shutil.which("mpicc"), reason="needs mpicc")
def test_a_rank_waits_in_mpi_finalize_for_as_long_as_the_others_train(tmp_path):
    """However long: MPI must not be finalised under our communication thread."""
    (tmp_path / "impatient.c").write_text(IMPATIENT)
    subprocess.run(["mpicc", "-shared", "-fPIC", "impatient.c", "-o", "impatient.so", "-ldl"], cwd=tmp_path, check=True)
    job = run_job(
        """
import sys, time
sys.modules['horovod'] = None  # as if it were not installed
import horovod_data as hvdata
import tensorflow as tf
hvdata.init()
ds = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(12), batch="per_rank", name="train")
for step, x in enumerate(ds):
    if hvdata.rank() == 1:
        break
    time.sleep(1)
print(step)
""",
        np=2,
        env={"LD_PRELOAD": str(tmp_path / "impatient.so")},
    )
    assert job.returncode == 0 and job.stdout == ["5\n", "0\n"], job.describe()
    # A newer TensorFlow greets on stderr.
    said = [line for err in job.stderr for line in err.splitlines() if "horovod_data" in line or "MPI" in line]
    assert all("epoch 1, not complete (it was broken off): 7 rows" in line for line in said), (
        job.describe()
    )  # the certificate


SHUT_DOWN_BEFORE_A_COLLECTIVE = """
import tensorflow as tf
import horovod_data as hvdata
hvdata.init()
import horovod.tensorflow as hvd

for x in hvdata.distribute_dataset(lambda: tf.data.Dataset.range(8).batch(2), batch="global"):
    pass
if hvd.rank() == 1:
    hvd.allreduce(tf.constant(1.0))
hvdata.shutdown()
"""


@pytest.mark.commit
@pytest.mark.horovod
@pytest.mark.limit(100)
def test_a_shutdown_before_the_others_last_collective_has_a_limit():
    """Rank 1 waits for rank 0 in a collective, and rank 0 in shutdown() for rank 1: the job hung, whatever the limit was."""
    job = run_job(SHUT_DOWN_BEFORE_A_COLLECTIVE, 2, env={"HOROVOD_DATA_TIMEOUT": "4"}, timeout=60)
    assert job.returncode != 0, job.describe()
    assert re.search(
        r"TimeoutError: \[rank 0 on \S+\] shutdown\(\) has waited 4 s for rank 1 on \S+: no batch was taken, and there was no end\. "
        r"They may wait for this rank in a collective\. Call shutdown\(\) after the last collective, or leave it out",
        job.stderr[0],
    ), job.describe()
