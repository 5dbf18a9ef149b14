# SPDX-License-Identifier: Apache-2.0
"""callbacks.MetricAverage: epoch metrics and validation over rows, as one process has them."""

import numpy as np
import pytest
import tensorflow as tf
from together import on_reader, results

pytestmark = [pytest.mark.world(np=2), pytest.mark.ranks(1, 2, 3, 4)]

X = np.float32([[1], [1], [0], [0.25], [1], [0.75], [0]])
Y = np.float32([1, 1, 1, 0, 1, 1, 0])


def model():
    unit = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    made = tf.keras.Sequential([tf.keras.Input((1,)), unit])
    made.compile(
        tf.keras.optimizers.SGD(0.0), "mse",
        metrics=[tf.keras.metrics.BinaryAccuracy("acc"), tf.keras.metrics.RootMeanSquaredError("rmse")],
        weighted_metrics=[tf.keras.metrics.BinaryAccuracy("wacc"), tf.keras.metrics.AUC(name="wauc")],
    )  # fmt: skip
    return made


def rows(count, batch=3):
    return lambda: tf.data.Dataset.from_tensor_slices((X[:count], Y[:count])).batch(batch)


def logs_of_one_process(count):
    got = model().evaluate(rows(count)(), return_dict=True, verbose=0)
    return {name: float(value) for name, value in got.items()}


class Last(tf.keras.callbacks.Callback):
    """The logs that callbacks after MetricAverage get."""

    def on_epoch_end(self, epoch, logs=None):
        self.seen = {name: float(value) for name, value in logs.items()}


@pytest.mark.parametrize("remainder", ["partial", "pad", "repeat"])
@pytest.mark.parametrize("batch", ["global", "per_rank"])
def test_logs_are_those_of_one_process(hvdata, comm, remainder, batch):
    size = 3 if batch == "global" else 1
    train = hvdata.distribute_dataset(on_reader(hvdata, rows(7, size)), batch=batch, remainder=remainder)
    valid = hvdata.distribute_dataset(on_reader(hvdata, rows(3, size)), batch=batch, remainder=remainder)
    last = Last()

    def fit():
        history = model().fit(
            train, validation_data=valid, epochs=2, verbose=0, callbacks=[hvdata.callbacks.MetricAverage(), last]
        )
        return {name: values[-1] for name, values in history.history.items()}, last.seen

    want = {**logs_of_one_process(7), **{f"val_{name}": value for name, value in logs_of_one_process(3).items()}}
    padded = {"acc", "val_acc", "rmse", "val_rmse"} if remainder != "partial" else set()  # filler rows count there
    for history, seen in results(comm, fit):
        for name in set(want) - padded:
            assert abs(history[name] - want[name]) < 1e-5, (name, history, want)
            assert abs(seen[name] - want[name]) < 1e-5, (name, seen, want)


@pytest.mark.parametrize("batch, remainder", [
    pytest.param("global", "partial", marks=pytest.mark.slow), ("global", "repeat"), ("per_rank", "partial"),
])  # fmt: skip
def test_validation_without_weigh_is_exact_beside_a_weighted_training(hvdata, comm, batch, remainder):
    """Shares of a step have other numbers of rows, and so have steps."""
    sizes = [3, 2, 2] if batch == "global" else [1, 3, 2, 1]
    signature = (tf.TensorSpec([None, 1]), tf.TensorSpec([None]))

    def make():
        ends = np.cumsum(sizes)
        parts = [(X[end - size : end], Y[end - size : end]) for size, end in zip(sizes, ends)]
        return tf.data.Dataset.from_generator(lambda: iter(parts), output_signature=signature)

    options = {"batch": batch, "remainder": remainder}
    train = hvdata.distribute_dataset(on_reader(hvdata, make), weigh="rows", **options)
    valid = hvdata.distribute_dataset(on_reader(hvdata, make), **options)
    average = hvdata.callbacks.MetricAverage
    fit = lambda: model().fit(train, validation_data=valid, verbose=0, callbacks=[average()]).history
    want = logs_of_one_process(7)
    exact = ["loss", "wacc", "wauc"] + (["acc", "rmse"] if remainder == "partial" else [])
    for history in results(comm, fit):
        for name in exact:
            assert abs(history[f"val_{name}"][0] - want[name]) < 1e-5, (name, history, want)


@pytest.mark.parametrize("weigh", ["rows", "costs"])
def test_losses_with_exact_weights(hvdata, comm, weigh):
    """Steps of equal costs, which the ranks divide: the weighted mean of the rows."""
    x, y = np.float32([[1], [0], [0], [1]] * 3), np.float32([0, 0, 1, 1] * 3)
    costs = tf.constant([1.0, 2.0, 3.0, 4.0])
    make = lambda: tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    ds = hvdata.distribute_dataset(
        on_reader(hvdata, make),
        batch="global",
        remainder="repeat",
        weigh="rows" if weigh == "rows" else lambda x, y: costs,
    )
    fit = lambda: model().fit(ds, verbose=0, callbacks=[hvdata.callbacks.MetricAverage()]).history["loss"][0]
    of_rows = np.float32([1, 0, 1, 0])
    right = np.mean(of_rows) if weigh == "rows" else np.sum(of_rows * costs.numpy()) / 10
    assert all(abs(loss - right) < 1e-5 for loss in results(comm, fit))
