# SPDX-License-Identifier: Apache-2.0
"""Other processes of the host connect to all sockets of horovod_data and look for its memory, before, while and after its ranks connect.
docs/security.md says what these processes can do."""

import os
import subprocess

import pytest
from jobs import start_job
from strangers import Strangers

pytestmark = [
    pytest.mark.limit(240),
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of another user"),
]

# Rank 2 is late: before it the others wait for all to have called, after it the reader waits for rank 2 to say who it is.
LATE = """
#include <mpi.h>
#include <unistd.h>
int MPI_Alltoall(const void* out, int n, MPI_Datatype t, void* in, int m, MPI_Datatype u, MPI_Comm comm) {
  static int calls;
  int rank;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const int late = rank == 2 && calls++ == 0;
  if (late) sleep(2);
  const int status = PMPI_Alltoall(out, n, t, in, m, u, comm);
  if (late) sleep(2);
  return status;
}
"""

EPOCHS = """
import os, time
import numpy as np, tensorflow as tf
import horovod_data as hvdata

def descriptors(): return len(os.listdir("/proc/self/fd"))

try:
    import horovod.tensorflow
except ImportError:
    pass
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()  # what they have to load counts for nothing
begun = time.monotonic()
hvdata.init()
seconds = time.monotonic() - begun
n = hvdata.size()
ds = hvdata.distribute_dataset(
    lambda: tf.data.Dataset.range(64 * 30 * n).map(lambda i: tf.fill([1024], i)).batch(64), batch="per_rank", verify=True)
before = None
for epoch in range(2):
    rows = []
    for x in ds:
        rows.append(x.numpy())
        time.sleep(0.05)
        before = before or descriptors()
    rows = np.concatenate(rows)
    assert (rows == rows[:, :1]).all()
    assert (rows[:, 0] == np.concatenate([np.arange(64) + 64 * (s * n + hvdata.rank()) for s in range(30)])).all()
    print("epoch", epoch, flush=True)
moved = hvdata.stats()
print("init", "late" if seconds > 15 else "in time", "message", moved["payload_bytes_message"], "arena",
      moved["payload_bytes_arena"] > 0, "more descriptors", descriptors() - before)
"""


def test_the_job_goes_on_and_says_so(tmp_path):
    (tmp_path / "late.c").write_text(LATE)
    library = tmp_path / "late.so"
    subprocess.run(["mpicc", "-shared", "-fPIC", "-o", library, tmp_path / "late.c"], check=True)
    with Strangers() as strangers:
        with start_job(EPOCHS, np=3, env={"LD_PRELOAD": str(library)}) as job:
            job.wait_for("epoch 0", rank=0, timeout=120)
            names = strangers.names()
            assert job.finish(timeout=120) == 0, job.describe()
    assert not names, "a socket is open that nobody needs any more"
    assert strangers.called["abstract"] >= 30 and strangers.called["memory"] >= 3 * 200, strangers.called
    assert not strangers.got, strangers.got
    for rank in range(3):
        *_, last = job.stdout[rank].splitlines()
        words = last.split()
        assert last.startswith("init in time message 0 arena " + str(rank == 0)), job.describe()
        assert int(words[-1]) < 20, job.describe()
    lines = [line for text in job.stderr for line in text.splitlines() if "horovod_data" in line]
    (line,) = [line for line in lines if "connection(s) to the socket" in line]
    assert "[rank 0 on " in line and "of other users (uid 65534)" in line and "of this user that didn't know" in line, (
        line
    )
    assert len(lines) < 8, lines
