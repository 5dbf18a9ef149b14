# SPDX-License-Identifier: Apache-2.0
"""Keras and Horovod without DistributedOptimizer: fit() with a short train_step that averages the gradients.

    mpirun -np 4 python examples/keras3_train_step.py

It runs on Keras 2 and Keras 3. All ranks must end with the same weights, and with a lower loss.
"""

import sys

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

import horovod_data as hvdata

keras = tf.keras
ROWS, BATCH, EPOCHS = 2000, 100, 4

hvdata.init()
keras.utils.set_random_seed(1 + hvd.rank())  # other weights on each rank, until rank 0's are broadcast


def samples():
    random = np.random.default_rng(7)
    x = random.normal(size=(ROWS, 8)).astype(np.float32)
    return (
        tf.data.Dataset.from_tensor_slices((x, np.tanh(x.sum(axis=1, keepdims=True))))
        .shuffle(ROWS, seed=3)
        .batch(BATCH)
    )


class Averaged(keras.Model):
    """A model whose gradients are the mean over all ranks."""

    def train_step(self, data):
        x, y, weight = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(weight * tf.reduce_mean(tf.square(y - self(x, training=True)), axis=1))
        variables = [plain(variable) for variable in self.trainable_variables]
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"mean_loss": hvd.allreduce(loss)}  # the mean over all ranks; Keras itself uses the name "loss"


def plain(variable):
    """TensorFlow's variable inside a variable of Keras 3."""
    return variable if isinstance(variable, tf.Variable) else variable.value


# "pad" and weigh: also if the ranks don't divide a batch, the mean over the ranks is the mean over its rows.
dataset = hvdata.distribute_dataset(samples, batch="global", remainder="pad", weigh="rows")
hvdata.serve()

inputs = keras.Input((8,))
model = Averaged(inputs, keras.layers.Dense(1)(keras.layers.Dense(64, activation="relu")(inputs)))
model.compile(optimizer=keras.optimizers.Adam(0.01))
hvd.broadcast_variables([plain(variable) for variable in model.weights], root_rank=0)
losses = model.fit(dataset, epochs=EPOCHS, verbose=0).history["mean_loss"]

everybody = hvd.allgather_object([weight.sum() for weight in model.get_weights()])
if any(not np.allclose(mine, everybody[0]) for mine in everybody):
    sys.exit(f"the ranks ended with other weights: {everybody}")
if losses[-1] > 0.8 * losses[0]:
    sys.exit(f"nothing was learnt: {losses}")
if hvd.rank() == 0:
    print(
        f"TensorFlow {tf.__version__}, {hvd.size()} ranks with equal weights: loss {losses[0]:.3f} to {losses[-1]:.3f}"
    )
