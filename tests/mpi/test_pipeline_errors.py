# SPDX-License-Identifier: Apache-2.0
"""The reader's pipeline fails at step k. The steps before are delivered, and then every rank raises the same error."""

import re

import numpy as np
import pytest
import tensorflow as tf
from together import (
    Failing,
    Raised,
    dealt,
    dealt_to_all,
    elements,
    on_reader,
    on_trainers,
    outcomes,
    prefix,
    raises_everywhere,
    results,
)

pytestmark = pytest.mark.world(np=4)

# The error that a generator raises, and TensorFlow's class for it.
PYTHON = [
    (ValueError, tf.errors.InvalidArgumentError),
    (TypeError, tf.errors.InvalidArgumentError),
    (NotImplementedError, tf.errors.UnimplementedError),
    (MemoryError, tf.errors.ResourceExhaustedError),
    (KeyError, tf.errors.UnknownError),
    (ZeroDivisionError, tf.errors.UnknownError),
]


def until_it_fails(comm, ds, value=lambda x: np.asarray(x).tolist()):
    """The elements and the error of each rank."""
    got = []

    def run():
        for x in ds:
            got.append(value(x))

    errors = outcomes(comm, run)
    return comm.allgather(got), errors


def same_error(errors, kind, *patterns):
    for rank, error in enumerate(errors):
        assert isinstance(error, Raised), f"rank {rank} raised nothing"
        assert error.kind is kind, f"rank {rank}: {error.kind.__name__}: {error.text}"
        for pattern in patterns:
            assert re.search(pattern, error.text), f"rank {rank}: no {pattern!r} in: {error.text}"


@pytest.mark.parametrize(("raised", "kind"), PYTHON, ids=[raised.__name__ for raised, _ in PYTHON])
def test_a_generator_raises(hvdata, comm, raised, kind):
    at = 3 * comm.size + comm.size // 2
    source = Failing(6 * comm.size, at, raised("disk full of cats"))
    ds = hvdata.distribute_dataset(source.dataset(), batch="per_rank", name="train")
    got, errors = until_it_fails(comm, ds)
    assert got == dealt_to_all(comm, range(at))
    same_error(errors, kind, prefix("train", epoch=1, step="[34]"), "disk full of cats")
    # The next epoch works if the pipeline does.
    assert elements(comm, ds) == dealt_to_all(comm, range(source.n))


@pytest.mark.world(np=3)
@pytest.mark.readers(0, 1)
@pytest.mark.parametrize("door", ["distribute_dataset", "loader"])
@pytest.mark.parametrize("schedule", ["static", "dynamic"])
def test_in_any_step(hvdata, comm, world, door, schedule):
    """Epochs 2 and 3 fail. With "dynamic" some rank gets each element before the failing one."""
    n = world.np

    def epoch():
        got = []
        try:
            for x in channel:
                got.append(int(x))
        except (OSError, tf.errors.OpError) as error:
            return got, str(error)
        return got, ""

    for at in range(0, 4 * n, max(1, n - 1)):
        source = Failing(4 * n, at, OSError(f"element {at} is gone"), epochs=(2, 3))
        make = on_reader(hvdata, lambda: source if door == "loader" else source.dataset())
        channel = getattr(hvdata, door)(make, batch="per_rank", schedule=schedule, name="fails", prefetch=4)
        for number in 1, 2, 3, 4:
            got = on_trainers(hvdata, comm, epoch)
            fails = number in source.epochs
            says = rf"reader 0 on \S+, channel fails, epoch {number}, step .*element {at} is gone" if fails else "^$"
            assert all(re.search(says, text, re.S) for _, text in got), got
            come = at if fails else 4 * n
            if schedule == "static":
                assert [mine for mine, _ in got] == [dealt(range(come), rank, n) for rank in range(n)]
            else:
                assert sorted(sum((mine for mine, _ in got), [])) == list(range(come))


OPS = [
    (tf.errors.NotFoundError, lambda: tf.strings.length(tf.io.read_file("/no/such/shard-7"))),
    (tf.errors.FailedPreconditionError, lambda: tf.strings.length(tf.io.read_file("/"))),
    (tf.errors.InvalidArgumentError, lambda: tf.reduce_sum(tf.cast(tf.io.decode_png("shard-7 is no image"), tf.int32))),
    (tf.errors.UnknownError, lambda: tf.py_function(lambda: {}["shard-7"], [], tf.int32)),
]


