# SPDX-License-Identifier: Apache-2.0
import numpy as np
import tensorflow as tf
from ranks.setting import READER, ROWS

NAME, KIND, MOVES = "limit: MPI_Scatter from a pipeline into tensors", "limit", True
CUTS = True
ABOUT = (
    "raw `Scatter` with the other work of a training loop. The reader takes each global batch from its pipeline without a copy. "
    "Every rank receives into new memory, and makes a tensor of it"
)


def steps(job, batch):
    comm = job.comm.Dup()
    source = iter(batch.whole(job.size)) if job.reads else None
    while True:
        whole = np.asarray(memoryview(next(source))) if source else None
        mine = np.empty([ROWS, batch.columns], np.float32)
        comm.Scatter(whole, mine, root=READER)
        yield tf.convert_to_tensor(mine)
