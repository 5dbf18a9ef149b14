# SPDX-License-Identifier: Apache-2.0
"""Keras fit, as stock Horovod scripts use it."""

import numpy as np
import pytest
import tensorflow as tf
from together import Counted, results

pytestmark = pytest.mark.world(np=2)

hvd = pytest.importorskip("horovod.tensorflow.keras")

TRAIN, VALID = 48, 24  # both, and their batches, are divided by 1, 2, 3 and 4 ranks


class Seen(tf.keras.metrics.Metric):
    """How often each label came, in this rank's training or validation epoch."""

    def __init__(self):
        super().__init__(name="seen")
        self.count = self.add_weight(name="count", shape=(TRAIN,), initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        ids = tf.cast(tf.reshape(y_true, [-1]), tf.int32)
        self.count.assign_add(tf.reduce_sum(tf.one_hot(ids, TRAIN), axis=0))

    def result(self):
        return self.count + 0

    def reset_state(self):
        self.count.assign(tf.zeros_like(self.count))


class Log(tf.keras.callbacks.Callback):
    """The labels and the number of steps of every epoch."""

    def __init__(self):
        super().__init__()
        self.train, self.valid, self.steps = [], [], []

    def on_epoch_begin(self, epoch, logs=None):
        self.steps.append(0)

    def on_train_batch_end(self, batch, logs=None):
        self.steps[-1] += 1

    def on_epoch_end(self, epoch, logs=None):
        self.train.append(np.asarray(logs["seen"]))
        self.valid.append(np.asarray(logs["val_seen"]) if "val_seen" in logs else None)


def examples(n: int, batch: int) -> tf.data.Dataset:
    x = np.arange(n, dtype=np.float32)[:, None] / n
    y = np.arange(n, dtype=np.float32)
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(n).batch(batch, drop_remainder=True)


@pytest.fixture
def model(hvdata):
    tf.keras.utils.set_random_seed(1 + (hvdata.rank() or 0))
    net = tf.keras.Sequential([tf.keras.layers.Dense(4, input_shape=(1,)), tf.keras.layers.Dense(1)])
    net.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1e-4)), loss="mse", metrics=[Seen()])
    return net


def fit(model, data, **arguments):
    log = Log()
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), log]
    model.fit(data, callbacks=callbacks, verbose=0, **arguments)
    return log


@pytest.mark.parametrize("source", ["finite", "infinite"])
def test_fit_with_validation_over_several_epochs(hvdata, comm, model, source):
    """An infinite source needs steps_per_epoch."""
    endless = source == "infinite"
    train, valid = (
        hvdata.distribute_dataset(examples(n, 12).repeat() if endless else examples(n, 12), batch="global")
        for n in (TRAIN, VALID)
    )
    steps = dict(steps_per_epoch=TRAIN // 12, validation_steps=VALID // 12) if endless else {}

    def run():
        log = fit(model, train, validation_data=valid, epochs=3, **steps)
        return log.train, log.valid, log.steps, model.get_weights()

    got = results(comm, run)
    for epoch in range(3):  # every example once per epoch, in the job as a whole
        assert sum(train[epoch] for train, _, _, _ in got).tolist() == [1.0] * TRAIN
        seen = sum(valid[epoch] for _, valid, _, _ in got).tolist()
        assert seen == [1.0] * VALID + [0.0] * (TRAIN - VALID)
    assert [steps for _, _, steps, _ in got] == [[TRAIN // 12] * 3] * comm.size
    for _, _, _, weights in got:  # and all ranks have the same model
        for mine, first in zip(weights, got[0][3]):
            np.testing.assert_array_equal(mine, first)


def test_partial_tail_with_per_rank_batches(hvdata, comm, model):
    """With `pad` Keras takes the weights, and padding has weight 0. Every rank has the same number of steps."""
    batch = 5
    n = min(2 * comm.size * batch + batch, TRAIN // batch * batch)  # a tail for one rank
    source = tf.data.Dataset.from_tensor_slices((np.ones((n, 1), np.float32), np.arange(n, dtype=np.float32)))
    ds = hvdata.distribute_dataset(source.batch(batch), batch="per_rank", remainder="pad")
    steps = -(-(n // batch) // comm.size)
    assert results(comm, lambda: fit(model, ds, epochs=2).steps) == [[steps] * 2] * comm.size


def of_numbers(hvdata, n):
    source = Counted(n)
    ds = source.dataset().map(lambda i: (tf.cast([[i]], tf.float32), tf.cast([i % TRAIN], tf.float32)))
    return source, hvdata.distribute_dataset(ds, batch="per_rank")


def test_steps_per_epoch_below_the_epoch(hvdata, comm, model):
    """Keras keeps its iterator: one epoch of the source lasts for several of fit's."""
    source, ds = of_numbers(hvdata, 8 * comm.size)
    got = results(comm, lambda: fit(model, ds, epochs=4, steps_per_epoch=2).train)
    assert sum(sum(epochs) for epochs in got).tolist()[: source.n] == [1.0] * source.n
    assert comm.bcast(source.starts) == 1


@pytest.mark.slow
def test_a_source_without_end_is_left_early(hvdata, comm, model):
    """fit stops by its step count; the next fit is a new epoch."""
    source, ds = of_numbers(hvdata, 1000 * comm.size)
    for run in 1, 2:
        got = results(comm, lambda: fit(model, ds, epochs=1, steps_per_epoch=3).train)
        assert sum(sum(epochs) for epochs in got).tolist()[: 3 * comm.size] == [1.0] * (3 * comm.size)
        assert comm.bcast(source.starts) == run


def test_evaluate_and_predict(hvdata, comm, model):
    ds = hvdata.distribute_dataset(examples(VALID, 12), batch="global")

    def run():
        model.evaluate(ds, verbose=0)
        return model.predict(ds.map(lambda x, y: x), verbose=0).shape

    assert results(comm, run) == [(VALID // comm.size, 1)] * comm.size
