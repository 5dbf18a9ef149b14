# SPDX-License-Identifier: Apache-2.0
import numpy as np
import tensorflow as tf
from ranks.setting import READER, ROWS

NAME, KIND, MOVES = "mpi4py Scatter", "rival", True
CUTS = True
ABOUT = "`Scatter` of the global batch in the generator of a `from_generator` on every rank"


def steps(job, batch):
    comm = job.comm.Dup()

    def shares():
        source = iter(batch.whole(job.size)) if job.reads else None
        while True:
            whole = np.asarray(memoryview(next(source))) if source else None  # no copy
            mine = np.empty([ROWS, batch.columns], np.float32)
            comm.Scatter(whole, mine, root=READER)
            yield mine

    # TensorFlow would prefetch, and so call Scatter ahead. Some ranks would call it once more than others, and hang at
    # the end.
    lock_step = tf.data.Options()
    lock_step.experimental_optimization.inject_prefetch = False
    yield from tf.data.Dataset.from_generator(
        shares, output_signature=tf.TensorSpec([ROWS, batch.columns], tf.float32)
    ).with_options(lock_step)
