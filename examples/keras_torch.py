# SPDX-License-Identifier: Apache-2.0
"""Keras 3 on the PyTorch backend: fit() on several ranks, without Horovod. The optimizer averages the gradients.

    mpirun -np 4 python examples/keras_torch.py

One process runs the tf.data pipeline. Each rank gets its own rows of a global batch. At the end rank 0 trains alone on
the same global batches, and compares. All ranks must end with the weights of one process.
"""

import os
import sys
import warnings

os.environ["KERAS_BACKEND"] = "torch"  # before Keras is imported

import keras
import numpy as np
import tensorflow as tf
import torch.distributed as dist
from coordinator import address

import horovod_data as hvdata

ROWS, BATCH, EPOCHS, CLOSE = 1000, 96, 3, 1e-5  # the last batch of an epoch has 40 rows
# Batches are read-only, which PyTorch can't express, so it warns. Keras does not write into a batch.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


def samples() -> tf.data.Dataset:
    random = np.random.default_rng(7)
    x = random.normal(size=(ROWS, 8)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, np.tanh(x.sum(axis=1, keepdims=True)))).batch(BATCH)


class AveragingSGD(keras.optimizers.SGD):
    """Averages the gradients of all ranks before it applies them."""

    def apply(self, grads, trainable_variables=None):
        for grad in grads:
            dist.all_reduce(grad)
            grad /= dist.get_world_size()
        super().apply(grads, trainable_variables)


def train(dataset, optimizer, seed, **how):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)])
    if dist.is_initialized():
        for variable in model.variables:  # rank 0's weights go to all ranks
            dist.broadcast(variable.value.detach(), src=0)
    model.compile(optimizer=optimizer, loss="mse")
    model.fit(dataset, epochs=EPOCHS, verbose=0, shuffle=False, **how)
    return model


def weights_of(model) -> np.ndarray:
    return np.concatenate([np.ravel(weight) for weight in model.get_weights()])


hvdata.init()
# With weigh="rows" the mean over the ranks is the mean over all rows, also where one rank has a row more.
dataset = hvdata.distribute_dataset(samples, batch="global", remainder="partial", weigh="rows", name="train")
valid = hvdata.distribute_dataset(samples, batch="global", remainder="partial", name="valid")
meeting = address()
hvdata.serve()
dist.init_process_group("gloo", init_method=f"tcp://{meeting}", rank=hvdata.rank(), world_size=hvdata.size())
average = hvdata.callbacks.MetricAverage()  # over the rows of all ranks
optimizer = AveragingSGD(0.05, momentum=0.9)
model = train(dataset, optimizer, seed=1 + hvdata.rank(), validation_data=valid, callbacks=[average])
ranks = hvdata.gather(tf.constant(weights_of(model)[np.newaxis])).numpy()  # of all ranks, on rank 0
dist.destroy_process_group()

verdict = None
if hvdata.rank() == 0:
    alone = train(samples(), keras.optimizers.SGD(0.05, momentum=0.9), seed=1)
    difference = np.max(np.abs(ranks - weights_of(alone)))
    loss, loss_alone = model.history.history["val_loss"][-1], alone.evaluate(samples(), verbose=0)
    print(
        f"{hvdata.size()} ranks of Keras on {keras.backend.backend()}: loss {loss:.4f}, in one process {loss_alone:.4f}; "
        f"largest difference of weights: {difference:.1e}"
    )
    right = max(difference, abs(loss - loss_alone)) <= CLOSE and np.all(ranks == ranks[0]) and loss < 0.2
    verdict = tf.repeat(right, hvdata.size())
if not hvdata.scatter(verdict, dtype=tf.bool).numpy()[0]:  # all ranks wait here for rank 0
    sys.exit("the weights or the loss are not those of one process")
