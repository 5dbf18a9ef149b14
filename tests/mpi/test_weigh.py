# SPDX-License-Identifier: Apache-2.0
"""With weigh=, training on unequal shares learns what one process learns from the same rows."""

import numpy as np
import pytest
import tensorflow as tf
from checkpoints import restored, saved
from numbered_rows import REMAINDERS
from together import elements, local, on_reader, on_trainers, raises_everywhere, results

pytestmark = [pytest.mark.world(np=3), pytest.mark.ranks(1, 2, 3, 4)]


def pairs(batches):
    """Makes batches of these sizes: the numbers of the rows from 1 on, and their costs, 0 for some."""
    starts = np.cumsum([1, *batches])
    rows = [np.arange(start, start + size, dtype=np.float32) for start, size in zip(starts, batches)]
    signature = (tf.TensorSpec([None], tf.float32), tf.TensorSpec([None], tf.float32))
    return tf.data.Dataset.from_generator(lambda: ((x, x % 4) for x in rows), output_signature=signature)


def mean_of_means(shares):
    """Returns Horovod's average of the ranks' Keras losses in one step. The loss of a row is its number."""
    means = [np.mean(x * weight) if len(x) else 0.0 for x, _, weight in shares]
    return np.mean(means)


def check_steps(steps, weighs):
    """Asserts that each step's mean of means is the weighted mean of its rows, which come with their costs. Copies
    count once. Only filler rows have numbers that are multiples of 1000."""
    for step, shares in enumerate(steps):
        costs = {float(x): float(cost) for xs, costs, _ in shares for x, cost in zip(xs, costs) if x % 1000}
        if weighs == "rows":
            costs = dict.fromkeys(costs, 1.0)
        whole = sum(costs.values())
        right = sum(x * cost for x, cost in costs.items()) / whole if whole else 0.0
        assert abs(mean_of_means(shares) - right) < 1e-5 * max(right, 1), (step, shares)


def steps_of(hvdata, comm, dataset):
    """Returns the shares of all trainers, step by step."""
    return list(zip(*on_trainers(hvdata, comm, lambda: local(dataset))))


def weighed(hvdata, comm, make, weighs, door="distribute_dataset", **arguments):
    """The steps of a channel, whose spec has the weights."""
    cost = "rows" if weighs == "rows" else lambda x, costs: costs
    channel = getattr(hvdata, door)(make, weigh=cost, **arguments)
    spec = channel.spec if door == "loader" else channel.element_spec
    assert spec[2].dtype == ("float32" if door == "loader" else tf.float32)
    return steps_of(hvdata, comm, channel)


@pytest.mark.readers(0, 1)
@pytest.mark.parametrize("weighs", ["rows", "costs"])
@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.parametrize("door", ["distribute_dataset", "loader"])
@pytest.mark.usefixtures("either_way")
def test_the_mean_of_means_is_the_mean(hvdata, comm, remainder, weighs, door):
    for batch, sizes in ("global", [12, 5, 1, 0, 7, 3]), ("per_rank", [3, 30, 1, 7, 7, 2, 9, 4]):
        source = (lambda: list(pairs(sizes).as_numpy_iterator())) if door == "loader" else (lambda: pairs(sizes))
        options = {"batch": batch, "remainder": remainder, "verify": True}
        steps = weighed(hvdata, comm, on_reader(hvdata, source), weighs, door, **options)
        assert steps
        check_steps(steps, weighs)


@pytest.mark.parametrize("weighs", ["rows", "costs"])
@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.world(np=2, readers=2)
@pytest.mark.ranks(2, 3, 4)
@pytest.mark.readers(2, 3)
def test_several_readers_and_the_steps_of_their_leftovers(hvdata, comm, remainder, weighs):
    def make(context):
        sizes = [[3, 30, 1, 7], [2, 9, 4, 4, 6], [5, 5]][context.input_pipeline_id]
        return pairs(sizes).map(lambda x, cost: (x + 1000 * context.input_pipeline_id, cost))

    steps = weighed(hvdata, comm, make, weighs, batch="per_rank", remainder=remainder, verify=True)
    assert steps
    check_steps(steps, weighs)


