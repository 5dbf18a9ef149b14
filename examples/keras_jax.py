# SPDX-License-Identifier: Apache-2.0
"""Keras 3 on the JAX backend: fit() on several ranks with DataParallel, without Horovod.

    mpirun -np 4 python examples/keras_jax.py

One process runs the tf.data pipeline. Each rank gets its own rows of a global batch, and JAX makes one global array of
them. At the end rank 0 trains alone on the same global batches, and compares. Loss and weights must be the same as with
one process.
"""

import os
import sys

os.environ["KERAS_BACKEND"] = "jax"  # before Keras is imported

import jax
import keras
import numpy as np
import tensorflow as tf
from coordinator import address

import horovod_data as hvdata

ROWS, BATCH, EPOCHS, CLOSE = 1000, 96, 3, 1e-5  # the last batch of an epoch has 40 rows


def samples() -> tf.data.Dataset:
    random = np.random.default_rng(7)
    x = random.normal(size=(ROWS, 8)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, np.tanh(x.sum(axis=1, keepdims=True)))).batch(BATCH)


def train(dataset):
    """The loss of each epoch, and the weights at the end."""
    keras.utils.set_random_seed(1)  # the same weights on all ranks
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)])
    # Padding rows have no weight, so the mean is over the real rows.
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    model.compile(
        optimizer=keras.optimizers.Adam(0.01), loss=loss, weighted_metrics=[keras.metrics.MeanSquaredError(name="mse")]
    )
    losses = model.fit(dataset, epochs=EPOCHS, verbose=0, shuffle=False).history["mse"]
    return np.array(losses), [np.array(weight) for weight in model.get_weights()]


hvdata.init()
# "pad": JAX needs equal shares. Missing rows are filled up, and a weight per row says which rows are real.
dataset = hvdata.distribute_dataset(samples, batch="global", remainder="pad", name="train")
meeting = address()
hvdata.serve()

jax.config.update("jax_cpu_collectives_implementation", "gloo")  # for CPUs; GPUs use their own library
keras.utils.set_random_seed(1)  # otherwise the ranks would have to agree on a seed
keras.distribution.initialize(meeting, hvdata.size(), hvdata.rank())
# Without auto_shard_dataset=False, Keras would shard each process's own share once more.
keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
losses, weights = train(dataset)

verdict = None
if hvdata.rank() == 0:
    keras.distribution.set_distribution(None)
    alone, weights_alone = train(samples())
    difference = max(np.max(np.abs(mine - ours)) for mine, ours in zip([alone, *weights_alone], [losses, *weights]))
    said = (
        f"{jax.process_count()} processes of JAX, {jax.device_count()} devices: loss {losses}, in one process {alone}"
    )
    print(f"{said}; largest difference, weights included: {difference:.1e}")
    right = difference <= CLOSE and losses[-1] < 0.8 * losses[0] and jax.process_count() == hvdata.size()
    verdict = tf.repeat(right, hvdata.size())
if not hvdata.scatter(verdict, dtype=tf.bool).numpy()[0]:  # all ranks wait here for rank 0
    sys.exit("the loss is not that of one process")
