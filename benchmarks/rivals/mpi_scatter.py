# SPDX-License-Identifier: Apache-2.0
import numpy as np
from ranks.setting import READER, ROWS

NAME, KIND, MOVES = "limit: raw MPI_Scatter", "limit", True
CUTS = True
ABOUT = (
    "mpi4py's `Scatter` between two NumPy buffers, which every step uses again. There is no pipeline, no tensor, and no "
    "TensorFlow in the loop"
)


def steps(job, batch):
    comm = job.comm.Dup()
    whole = np.asarray(memoryview(next(iter(batch.whole(job.size))))).copy() if job.reads else None
    mine = np.empty([ROWS, batch.columns], np.float32)
    while True:
        comm.Scatter(whole, mine, root=READER)
        yield mine
