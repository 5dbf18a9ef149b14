# SPDX-License-Identifier: Apache-2.0
"""Shared memory that is refused, too small, or short for a while, and how it is given back."""

import subprocess

import pytest
from jobs import run_program
from launched import executable

pytestmark = [pytest.mark.limit(150), pytest.mark.usefixtures("verified")]

EPOCH = """
batches = np.arange(64 * 8 * size, dtype=np.int32).reshape(-1, 64, 1)
ds = load([np.repeat(batch, 4096, axis=1) for batch in batches])
rows = np.concatenate(list(ds))
assert (rows == rows[:, :1]).all()
assert (rows[:, 0] == np.concatenate([np.arange(64) + 64 * (s * size + rank) for s in range(8)])).all()
moved = hvdata.stats()
say("arena", moved["payload_bytes_arena"], "message", moved["payload_bytes_message"])
"""
ROWS = 64 * 4096 * 4 * 8  # bytes for each rank


def the_line(job, about):
    (line,) = [line for text in job.stderr for line in text.splitlines() if about in line]
    return line


@pytest.mark.commit
def test_too_small_for_one_batch():
    job = run_program(EPOCH, 2, env={"HOROVOD_DATA_ARENA_MB": "0.5"})
    assert job.stdout[0] == f"arena 0 message {ROWS}\n", job.describe()
    assert the_line(job, "shared memory").endswith(
        "] there is no shared memory for a batch of 1024 KiB (0 of 512 KiB in use, 0 KiB set aside by the system): batches "
        "without room travel as messages. HOROVOD_DATA_ARENA_MB sets the size of this memory"
    )


def test_the_system_has_no_shared_memory():
    before = """
import resource
from mpi4py import MPI  # MPI has made its own files, so the limit does not meet them
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
"""
    job = run_program(EPOCH, 2, before=before)
    assert job.stdout[0] == f"arena 0 message {ROWS}\n", job.describe()
    line = the_line(job, "travel as messages")
    assert "[rank 0 on " in line and "] no shared memory for the ranks of this host (" in line, line
    assert line.endswith("): their batches travel as messages"), line


# While SHORT is set, the system has no memory to set aside for this process, except for what the lanes need.
SHORT = """
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>
int fallocate(int fd, int mode, off_t offset, off_t size) {
  if (mode == 0 && offset > 0 && getenv("SHORT")) return errno = ENOSPC, -1;
  return syscall(SYS_fallocate, fd, mode, offset, size);
}
"""


def test_the_system_is_short_of_memory_for_a_while(preload):
    body = """
del os.environ["SHORT"]
time.sleep(2)  # the system is asked again a second after it had no memory, or later
before = hvdata.stats()
for _ in ds: pass
say("arena", hvdata.stats()["payload_bytes_arena"] - before["payload_bytes_arena"])
"""
    job = run_program(EPOCH + body, 2, env={**preload(SHORT, "cc"), "SHORT": "1"})
    assert job.stdout[0] == f"arena 0 message {ROWS}\narena {ROWS}\n", job.describe()
    line = the_line(job, "there is no shared memory for a batch of 1024 KiB (0 of ")
    assert line.endswith(
        " KiB in use, 0 KiB set aside by the system): batches without room travel as messages. HOROVOD_DATA_ARENA_MB sets the size of this memory. "
        "The system has no more memory: give this host's processes, or their container, more"
    ), line


NAMESPACE = """
[ "$HVDATA_TEST_RANK" != 1 ] || exec unshare --user --map-current-user "$@"
exec "$@"
"""


@pytest.mark.commit
def test_a_rank_in_a_user_namespace_shares_it(tmp_path):
    """A container that a user without root starts is such a namespace.

    For example each rank of `mpirun -np 4 apptainer exec image python train.py` has one.
    """
    if subprocess.run(["unshare", "--user", "--map-current-user", "true"], capture_output=True).returncode:
        pytest.skip("this system makes no user namespaces")
    wrapper = executable(tmp_path / "namespace.sh", NAMESPACE)
    job = run_program(EPOCH, 3, env={"HVDATA_TEST_PRELOAD": str(wrapper)})
    assert job.stdout[0] == f"arena {2 * ROWS} message 0\n", job.describe()
    assert "shared memory" not in "".join(job.stderr), job.describe()


@pytest.mark.commit
def test_shutdown_gives_it_back_in_the_middle_of_an_epoch():
    """shutdown() also frees the memory of the pipeline.

    What batches and iterators keep is freed when the rank exits.
    """
    job = run_program("""
def behind_ours():  # bytes of memory
    ours = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum(os.stat(path).st_blocks * 512 for path in ours if os.path.islink(path) and "memfd:horovod_data " in os.readlink(path))

it = iter(train(lambda: tf.data.Dataset.range(1 << 40).map(lambda i: tf.fill([1 << 16], i)).batch(32).prefetch(4)))
for _ in range(5): x = next(it)
before = behind_ours()
del x
if rank == 1: del it
hvdata.shutdown()
deadline = time.monotonic() + 20
while behind_ours() > 8 << 20 and time.monotonic() < deadline: time.sleep(0.1)
say(before > 64 << 20, behind_ours() <= 8 << 20, before, behind_ours())
""", 2)  # fmt: skip
    assert job.stdout[0].startswith("True True"), job.describe()
