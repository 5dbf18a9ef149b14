# SPDX-License-Identifier: Apache-2.0
"""hvdata.scatter gives every rank its own rows of one rank's tensor. Its gradient is a gather to that rank.

mpirun -np 3 python examples/scatter_op.py
"""

import sys

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

import horovod_data as hvdata

hvdata.init()
rank, size = hvd.rank(), hvd.size()
table = np.arange(4 * size * 3, dtype=np.float32).reshape(-1, 3)  # only rank 0's table is sent


def expect(got, wanted, what: str) -> None:
    if not np.array_equal(got, wanted):
        sys.exit(f"rank {rank}, {what}: got {got}, expected {wanted}")


# Equal shares. Other ranks give the dtype. The shape comes from the root.
mine = hvdata.scatter(table) if rank == 0 else hvdata.scatter(None, dtype=tf.float32)
expect(mine, table[4 * rank : 4 * rank + 4], "equal shares")

# Chosen shares, the same list on every rank: rank r gets r + 1 rows of the last rank's tensor.
splits = [r + 1 for r in range(size)]
names = np.array([f"row {i}" for i in range(sum(splits))])
mine = hvdata.scatter(names if rank == size - 1 else None, splits=splits, root=size - 1, dtype=tf.string)
expect(mine.numpy().astype(str), names[sum(splits[:rank]) :][: rank + 1], "splits")


# In a tf.function, with its gradient: each rank's loss counts rank + 1 times.
@tf.function
def gradient(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = (rank + 1.0) * tf.reduce_sum(tf.square(hvdata.scatter(x)))
    return tape.gradient(loss, x)


got = gradient(tf.constant(table))  # on the root; the tables that other ranks passed had no effect
if rank == 0:
    factor = np.repeat(np.arange(1.0, size + 1, dtype=np.float32), 4)[:, None]
    expect(got, 2 * factor * table, "gradient")

if all(hvd.allgather_object(True)) and rank == 0:
    print(f"{size} ranks: equal shares, splits {splits} from rank {size - 1}, and the gradient at rank 0 are right")