@pytest.mark.parametrize("weighs", ["rows", "costs"])
@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.world(np=3, per_node="embedded")
@pytest.mark.per_node("dedicated", "embedded")
@pytest.mark.ranks(2, 3, 4)
def test_a_reader_per_host(hvdata, comm, remainder, weighs):
    def make(context):
        sizes = [[12, 5, 8], [4, 4, 4, 4] if remainder not in ("drop", "repeat") else [4, 9, 4]][
            context.input_pipeline_id
        ]
        return pairs(sizes).map(lambda x, cost: (x + 1000 * context.input_pipeline_id, cost))

    cost = "rows" if weighs == "rows" else lambda x, costs: costs
    ds = hvdata.distribute_dataset(make, weigh=cost, batch="global", remainder=remainder, verify=True)
    steps = steps_of(hvdata, comm, ds)
    assert len(steps) >= 3
    check_steps(steps, weighs)


@pytest.mark.world(np=2)
def test_weights_go_on_after_a_checkpoint(hvdata, comm, path):
    ds = hvdata.distribute_dataset(on_reader(hvdata, lambda: pairs([12, 5, 7, 3])), batch="global", remainder="partial",
                                   weigh=lambda x, costs: costs)  # fmt: skip
    it = iter(ds)
    results(comm, lambda: [next(it) and None for _ in range(2)])
    saved(comm, it, path)
    rest = results(comm, lambda: local(it))
    again = restored(comm, ds, path)
    got = results(comm, lambda: local(again))
    assert str(got) == str(rest) and [len(mine) for mine in got] == [2] * comm.size
    check_steps(list(zip(*got)), "costs")


@pytest.mark.world(np=2)
def test_elements_without_rows_and_other_nests(hvdata, comm):
    ds = hvdata.distribute_dataset(on_reader(hvdata, lambda: tf.data.Dataset.range(1, 6)), batch="per_rank", remainder="pad",
                                   weigh=lambda x: x)  # fmt: skip
    assert ds.element_spec[1].shape.rank == 0
    steps = steps_of(hvdata, comm, ds)
    n = hvdata.size() or len(steps[0])
    for step, shares in enumerate(steps):
        rows = np.arange(1, 6)[step * n : (step + 1) * n]
        assert abs(np.mean([x * w for x, w in shares]) - np.sum(rows * rows) / np.sum(rows)) < 1e-5
    ragged = hvdata.distribute_dataset(
        on_reader(hvdata, lambda: tf.data.Dataset.from_tensors({"x": tf.ragged.constant([[1.0], [], [2.0, 3.0]])})),
        batch="global", remainder="repeat", weigh=lambda e: e["x"].row_lengths())  # fmt: skip
    shares = [share for (share,) in elements(comm, ragged)]
    sums = [np.mean(np.array([sum(row) for row in x["x"]]) * w) for x, w in shares]
    assert abs(np.mean(sums) - (1 * 1 + 2 * 5) / 3) < 1e-5


@pytest.mark.world(np=2)
@pytest.mark.parametrize("how", [{"weigh": "rows"}, {"weigh": "rows", "remainder": "pad"}, {"remainder": "repeat"}])
def test_sample_weights_of_the_program_are_multiplied(hvdata, comm, how):
    own = np.float32([1, 2, 3, 4, 5])
    make = lambda: tf.data.Dataset.from_tensors((own, own, own))
    arguments = {"remainder": "partial", **how}
    ds = hvdata.distribute_dataset(on_reader(hvdata, make), batch="global", **arguments)
    assert len(ds.element_spec) == 3 and ds.element_spec[2].dtype == tf.float32
    (shares,) = steps_of(hvdata, comm, ds)
    if "weigh" in how:  # Keras' loss of one process: the sum of weight * loss, divided by the rows
        assert abs(np.mean([np.mean(x * w) for x, _, w in shares]) - np.sum(own * own) / 5) < 1e-5
    else:
        assert sorted(w for _, _, ws in shares for w in ws if w) == list(own)
    other = hvdata.distribute_dataset(
        on_reader(hvdata, lambda: tf.data.Dataset.from_tensors((own, own, np.int64([1, 2, 3, 4, 5])))),
        batch="global",
        **arguments,
    )
    assert len(other.element_spec) == 2 and len(other.element_spec[0]) == 3


