# SPDX-License-Identifier: Apache-2.0
"""Exact weights and filler rows need no collective, neither in a step nor in an epoch.

A library that is loaded before MPI counts all collectives.
"""

import json

import pytest
from jobs import run_program

BUFFER, INTO, N, TYPE, OP, COMM, MANY = (
    "const void *",
    "void *",
    "int ",
    "MPI_Datatype ",
    "MPI_Op ",
    "MPI_Comm ",
    "const int *",
)
COLLECTIVES = {
    "Barrier": [COMM],
    "Bcast": [INTO, N, TYPE, N, COMM],
    "Reduce": [BUFFER, INTO, N, TYPE, OP, N, COMM],
    "Allreduce": [BUFFER, INTO, N, TYPE, OP, COMM],
    "Gather": [BUFFER, N, TYPE, INTO, N, TYPE, N, COMM],
    "Gatherv": [BUFFER, N, TYPE, INTO, MANY, MANY, TYPE, N, COMM],
    "Allgather": [BUFFER, N, TYPE, INTO, N, TYPE, COMM],
    "Allgatherv": [BUFFER, N, TYPE, INTO, MANY, MANY, TYPE, COMM],
    "Scatter": [BUFFER, N, TYPE, INTO, N, TYPE, N, COMM],
    "Scatterv": [BUFFER, MANY, MANY, TYPE, INTO, N, TYPE, N, COMM],
    "Alltoall": [BUFFER, N, TYPE, INTO, N, TYPE, COMM],
    "Alltoallv": [BUFFER, MANY, MANY, TYPE, INTO, MANY, MANY, TYPE, COMM],
    "Reduce_scatter": [BUFFER, INTO, MANY, TYPE, OP, COMM],
    "Reduce_scatter_block": [BUFFER, INTO, N, TYPE, OP, COMM],
    "Scan": [BUFFER, INTO, N, TYPE, OP, COMM],
    "Exscan": [BUFFER, INTO, N, TYPE, OP, COMM],
}  # fmt: skip


def counter():
    """A library that counts the calls of each collective, and of its variant that doesn't block."""
    functions = []
    for blocking, types in COLLECTIVES.items():
        for name, its in (blocking, types), (f"I{blocking.lower()}", [*types, "MPI_Request *"]):
            declared = ", ".join(f"{kind}a{i}" for i, kind in enumerate(its))
            given = ", ".join(f"a{i}" for i in range(len(its)))
            functions.append(f"int MPI_{name}({declared}) {{ ++calls; return PMPI_{name}({given}); }}")
    return "\n".join(
        ["#include <mpi.h>", "static _Atomic long calls;", "long collectives(void) { return calls; }", *functions]
    )


BARE = 'sys.modules["horovod"] = None  # Horovod has collectives of its own, all the time'
PROGRAM = """
import ctypes
calls = ctypes.CDLL(None).collectives
calls.restype = ctypes.c_long

def rows(steps):
    return tf.data.Dataset.range(5 * steps).batch(5)

channels = {}
for remainder in "partial", "pad", "repeat":
    for how, weigh in ("rows", "rows"), ("costs", lambda rows: rows % 3):
        for steps in 10, 200:
            make = lambda steps=steps: rows(steps)
            channels[remainder, how, steps] = train(make, batch="global", remainder=remainder, weigh=weigh,
                                                    name=f"{remainder}-{how}-{steps}")
hvdata.serve()
counted = {}
for name, dataset in channels.items():
    for epoch in range(3):
        before, steps = calls(), 0
        for _, weights in dataset:
            steps += 1
        assert steps == name[-1] * (1 if hvdata.num_readers() == 1 else 2), (steps, name)
        counted[f"{name} {epoch}"] = calls() - before
from mpi4py import MPI
trainers = MPI.COMM_WORLD.Create_group(MPI.COMM_WORLD.group.Incl(range(size)))
before = calls()
trainers.Barrier()
trainers.Allreduce(np.ones(1), np.zeros(1))
trainers.Iallreduce(np.ones(1), np.zeros(1)).Wait()
say(json.dumps([counted, calls() - before]))
"""


@pytest.mark.commit("2-1")
@pytest.mark.limit(180)
@pytest.mark.parametrize("np, readers", [(3, 0), (2, 1), (2, 2)])
def test_weights_need_no_collective(preload, np, readers):
    job = run_program(PROGRAM, np, before=BARE, readers=readers, timeout=150, env=preload(counter()))
    for out in job.stdout[:np]:
        counted, of_the_program = json.loads(out)
        assert len(counted) == 36 and not any(counted.values()), job.describe()
        assert of_the_program == 3, "the library counts"
