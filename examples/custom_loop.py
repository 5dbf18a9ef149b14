# SPDX-License-Identifier: Apache-2.0
"""A custom training loop: tf.function and hvd.DistributedGradientTape.

    mpirun -np 4 python examples/custom_loop.py

Rank 0 makes the data, and every rank trains on its own rows. At the end rank 0 trains alone on the same global batches,
and compares. The job must have computed the same, with any number of ranks.
"""

import sys

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

import horovod_data as hvdata

ROWS, FEATURES, BATCH, EPOCHS, RATE = 1000, 5, 96, 3, 0.1  # the last batch of an epoch has 40 rows


def samples() -> tf.data.Dataset:
    random = np.random.default_rng(7)
    x = random.normal(size=(ROWS, FEATURES)).astype(np.float32)
    y = x @ np.arange(1, FEATURES + 1, dtype=np.float32) + 0.5
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(ROWS, seed=3).batch(BATCH)


def errors(weights, x, y):
    return tf.square(tf.linalg.matvec(x, weights[:-1]) + weights[-1] - y)


hvdata.init()
# "pad": a batch that the ranks don't divide is filled up. weigh: each row has a weight, which makes the mean over ranks
# the mean over all rows of the step. Filler rows weigh 0.
dataset = hvdata.distribute_dataset(samples, batch="global", remainder="pad", weigh="rows", name="train")
hvdata.serve()

weights = tf.Variable(tf.zeros([FEATURES + 1]))


@tf.function
def train_step(x, y, row_weights):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(row_weights * errors(weights, x, y))
    [gradient] = hvd.DistributedGradientTape(tape).gradient(loss, [weights])  # Horovod's tape takes only lists
    weights.assign_sub(RATE * gradient)
    return tf.math.count_nonzero(row_weights)


hvd.broadcast_variables([weights], root_rank=0)
received = 0
for epoch in range(EPOCHS):
    steps = 0
    for x, y, row_weights in dataset:
        received += train_step(x, y, row_weights).numpy()
        steps += 1
    everybody = hvd.allgather_object(steps)
    if len(set(everybody)) != 1:
        sys.exit(f"the ranks made {everybody} steps in epoch {epoch}")

rows = hvd.allgather_object(int(received))
if sum(rows) != EPOCHS * ROWS:
    sys.exit(f"the ranks got {rows} rows, but the data has {EPOCHS} x {ROWS}")

if hvd.rank() == 0:
    alone = tf.Variable(tf.zeros([FEATURES + 1]))
    same_data = samples()
    for _ in range(EPOCHS):
        for x, y in same_data:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(errors(alone, x, y))
            alone.assign_sub(RATE * tape.gradient(loss, alone))
    difference = np.max(np.abs(alone.numpy() - weights.numpy()))
    if difference > 1e-4:
        sys.exit(f"{hvd.size()} ranks ended with weights {weights.numpy()}, one process with {alone.numpy()}")
    print(f"{hvd.size()} ranks made {EPOCHS} x {steps} steps; rows on each: {rows}, together {sum(rows)}")
    print(f"weights as after training in one process (largest difference {difference:.1e}): {weights.numpy().round(3)}")