@pytest.mark.world(np=2)
@pytest.mark.parametrize(
    "cost, text",
    [
        (lambda x, _: x - 100, "weigh= returned the cost -99.000000 for row 0 of an element"),
        (lambda x, _: x / 0, "weigh= returned the cost inf for row 0"),
        (lambda x, _: x[:-1], r"weigh= returned costs of shape \[\d+\] for an element that needs shape \[\d+\]"),
    ],
)
def test_wrong_costs(hvdata, comm, cost, text):
    ds = hvdata.distribute_dataset(on_reader(hvdata, lambda: pairs([12])), batch="global", weigh=cost)
    raises_everywhere(comm, lambda: list(ds), tf.errors.InvalidArgumentError, text)


@pytest.mark.world(np=2)
def test_wrong_arguments(hvdata, comm):
    def make(**arguments):
        return lambda: hvdata.distribute_dataset(on_reader(hvdata, lambda: pairs([12])), **arguments)

    raises_everywhere(comm, make(batch="global", weigh=tf.ones([12])), ValueError, "weigh=<tf.Tensor.* is not known")
    for wrong, what in (
        (lambda x, _: tf.complex(x, x), "a tensor of complex64"),
        (lambda x, _: tf.strings.as_string(x), "a tensor of string"),
        (lambda x, _: None, "a NoneTensor"),
        (lambda x, _: {"cost": x}, "a dict"),
        (lambda x, _: (x, x), "a tuple"),
        (lambda x, _: tf.RaggedTensor.from_tensor(x[:, None]), "a RaggedTensor"),
    ):
        raises_everywhere(comm, make(batch="global", weigh=wrong), ValueError,
                          f"weigh= returned {what} instead of numbers. Let it return a vector")  # fmt: skip
    raises_everywhere(comm, make(batch="global", weigh=lambda x, _: tf.reduce_sum(x)), ValueError,
                      r"weigh= returned costs of shape \(\)")  # fmt: skip
    if comm.size > 1:
        raises_everywhere(comm, make(batch="global", weigh="rows" if comm.rank else None), ValueError, "weigh")


@pytest.mark.world(np=4)
@pytest.mark.parametrize("remainder", ["partial", "pad", "repeat"])
def test_keras_makes_the_step_of_one_process(hvdata, comm, remainder):
    hvd = pytest.importorskip("horovod.tensorflow.keras")
    if int(getattr(tf.keras, "__version__", "2").split(".")[0]) > 2:
        import horovod_data.integrations.keras as hvd
    rows = np.float32([1, 1, 1, 9, 9])
    make = lambda: tf.data.Dataset.from_tensor_slices((np.ones((5, 1), np.float32), rows)).batch(5)
    ds = hvdata.distribute_dataset(on_reader(hvdata, make), batch="global", remainder=remainder, weigh="rows")

    def fit():
        unit = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = tf.keras.Sequential([tf.keras.Input((1,)), unit])
        model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0)), "mse", weighted_metrics=[])
        model.fit(ds, verbose=0)
        return model.get_weights()[0].item()

    for weight in results(comm, fit):
        assert abs(weight - 8.4) < 1e-5


@pytest.mark.world(np=4)
def test_repeated_rows_leave_batch_normalisation_as_it_is(hvdata, comm):
    make = lambda: tf.data.Dataset.from_tensor_slices(np.full((33, 1), 10.0, np.float32)).batch(16)
    ds = hvdata.distribute_dataset(on_reader(hvdata, make), batch="global", remainder="repeat")

    def moving():
        layer = tf.keras.layers.BatchNormalization(moving_mean_initializer=tf.keras.initializers.Constant(10.0),
                                                   moving_variance_initializer="zeros")  # fmt: skip
        for x, _ in ds:
            layer(x, training=True)
        return float(layer.moving_mean[0]), float(layer.moving_variance[0])

    for mean, variance in results(comm, moving):
        assert abs(mean - 10) < 1e-4 and abs(variance) < 1e-4
