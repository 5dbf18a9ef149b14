# SPDX-License-Identifier: Apache-2.0
"""MPI's own checks find nothing in jobs that use all of the library.

The checks look at each call's arguments, and at handles that are not given back. A program without the library leaves
handles and makes a wrong call, and the checks see both.
"""

import re
from pathlib import Path

import pytest
from jobs import run_job, run_program
from ranks import launch

COUNTER = Path(__file__).with_name("mpi_handles.c")
# Report wrong arguments, handles that remain at MPI_Finalize, memory of MPI_Alloc_mem, and the stack of a process that
# aborts.
CHECKS = {
    "OMPI_MCA_mpi_param_check": "1",
    "OMPI_MCA_mpi_show_handle_leaks": "1",
    "OMPI_MCA_mpi_show_mpi_alloc_mem_leaks": "-1",
    "OMPI_MCA_opal_abort_print_stack": "1",
    "MPIR_CVAR_ERROR_CHECKING": "1",
}

BARE = 'sys.modules["horovod"] = None  # as if it were not installed: Horovod has communicators of its own'
SCRIPT = """
import tempfile
LARGE = tf.zeros([12, 40_000], tf.uint8)

def rows():
    return tf.data.Dataset.range(120).batch(12)

train_set = train(rows, batch="global")
valid = train(lambda: tf.data.Dataset.from_tensors(LARGE).repeat(6), name="valid")
free = train(rows, schedule="dynamic", name="free")
left = train(lambda: tf.data.Dataset.from_tensors(LARGE).repeat(60), batch="global", prefetch=4, name="left")
hvdata.serve()
for epoch in range(3):
    assert len(list(train_set)) == 10 and len(list(valid)) == 6 // size
    list(free)
    for step, _ in enumerate(left):  # broken off, by the ranks at different steps
        if step == 2 + rank:
            break
iterator = iter(train_set)
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


def handles(text, library):
    """{kind: (taken, given back)} of a library, of one rank's stderr."""
    found = re.findall(rf"^handles of {library}: (\w+) taken (\d+), given back (\d+)$", text, re.M)
    return {kind: (int(taken), int(given)) for kind, taken, given in found}


@pytest.mark.commit("hvdata.shutdown()-2-1-message")
@pytest.mark.limit(180)
@pytest.mark.parametrize("np, readers, way", [(2, 1, "message"), (3, 0, "message"), (2, 0, "arena")])
@pytest.mark.parametrize("end", ["", "hvdata.shutdown()"])
def test_nothing_is_left_with_mpi(preload, np, readers, way, end):
    env = {**CHECKS, **preload(COUNTER), "HOROVOD_DATA_PAYLOAD": way}
    job = run_program(SCRIPT.replace("{end}", end), np, before=BARE, readers=readers, timeout=170, env=env)
    assert all(out == "all of it\n" for out in job.stdout[:np]), job.describe()
    assert "still allocated" not in job.describe() and "MPI_Alloc_mem" not in job.describe(), job.describe()
    for err in job.stderr:
        found = handles(err, "_core.so")
        assert found.keys() >= {"communicators", "keyvals", "requests"}, job.describe()
        assert all(taken == given for taken, given in found.values()), job.describe()
    assert way != "message" or any("messages" in handles(err, "_core.so") for err in job.stderr), job.describe()


@pytest.mark.limit(120)
def test_what_a_program_leaves_and_a_wrong_call_are_seen(preload):
    script = """
from mpi4py import MPI
left = MPI.COMM_WORLD.Dup()
under_way = left.Irecv(bytearray(8), source=0, tag=7)
given_back = MPI.COMM_WORLD.Dup()
given_back.Free()
MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
try:
    MPI.COMM_WORLD.Isend(bytearray(8), dest=MPI.COMM_WORLD.size, tag=7)
except MPI.Exception as error:
    print(error.Get_error_class() == MPI.ERR_RANK)
"""
    job = run_job(script, 2, env={**CHECKS, **preload(COUNTER)}, timeout=100)
    assert job.stdout == ["True\n"] * 2, job.describe()
    for err in job.stderr:
        found = handles(err, r"MPI\.[\w.-]+")
        assert found["communicators"] == (2, 1) and found["requests"] == (1, 0), job.describe()
    if launch.open_mpi():
        assert "MPI_Comm still allocated" in job.describe(), job.describe()
