# SPDX-License-Identifier: Apache-2.0
"""Images per second of a training with Horovod, with delivered batches and with every rank's data in memory, in turns.

Settings: batch (images in one rank's batch), steps (of a round and way). TensorFlow's operations have one thread on
  each rank.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import horovod.tensorflow as hvd
import tensorflow as tf

import horovod_data as hvdata
from ranks.start import finish, meet, start

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
    hvd.broadcast_variables(model.variables, root_rank=0)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        for variable, gradient in zip(
            model.trainable_variables, hvd.DistributedGradientTape(tape).gradient(value, model.trainable_variables)
        ):
            variable.assign_sub(rate * gradient)
        return value

    rounds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(1 + given["rounds"]):  # the first warms up
        for name in list(ways)[:: 1 if turn % 2 else -1]:
            meet(job.comm)
            began = time.perf_counter()
            for _ in range(given["steps"]):
                step(*next(ways[name])).numpy()
            took = max(job.comm.allgather(time.perf_counter() - began))
            if turn:
                rounds[name].append(given["steps"] * rows * job.size / took)
    told = job.comm.allgather(float(tf.add_n([tf.reduce_sum(weights) for weights in model.trainable_variables])))
    assert max(told) - min(told) < 1e-3 * max(1.0, abs(told[0])), f"the ranks' weights are not the same: {told}"
    ways.clear()
    results = [
        {"name": name, "kind": "ours" if name == OURS else "limit", "ranks": job.size, "images": values}
        for name, values in rounds.items()
    ]
    finish(job, given, results)


if __name__ == "__main__":
    main()
