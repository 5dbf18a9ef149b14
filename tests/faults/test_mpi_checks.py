# SPDX-License-Identifier: Apache-2.0
"""MPI's own checks are on, and find nothing in jobs that use all of the library: each call's arguments are valid, and what is
taken from MPI is given back. What is left with a program's own handles shows that the checks see it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from jobs import run_job
from ranks import launch

COUNTER = Path(__file__).with_name("mpi_handles.c")
# Each call's arguments; handles that are left at MPI_Finalize; memory of MPI_Alloc_mem; and the stack of whoever aborts.
CHECKS = {
    "OMPI_MCA_mpi_param_check": "1",
    "OMPI_MCA_mpi_show_handle_leaks": "1",
    "OMPI_MCA_mpi_show_mpi_alloc_mem_leaks": "-1",
    "OMPI_MCA_opal_abort_print_stack": "1",
    "MPIR_CVAR_ERROR_CHECKING": "1",
}

SCRIPT = """
import sys, tempfile
sys.modules["horovod"] = None  # as if it were not installed: its communicators are its own affair
import horovod_data as hvdata
import tensorflow as tf
hvdata.init()
rank, size = hvdata.rank(), hvdata.size()
LARGE = tf.zeros([12, 40_000], tf.uint8)

def rows():
    return tf.data.Dataset.range(120).batch(12)

train = hvdata.distribute_dataset(rows, batch="global", name="train")
valid = hvdata.distribute_dataset(lambda: tf.data.Dataset.from_tensors(LARGE).repeat(6), batch="per_rank", name="valid")
free = hvdata.distribute_dataset(rows, batch="per_rank", schedule="dynamic", name="free")
left = hvdata.distribute_dataset(lambda: tf.data.Dataset.from_tensors(LARGE).repeat(60), batch="global", prefetch=4, name="left")
hvdata.serve()
for epoch in range(3):
    assert len(list(train)) == 10 and len(list(valid)) == 6 // size
    list(free)
    for step, _ in enumerate(left):  # broken off, by the ranks at different steps
        if step == 2 + rank:
            break
iterator = iter(train)
next(iterator)
checkpoint = tf.train.Checkpoint(iterator=iterator)
path = checkpoint.save(tempfile.mkdtemp() + "/ck")
seen = [x.numpy().tolist() for x in iterator]
checkpoint.restore(path)
assert [x.numpy().tolist() for x in iterator] == seen and len(seen) == 9
part = hvdata.scatter(tf.range(size * 3) if rank == 0 else None, dtype=tf.int32, name="part")
assert part.numpy().tolist() == [3 * rank, 3 * rank + 1, 3 * rank + 2]
iterator = iter(left)
next(iterator)  # and an epoch under way at the end
{end}
print("all of it")
"""


@pytest.fixture(scope="module")
def counter(tmp_path_factory):
    """The library that counts handles."""
    compiler = shutil.which("mpicc")
    if compiler is None:
        pytest.skip("needs mpicc")
    library = tmp_path_factory.mktemp("counter") / "mpi_handles.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wall", str(COUNTER), "-o", str(library), "-ldl", "-lpthread"], check=True
    )
    return str(library)


def handles(text, library):
    """{kind: (taken, given back)} of a library, of one rank's stderr."""
    found = re.findall(rf"^handles of {library}: (\w+) taken (\d+), given back (\d+)$", text, re.M)
    return {kind: (int(taken), int(given)) for kind, taken, given in found}


@pytest.mark.commit("hvdata.shutdown()-2-1-message")
@pytest.mark.limit(180)
@pytest.mark.parametrize("np, readers, way", [(2, 1, "message"), (3, 0, "message"), (2, 0, "arena")])
@pytest.mark.parametrize("end", ["", "hvdata.shutdown()"])
def test_nothing_is_left_with_mpi(counter, np, readers, way, end):
    job = run_job(
        SCRIPT.replace("{end}", end),
        np=np,
        readers=readers,
        timeout=170,
        env={**CHECKS, "LD_PRELOAD": counter, "HOROVOD_DATA_PAYLOAD": way},
    )
    assert job.returncode == 0 and all(out == "all of it\n" for out in job.stdout[:np]), job.describe()
    assert "still allocated" not in job.describe() and "MPI_Alloc_mem" not in job.describe(), job.describe()
    for err in job.stderr:
        found = handles(err, "_core.so")
        assert found.keys() >= {"communicators", "groups", "keyvals", "requests"}, job.describe()
        assert all(taken == given for taken, given in found.values()), job.describe()
    assert way != "message" or any("messages" in handles(err, "_core.so") for err in job.stderr), job.describe()


@pytest.mark.limit(120)
def test_what_a_program_leaves_is_seen(counter):
    job = run_job(
        """
from mpi4py import MPI
left = MPI.COMM_WORLD.Dup()
under_way = left.Irecv(bytearray(8), source=0, tag=7)
given_back = MPI.COMM_WORLD.Dup()
given_back.Free()
""",
        np=2,
        env={**CHECKS, "LD_PRELOAD": counter},
        timeout=100,
    )
    assert job.returncode == 0, job.describe()
    for err in job.stderr:
        found = handles(err, r"MPI\.[\w.-]+")
        assert found["communicators"] == (2, 1) and found["requests"] == (1, 0), job.describe()
    if launch.open_mpi():
        assert "MPI_Comm still allocated" in job.describe(), job.describe()


@pytest.mark.limit(120)
def test_a_wrong_call_is_seen():
    job = run_job(
        """
from mpi4py import MPI
MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
try:
    MPI.COMM_WORLD.Isend(bytearray(8), dest=MPI.COMM_WORLD.size, tag=7)
except MPI.Exception as error:
    print(error.Get_error_class() == MPI.ERR_RANK)
""",
        np=2,
        env=CHECKS,
        timeout=100,
    )
    assert job.returncode == 0 and all(out == "True\n" for out in job.stdout), job.describe()
