# SPDX-License-Identifier: Apache-2.0
"""A process that only reads, beside the ranks that train.

    HOROVOD_DATA_READERS=1 mpirun -np 4 python examples/dedicated_reader.py    3 ranks train, one process reads
    mpirun -np 3 python examples/dedicated_reader.py                           the same script: rank 0 reads and trains

Every row has the id of the process that made it.
"""

import os
import sys

import horovod.tensorflow as hvd
import tensorflow as tf

import horovod_data as hvdata

ROWS = 240


def rows():
    for number in range(ROWS):
        yield number, os.getpid()


def batches() -> tf.data.Dataset:
    spec = (tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int64))
    return tf.data.Dataset.from_generator(rows, output_signature=spec).batch(8)


hvdata.init()
dataset = hvdata.distribute_dataset(batches, batch="per_rank", remainder="partial", name="train")
hvdata.serve()  # a dedicated reader stays here and exits with status 0; it never initialises Horovod

numbers, makers = [], set()
for number, maker in dataset:
    numbers += number.numpy().tolist()
    makers |= set(maker.numpy().tolist())

numbers, makers, pids, readers = zip(*hvd.allgather_object((numbers, makers, os.getpid(), hvdata.is_reader())))
if sorted(sum(numbers, [])) != list(range(ROWS)):
    sys.exit(f"not every row came exactly once: {numbers}")
maker, *others = set().union(*makers)
expected = [pid for pid, reads in zip(pids, readers) if reads]
if others or (expected and maker != expected[0]) or (not expected and maker in pids):
    sys.exit(f"the rows were made by {maker} and {others}; the trainers are {pids}, of which {expected} read")
if hvd.rank() == 0:
    print(f"hvd.size() is {hvd.size()}; rows on each rank: {[len(mine) for mine in numbers]}, each of {ROWS} once")
    print(f"process {maker} made all of them: {'rank 0' if expected else 'a dedicated reader, no rank of Horovod'}")
