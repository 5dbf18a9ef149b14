# SPDX-License-Identifier: Apache-2.0
"""Images per second of a training with Horovod, with delivered batches and with every rank's data in memory, in turns.

Settings: batch (images in one rank's batch), steps (of a round and way). TensorFlow's operations have one thread on
  each rank.
"""

from __future__ import annotations

from collections.abc import Iterator

import horovod.tensorflow as hvd
import tensorflow as tf

import horovod_data as hvdata
from ranks.start import finish, in_turns, start

SIDE, KINDS, IMAGES = 32, 10, 4096  # synthetic images, of all ranks together
OURS, TENSORS, DATASETS = "horovod_data, global", "in memory: tensors", "in memory: a dataset of each rank's own"


def images(seed: int, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    random = tf.random.Generator.from_seed(seed)
    return (
        tf.cast(random.uniform([count, SIDE, SIDE, 3], maxval=256, dtype=tf.int32), tf.uint8),
        random.uniform([count], maxval=KINDS, dtype=tf.int32),
    )


def network() -> tf.keras.Model:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Rescaling(1 / 255),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(KINDS),
        ]
    )


def endless(batches: list[tuple[tf.Tensor, tf.Tensor]]) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    while True:
        yield from batches


def main() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    job, given = start(horovod=True)
    rows = given["batch"]

    def whole() -> tf.data.Dataset:
        return (
            tf.data.Dataset.from_tensor_slices(images(1, IMAGES)).repeat().batch(job.size * rows, drop_remainder=True)
        )

    mine = tf.data.Dataset.from_tensor_slices(images(2 + job.rank, IMAGES // job.size))
    ways = {
        OURS: iter(hvdata.distribute_dataset(whole, batch="global")),
        TENSORS: endless(list(mine.batch(rows, drop_remainder=True))),
        DATASETS: iter(mine.repeat().batch(rows, drop_remainder=True)),
    }

    model, rate = network(), 0.01
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.build([None, SIDE, SIDE, 3])
    # TensorFlow's variables, which are inside those of Keras 3.
    weights = [v if isinstance(v, tf.Variable) else v.value for v in model.trainable_variables]
    hvd.broadcast_variables(weights, root_rank=0)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        for weight, gradient in zip(weights, hvd.DistributedGradientTape(tape).gradient(value, weights)):
            weight.assign_sub(rate * gradient)
        return value

    steps = {name: lambda batches=batches: step(*next(batches)).numpy() for name, batches in ways.items()}
    seconds = in_turns(job, given["rounds"], given["steps"], steps)
    told = job.comm.allgather(float(tf.add_n([tf.reduce_sum(weight) for weight in weights])))
    assert max(told) - min(told) < 1e-3 * max(1.0, abs(told[0])), f"the ranks' weights are not the same: {told}"
    ways.clear()
    steps.clear()
    results = [
        {"name": name, "ranks": job.size, "images": [rows * job.size / each for each in values]}
        for name, values in seconds.items()
    ]
    finish(job, given, results)


if __name__ == "__main__":
    main()
