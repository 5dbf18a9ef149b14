# SPDX-License-Identifier: Apache-2.0
import horovod.tensorflow as hvd
import tensorflow as tf

NAME, KIND, MOVES = "hvd.alltoall", "rival", True
CUTS = True
ABOUT = "with `splits`: the reader sends each rank its rows, and the other ranks send nothing"


def steps(job, batch):
    source = iter(batch.whole(job.size)) if job.reads else None
    nothing = batch.zeros(0)
    splits = tf.fill([job.size], batch.rows if job.reads else 0)
    while True:
        mine, _ = hvd.alltoall(next(source) if source else nothing, splits, name=f"alltoall.{batch.bytes}")
        yield mine
