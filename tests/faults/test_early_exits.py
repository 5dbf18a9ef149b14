# SPDX-License-Identifier: Apache-2.0
"""After one rank's process ends, the other ranks get the rest of the data. Who initialised MPI makes no difference."""

import time

import pytest
from jobs import program, run_program, start_job
from ranks.launch import open_mpi

pytestmark = [pytest.mark.limit(150), pytest.mark.usefixtures("verified")]

HVD = "import horovod.tensorflow as hvd; hvd.init()"
INIT = "hvdata.init(%s)\nrank, size = hvdata.rank(), hvdata.size()\n"
FIRST = [
    pytest.param(HVD, INIT % "", marks=pytest.mark.horovod, id="hvd first"),
    pytest.param("from mpi4py import MPI", INIT % "comm=MPI.COMM_WORLD.Split(0, MPI.COMM_WORLD.rank)", id="mpi4py first"),
    pytest.param("", INIT % "", id="hvdata first"),
]  # fmt: skip

# 40 elements, the first of them for rank 1, which leaves at once. The others take 50 ms for each.
DYNAMIC = """
for x in train(lambda: tf.data.Dataset.range(40), schedule="dynamic"):
    say(int(x))
    if rank == 1:
        break
    time.sleep(0.05)
"""


ENDS = ["hvd.shutdown()", "hvdata.shutdown(); hvd.shutdown()", "sys.exit(0)"]


@pytest.mark.parametrize("before, init, end", [
    *(pytest.param(*first.values, "", marks=first.marks, id=first.id) for first in FIRST),
    *(pytest.param(HVD, INIT % "", end, marks=pytest.mark.horovod, id=end) for end in ENDS),
])  # fmt: skip
def test_a_trainer_is_done_first(before, init, end):
    job = run_program(DYNAMIC + end, 3, before=before, init=init)
    assert sorted(int(line) for out in job.stdout for line in out.split()) == list(range(40)), job.describe()
    assert all(len(job.stdout[rank].split()) > 1 for rank in (0, 2)), job.describe()


@pytest.mark.parametrize("before, init", FIRST)
def test_the_reader_is_done_first(before, init):
    """With the static schedule, the other ranks get their own steps, without those of the reader that has left."""
    job = run_program("""
for step, x in enumerate(train(lambda: tf.data.Dataset.range(90))):
    if rank == 0 and step == 3:
        break
    say(int(x))
    time.sleep(0.05)
""", 3, before=before, init=init)  # fmt: skip
    for rank, steps in enumerate([3, 30, 30]):
        assert job.stdout[rank].split() == [str(3 * step + rank) for step in range(steps)], job.describe()


@pytest.mark.commit
def test_a_killed_reader_that_is_done_and_reads_on():
    """Rank 0 has left its epoch, which the other ranks know, and reads on for them. Then it is killed.

    Batches are large, so one is always on its way.
    """
    script = program("""
def endless():
    while True:
        yield np.zeros(1 << 20, np.float32)

ds = load(endless)
for step, _ in enumerate(ds):
    if step == 10:
        say("under way")
    if step == 20 and rank == 0:
        say("is done")
        break
    time.sleep(0.01)
""")
    with start_job(script, 3) as job:
        job.wait_for("is done", 0, timeout=100)
        for rank in (1, 2):
            job.wait_for("under way", rank, timeout=100)
        time.sleep(1)  # BYE is sent within it
        job.kill_rank(0)
        assert job.finish_soon() != 0, job.describe()
    if open_mpi():  # Hydra kills the others before they know
        job.assert_said(r"rank 0 on .* has died \(here: channel train, epoch 1, step ")


