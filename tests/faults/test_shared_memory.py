# SPDX-License-Identifier: Apache-2.0
"""Shared memory on bad days: where it is refused, too small or short, and what a killed process leaves behind."""

import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from jobs import run_job, start_job

pytestmark = [pytest.mark.limit(150), pytest.mark.usefixtures("verified")]

EPOCH = """
import numpy as np, tensorflow as tf
import horovod_data as hvdata
hvdata.init()
n = hvdata.size()
ds = hvdata.distribute_dataset(
    lambda: tf.data.Dataset.range(64 * 8 * n).map(lambda i: tf.fill([4096], tf.cast(i, tf.int32))).batch(64),
    batch="per_rank")
rows = np.concatenate([x.numpy() for x in ds])
assert (rows == rows[:, :1]).all()
assert (rows[:, 0] == np.concatenate([np.arange(64) + 64 * (s * n + hvdata.rank()) for s in range(8)])).all()
moved = hvdata.stats()
print("arena", moved["payload_bytes_arena"], "message", moved["payload_bytes_message"])
"""
ROWS = 64 * 4096 * 4 * 8  # bytes for each rank


@pytest.mark.commit
def test_too_small_for_one_batch():
    job = run_job(EPOCH, np=2, env={"HOROVOD_DATA_ARENA_MB": "0.5"}, timeout=120)
    assert job.returncode == 0, job.describe()
    assert job.stdout[0] == f"arena 0 message {ROWS}\n", job.describe()
    (line,) = [line for line in job.stderr[0].splitlines() if "shared memory" in line]
    assert re.search(
        r"\[rank 0 on \S+\] there is no shared memory for a batch of 1024 KiB \(0 of 512 KiB in use, 0 KiB set aside by "
        r"the system\): what finds no room travels as messages\. HOROVOD_DATA_ARENA_MB sets its size$",
        line,
    ), line


def test_the_system_has_no_shared_memory():
    job = run_job(
        """
import resource, signal
from mpi4py import MPI  # MPI has its own files, which the limit does not meet any more
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
"""
        + EPOCH,
        np=2,
        timeout=120,
    )
    assert job.returncode == 0, job.describe()
    assert job.stdout[0] == f"arena 0 message {ROWS}\n", job.describe()
    (line,) = [line for text in job.stderr for line in text.splitlines() if "travel as messages" in line]
    assert re.search(
        r"\[rank 0 on \S+\] no shared memory for the ranks of this host \(.+\): their "
        r"batches travel as messages$",
        line,
    ), line


# The system, that is, in the process that it is loaded into: it has no memory to set aside for more than the lanes need while SHORT is
# set.
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


def test_the_system_is_short_of_memory_for_a_while(tmp_path):
    (tmp_path / "short.c").write_text(SHORT)
    library = tmp_path / "short.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "short.c"], check=True)
    job = run_job(
        EPOCH
        + """
import os, time
del os.environ["SHORT"]
time.sleep(2)  # it is asked again no sooner than a second after it had none
before = hvdata.stats()
for _ in ds: pass
print("arena", hvdata.stats()["payload_bytes_arena"] - before["payload_bytes_arena"])
""",
        np=2,
        timeout=120,
        env={"LD_PRELOAD": str(library), "SHORT": "1"},
    )
    assert job.returncode == 0, job.describe()
    assert job.stdout[0] == f"arena 0 message {ROWS}\narena {ROWS}\n", job.describe()
    (line,) = [line for line in job.stderr[0].splitlines() if "memory" in line]
    assert re.search(
        r"\[rank 0 on \S+\] there is no shared memory for a batch of 1024 KiB \(0 of \d+ KiB in use, 0 KiB set aside by "
        r"the system\): what finds no room travels as messages\. HOROVOD_DATA_ARENA_MB sets its size\. The system has no "
        r"more memory: give this host's processes, or their container, more$",
        line,
    ), line


@pytest.mark.commit
def test_shutdown_gives_it_back_in_the_middle_of_an_epoch():
    """The memory of the pipeline is freed, too. The memory of what a rank keeps, also of an iterator, is freed with the rank."""
    job = run_job(
        """
import os, time
import tensorflow as tf
import horovod_data as hvdata
hvdata.init()

def behind_ours():  # bytes of memory
    ours = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum(os.stat(path).st_blocks * 512 for path in ours if os.path.islink(path) and "memfd:horovod_data " in os.readlink(path))

source = tf.data.Dataset.range(1 << 40).map(lambda i: tf.fill([1 << 16], i)).batch(32).prefetch(4)
it = iter(hvdata.distribute_dataset(lambda: source, batch="per_rank"))
for _ in range(5): x = next(it)
before = behind_ours()
del x
if hvdata.rank() == 1: del it
hvdata.shutdown()
deadline = time.monotonic() + 20
while behind_ours() > 8 << 20 and time.monotonic() < deadline: time.sleep(0.1)
print(before > 64 << 20, behind_ours() <= 8 << 20, before, behind_ours())
""",
        np=2,
        timeout=120,
    )
    assert job.returncode == 0 and job.stdout[0].startswith("True True"), job.describe()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_attaching_is_refused():
    """As between two containers of one host name: the reader's descriptors can't be seen from there."""
    job = run_job(
        """
import ctypes, os
from mpi4py import MPI
libc = ctypes.CDLL(None, use_errno=True)
pids = MPI.COMM_WORLD.allgather(os.getpid())
if MPI.COMM_WORLD.rank == 1:
    assert libc.unshare(0x20000) == 0  # CLONE_NEWNS
    assert libc.mount(b"none", b"/", None, 0x44000, None) == 0  # MS_REC | MS_PRIVATE
    assert libc.mount(b"none", f"/proc/{pids[0]}/fd".encode(), b"tmpfs", 0, None) == 0
"""
        + EPOCH,
        np=3,
        env={"HOROVOD_DATA_STALL_SECONDS": "5"},
        timeout=120,
    )
    assert job.returncode == 0, job.describe()
    assert job.stdout[0] == f"arena {ROWS} message {ROWS}\n", job.describe()
    assert "[rank 1 on " in job.stderr[1], job.describe()
    assert "can't use the shared memory of rank 0 on " in job.stderr[1] and "opening it failed" in job.stderr[1]
    assert "shared memory" not in job.stderr[0] + job.stderr[2]


ENDLESS = """
import tensorflow as tf
import horovod_data as hvdata
hvdata.init()
ds = hvdata.distribute_dataset(
    lambda: tf.data.Dataset.from_tensors(tf.zeros([1 << 20])).repeat().batch(4), batch="per_rank")
for step, x in enumerate(ds):
    if step == 20:
        print("going", flush=True)
"""


def shared_names():
    """The names in shared memory that may be ours. Open MPI has names of its own there."""
    return {
        path.name
        for path in Path("/dev/shm").iterdir()
        if not any(of_others in path.name for of_others in ("mpi", "vader", "sem.mp-"))
    }


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_leaves_nothing(killed):
    before = shared_names()
    with start_job(ENDLESS, np=3) as job:
        for rank in range(3):
            job.wait_for("going", rank)
        job.kill_rank(killed)
        assert job.finish(timeout=30) != 0
    deadline = time.monotonic() + 20  # what is another test's comes and goes
    while shared_names() - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert shared_names() <= before
