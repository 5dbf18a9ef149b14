# SPDX-License-Identifier: Apache-2.0
"""With weigh=, training on unequal shares learns what one process learns from the same rows."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from together import elements, local, on_reader, raises_everywhere, results

pytestmark = [pytest.mark.world(np=3), pytest.mark.ranks(1, 2, 3, 4)]

REMAINDERS = ["drop", "partial", "pad", "repeat"]


def pairs(batches):
    """Makes batches of these sizes: the numbers of the rows from 1 on, and their costs."""
    starts = np.cumsum([1, *batches])
    rows = [np.arange(start, start + size, dtype=np.float32) for start, size in zip(starts, batches)]
    signature = (tf.TensorSpec([None], tf.float32), tf.TensorSpec([None], tf.float32))
    return tf.data.Dataset.from_generator(lambda: ((x, cost_of(x)) for x in rows), output_signature=signature)


def cost_of(x):
    return x % 4  # 0 for some


def mean_of_means(shares):
    """Returns Horovod's average of the ranks' Keras losses in one step. The loss of a row is its number."""
    means = [np.mean(x * weight) if len(x) else 0.0 for x, _, weight in shares]
    return np.mean(means)


def check_steps(steps, weighs):
    """Asserts that each step's mean of means is the weighted mean of its rows, without filler rows."""
    for step, shares in enumerate(steps):
        rows = np.concatenate([x for x, *_ in shares])
        real = np.unique(rows[rows > 0])  # copies count once, padding has the number 0
        costs = np.ones_like(real) if weighs == "rows" else cost_of(real)
        right = np.sum(costs * real) / np.sum(costs) if np.sum(costs) else 0.0
        assert abs(mean_of_means(shares) - right) < 1e-5 * max(right, 1), (step, shares)


def check_steps_of_readers(steps, weighs):
    """Does what check_steps does, for rows that come with their costs."""
    for shares in steps:
        everything = {
            float(x): float(cost) for xs, cost_of_rows, _ in shares for x, cost in zip(xs, cost_of_rows) if x % 1000
        }
        costs = np.array([1.0 if weighs == "rows" else cost for cost in everything.values()])
        right = np.sum(np.array(list(everything)) * costs) / np.sum(costs)
        assert abs(mean_of_means(shares) - right) < 1e-5 * right, shares


def steps_of(hvdata, comm, dataset):
    """Returns the shares of all trainers, step by step."""
    got = results(comm, lambda: local(dataset) if hvdata.is_trainer() else None)
    return list(zip(*[shares for shares in got if shares is not None]))


def weighed(hvdata, comm, make, weighs, **arguments):
    cost = "rows" if weighs == "rows" else lambda x, costs: costs
    ds = hvdata.distribute_dataset(make, weigh=cost, **arguments)
    assert ds.element_spec[2].dtype == tf.float32
    return steps_of(hvdata, comm, ds)


@pytest.mark.readers(0, 1)
@pytest.mark.parametrize("weighs", ["rows", "costs"])
@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.usefixtures("either_way")
def test_the_mean_of_means_is_the_mean(hvdata, comm, remainder, weighs):
    for batch, sizes in ("global", [12, 5, 1, 0, 7, 3]), ("per_rank", [3, 30, 1, 7, 7, 2, 9, 4]):
        steps = weighed(
            hvdata,
            comm,
            on_reader(hvdata, functools.partial(pairs, sizes)),
            weighs,
            batch=batch,
            remainder=remainder,
            verify=True,
        )
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
    check_steps_of_readers(steps, weighs)


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
    check_steps_of_readers(steps, weighs)


@pytest.mark.world(np=2)
def test_weights_go_on_after_a_checkpoint(hvdata, comm, tmp_path_factory):
    ds = hvdata.distribute_dataset(on_reader(hvdata, lambda: pairs([12, 5, 7, 3])), batch="global", remainder="partial",
                                   weigh=lambda x, costs: costs)  # fmt: skip
    path = comm.bcast(str(tmp_path_factory.mktemp("saved")) if comm.rank == 0 else None)
    path = f"{path}/{comm.rank}"
    it = iter(ds)
    first = [next(it) for _ in range(2)]
    tf.train.Checkpoint(iterator=it).write(path)
    rest = [tf.nest.map_structure(lambda x: x.numpy(), one) for one in it]
    again = iter(ds)
    tf.train.Checkpoint(iterator=again).read(path)
    restored = [tf.nest.map_structure(lambda x: x.numpy(), one) for one in again]
    for got in results(comm, lambda: str(rest) == str(restored) and len(first) + len(rest) == 4):
        assert got
    check_steps(list(zip(*results(comm, lambda: restored))), "costs")


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

    raises_everywhere(comm, make(batch="global", weigh="tokens"), ValueError, "weigh='tokens' is not known")
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
    raises_everywhere(comm, make(batch="per_rank", schedule="dynamic", weigh="rows"), ValueError,
                      'schedule="dynamic" has no steps')  # fmt: skip
    raises_everywhere(comm, make(batch="global", weigh=lambda x, _: tf.reduce_sum(x)), ValueError,
                      r"weigh= returned costs of shape \(\)")  # fmt: skip
    if comm.size > 1:
        raises_everywhere(comm, make(batch="global", weigh="rows" if comm.rank else None), ValueError, "weigh")


@pytest.mark.world(np=2)
def test_an_epoch_of_a_small_net_is_that_of_one_process(hvdata, comm):
    """A custom loop averages the gradients over ranks at every step. The rows do not divide evenly among the ranks."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(37, 4)).astype(np.float32), rng.normal(size=(37, 1)).astype(np.float32)
    make = lambda: tf.data.Dataset.from_tensor_slices((x, y)).batch(5)

    def net():
        tf.keras.utils.set_random_seed(3)
        return tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(8, "tanh"), tf.keras.layers.Dense(1)])

    for remainder in "partial", "pad", "repeat":
        ds = hvdata.distribute_dataset(on_reader(hvdata, make), batch="global", remainder=remainder, weigh="rows")
        ours, alone = net(), net()
        for (bx, by, weight), (wx, wy) in zip(ds, make()):
            for model, data, average in (ours, (bx, by, weight), True), (alone, (wx, wy, tf.ones(len(wx))), False):
                with tf.GradientTape() as tape:
                    losses = tf.reduce_mean(tf.square(model(data[0]) - data[1]), 1)
                    loss = tf.reduce_mean(losses * data[2]) if len(losses) else tf.reduce_sum(losses)
                gradients = [g.numpy() for g in tape.gradient(loss, model.trainable_variables)]
                if average:
                    gradients = [np.mean(comm.allgather(g), axis=0) for g in gradients]
                for variable, gradient in zip(model.trainable_variables, gradients):
                    variable.assign_sub(0.1 * gradient)
            for one, other in zip(ours.get_weights(), alone.get_weights()):
                assert np.max(np.abs(one - other)) < 1e-5


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
