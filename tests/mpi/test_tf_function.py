# SPDX-License-Identifier: Apache-2.0
"""Custom training loops: tf.function with hvd.DistributedGradientTape."""

import numpy as np
import pytest
import tensorflow as tf
from together import results

pytestmark = pytest.mark.world(np=1)

hvd = pytest.importorskip("horovod.tensorflow")

ROWS = 48


@pytest.fixture
def data():
    x = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
    return x, x @ np.array([1.0, -2.0, 0.5], np.float32)


@pytest.fixture
def train(hvdata, data):
    return hvdata.distribute_dataset(tf.data.Dataset.from_tensor_slices(data).batch(12), batch="global")


def gradient(w, x, y, tape):
    with tape:
        loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
    return hvd.DistributedGradientTape(tape).gradient(loss, [w])[0]


def one_process(data, epochs):
    """The same descent over whole batches in one process: the mean over equal shares is the mean over the batch."""
    w, (x, y) = np.zeros(3), (part.astype(np.float64) for part in data)
    for _ in range(epochs):
        for at in range(0, ROWS, 12):
            rows, want = x[at : at + 12], y[at : at + 12]
            w -= 0.1 * 2 / 12 * rows.T @ (rows @ w - want)
    return w


@pytest.mark.parametrize("how", ["a step", "a whole epoch", "an iterator as argument"])
def test_training(hvdata, comm, data, train, how):
    w = tf.Variable(tf.zeros(3))

    def learn(x, y):
        w.assign_sub(0.1 * gradient(w, x, y, tf.GradientTape()))

    step = tf.function(learn)

    @tf.function
    def epoch():
        for x, y in train:
            learn(x, y)

    @tf.function
    def steps(iterator, n):
        for _ in tf.range(n):
            learn(*next(iterator))

    def run():
        for _ in range(3):
            if how == "a step":
                for x, y in train:
                    step(x, y)
            elif how == "a whole epoch":
                epoch()
            else:
                iterator = iter(train)
                steps(iterator, tf.constant(1))
                steps(iterator, tf.constant(ROWS // 12 - 1))
        return w.numpy()

    for weights in results(comm, run):
        np.testing.assert_allclose(weights, one_process(data, 3), rtol=1e-4)