@pytest.mark.parametrize(("kind", "op"), OPS, ids=[kind.__name__ for kind, _ in OPS])
def test_the_class_is_kept(hvdata, comm, kind, op):
    """Every rank raises the class that one process would raise."""

    def step(i):
        return tf.cond(i < 2 * comm.size, lambda: i, lambda: i + tf.cast(op(), tf.int64))

    source = tf.data.Dataset.range(4 * comm.size).map(step)
    got, errors = until_it_fails(comm, hvdata.distribute_dataset(source, batch="per_rank"))
    assert got == dealt_to_all(comm, range(2 * comm.size))
    with pytest.raises(kind) as alone:
        list(source)
    said = re.search("shard-7|directory|image|PNG", str(alone.value)).group()
    same_error(errors, kind, prefix(epoch=1, step="[23]"), said)


def test_in_keras_fit(hvdata, comm):
    source = Failing(6 * comm.size, 3 * comm.size, ValueError("in fit"), epochs=range(9))
    ds = source.dataset().map(lambda i: (tf.cast([[i]], tf.float32), tf.cast([i], tf.float32)))
    ds = hvdata.distribute_dataset(ds, batch="per_rank", name="fit")
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
    model.compile("sgd", "mse")
    says = (prefix("fit", epoch=1), "in fit")
    raises_everywhere(comm, lambda: model.fit(ds, epochs=2, verbose=0), tf.errors.InvalidArgumentError, *says)


def test_after_the_error_the_iterator_stays_ended(hvdata, comm):
    """The epoch is over for all ranks. Another next() starts no new epoch."""
    source = Failing(4 * comm.size, comm.size, ValueError("once"))
    it = iter(hvdata.distribute_dataset(source.dataset(), batch="per_rank"))
    results(comm, lambda: int(next(it)))
    raises_everywhere(comm, lambda: next(it), tf.errors.InvalidArgumentError, "once")
    again = outcomes(comm, lambda: next(it, None))
    assert all(one is None or isinstance(one, Raised) for one in again), again
    assert comm.bcast(source.starts) == 1


KINDS = {
    "plain": (lambda rows: tf.zeros([rows]), tf.TensorSpec([None])),
    "ragged": (lambda rows: tf.RaggedTensor.from_row_lengths(tf.zeros([2 * rows]), [2] * rows), tf.RaggedTensorSpec([None, None])),
    "sparse": (lambda rows: tf.sparse.from_dense(tf.ones([rows, 2])), tf.SparseTensorSpec([None, 2])),
}  # fmt: skip


@pytest.mark.parametrize("remainder", ["drop", "partial", "pad"])
@pytest.mark.parametrize("kind", KINDS)
def test_components_of_a_global_batch_that_differ_at_run_time(hvdata, comm, kind, remainder):
    """The texts name both components, and say what to do, whatever kind of tensor they are."""
    leaf, spec = KINDS[kind]

    def distributed(other):
        def generate():
            yield {"a": leaf(12), "b": tf.zeros([12])}
            yield {"a": leaf(12), "b": other}

        signature = {"a": spec, "b": tf.TensorSpec(None)}
        make = lambda: tf.data.Dataset.from_generator(generate, output_signature=signature)
        return hvdata.distribute_dataset(make, batch="global", remainder=remainder, name="uneven")

    for other, text in (tf.zeros([13]), r"\['a'\] has 12 rows and \['b'\] has 13\. Make them equal"), (
        tf.constant(1.0), r"\['b'\] is a scalar\. Give it an axis 0"):  # fmt: skip
        got, errors = until_it_fails(comm, distributed(other), lambda _: 1)
        assert got == [[1]] * comm.size
        says = (prefix("uneven", epoch=1, step=1), 'batch="global"', text, 'use batch="per_rank"')
        same_error(errors, tf.errors.InvalidArgumentError, *says)


def test_an_error_of_this_library_in_the_pipeline_names_one_place(hvdata, comm):
    splits = [7] * comm.size
    data = tf.data.Dataset.from_tensors(tf.zeros([2])).map(lambda x: hvdata.scatter(x, splits=splits, name="odd"))
    ds = hvdata.distribute_dataset(data if hvdata.is_reader() else None, batch="per_rank", name="odd")
    _, errors = until_it_fails(comm, ds)
    # TensorFlow 2.21 puts a sentence of its own before the operation's message. Then this library leaves it whole.
    stage = r"(Error in user-defined function passed to .*: \[rank \d on \w+, scatter 'odd'\] )?"
    same_error(errors, tf.errors.InvalidArgumentError, prefix("odd", 1, 0) + f" {stage}splits=")
