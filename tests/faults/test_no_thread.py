# SPDX-License-Identifier: Apache-2.0
"""The reader's process can have no more threads: an error on every rank, and not the end of the process."""

import shutil
import subprocess

import pytest
from jobs import run_job

pytestmark = [pytest.mark.limit(150), pytest.mark.usefixtures("verified")]

# As the kernel answers at its limit, from when the program says so. The limit itself holds for a user's processes together,
# and not for root's.
NO_THREAD = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *x) {
  static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  if (!real) real = (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT, "pthread_create");
  return getenv("NO_THREAD") ? EAGAIN : real(t, a, f, x);
}
"""


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("cc"), reason="needs cc")
def test_no_thread_for_the_dealer(tmp_path):
    (tmp_path / "no_thread.c").write_text(NO_THREAD)
    subprocess.run(["cc", "-shared", "-fPIC", "no_thread.c", "-o", "no_thread.so", "-ldl"], cwd=tmp_path, check=True)
    job = run_job(
        """
import os
import tensorflow as tf
import horovod_data as hvdata
from mpi4py import MPI
hvdata.init()
ds = hvdata.distribute_dataset(tf.data.Dataset.range(8), batch="per_rank")
assert len(list(ds)) == 4  # TensorFlow has its threads
it = iter(ds)  # a thread of TensorFlow's, which it can't do without
if hvdata.rank() == 0:
    os.environ["NO_THREAD"] = "1"
MPI.COMM_WORLD.Barrier()
try:
    next(it)
except tf.errors.ResourceExhaustedError as error:
    print("refused:", error)
os.environ.pop("NO_THREAD", None)
MPI.COMM_WORLD.Barrier()
assert len(list(ds)) == 4  # and the next epoch is as any other
print("went on")
""",
        np=2,
        env={"LD_PRELOAD": str(tmp_path / "no_thread.so")},
    )
    assert job.returncode == 0, job.describe()
    for out in job.stdout:
        assert (
            "epoch 2" in out
            and "this process can start no more threads" in out
            and "ulimit -u" in out
            and "went on" in out
        ), job.describe()