@pytest.mark.horovod
@pytest.mark.parametrize("before", [HVD, ""])
def test_a_collective_after_a_rank_has_left_is_an_error(before):
    """An error of Horovod's, at once. Horovod must hear of the rank's end even while others still need its data."""
    job = run_program("""
import horovod.tensorflow as hvd
if rank < 2:
    try:
        hvd.allreduce(tf.zeros(2), name="waits for rank 2")
    except Exception as error:
        say(type(error).__name__, error)
""", 3, before=before)  # fmt: skip
    job.assert_said("Horovod has been shut down", 0, 1)
    assert job.seconds < 60, job.describe()


@pytest.mark.horovod
def test_the_communication_threads_end_before_horovod_finalises_mpi():
    """Ranks end together. When MPICH reports that MPI_Finalize has begun, it takes no locks any more.

    A lock that our thread holds then would stay locked, and MPI_Finalize would fail.
    """
    before = """
import horovod.tensorflow as hvd
hvd.init()
library = hvd.shutdown.__self__.MPI_LIB_CTYPES
shut_down = library.horovod_shutdown
def noted():
    now("ENDS")
    return shut_down()
library.horovod_shutdown = noted  # what init() wraps
"""
    script = """
hvd.allreduce(tf.zeros(1))
if rank == 1:
    time.sleep(0.4)  # Horovod's end waits a second for ranks that are not done
now("COMES")
hvd.shutdown()
"""
    for _ in range(3):  # again if rank 1 was held up for longer than that second
        job = run_program(script, 2, before=before)
        if "ENDS" in job.stdout[0]:
            break
    assert job.when("ENDS", 0) > job.when("COMES", 1), job.describe()


@pytest.mark.horovod
def test_mpi_finalize_on_the_program_s_own_thread_does_not_wait_for_that_thread():
    """MPI_Finalize ends our part. Horovod's thread still calls MPI, and may abort the job."""
    job = run_program("from mpi4py import MPI\nsay('goes')\nMPI.Finalize()", 2, before=HVD, status=None)
    # MPICH's UCX may add a warning of what Horovod has not finished.
    assert all(out.startswith("goes\n") for out in job.stdout) and job.seconds < 60, job.describe()


# A wait of more than 20 s ends after 2 s, and the clock is put forward by the rest. So a limit takes effect soon. If
# the communication thread calls MPI after MPI has ended, the process exits with 9.
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
def test_a_rank_waits_in_mpi_finalize_for_as_long_as_the_others_train(preload):
    """However long: MPI must not be finalised under our communication thread."""
    job = run_program("""
for step, x in enumerate(load(range(12))):
    if rank == 1:
        break
    time.sleep(1)
print(step)
""", 2, before="sys.modules['horovod'] = None  # as if it were not installed", env=preload(IMPATIENT))  # fmt: skip
    assert job.stdout == ["5\n", "0\n"], job.describe()
    # A newer TensorFlow greets on stderr.
    said = [line for err in job.stderr for line in err.splitlines() if "horovod_data" in line or "MPI" in line]
    certificate = "epoch 1, not complete (it was broken off): 7 rows"
    assert all(certificate in line for line in said), job.describe()


@pytest.mark.commit
@pytest.mark.horovod
def test_a_shutdown_before_the_others_last_collective_has_a_limit():
    """Rank 1 waits for rank 0 in a collective, and rank 0 waits for rank 1 in shutdown(). The limit ends this."""
    job = run_program("""
import horovod.tensorflow as hvd
for x in train(lambda: tf.data.Dataset.range(8).batch(2), batch="global"):
    pass
if rank == 1:
    hvd.allreduce(tf.constant(1.0))
hvdata.shutdown()
""", 2, env={"HOROVOD_DATA_TIMEOUT": "4"}, status=None)  # fmt: skip
    assert job.returncode != 0, job.describe()
    job.assert_said(
        r"TimeoutError: \[rank 0 on \S+\] shutdown\(\) has waited 4 s for rank 1 on \S+: no trainer has taken a batch or ended\. "
        r"They may wait for this rank in a collective\. Call shutdown\(\) after the last collective, or leave it out",
        0,
    )
