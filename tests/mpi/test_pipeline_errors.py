# SPDX-License-Identifier: Apache-2.0
"""The reader's pipeline fails at step k. The steps before are delivered, and then every rank raises the same error."""

import re

import numpy as np
import pytest
import tensorflow as tf
from together import Raised, dealt_to_all, elements, generated, outcomes, prefix, raises_everywhere, results

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


class Failing:
    """Yields 0..n-1, but in its first `failures` epochs raises before element `at`."""

    def __init__(self, n, at, error, failures=1):
        self.n, self.at, self.error, self.failures = n, at, error, failures
        self.epoch = 0

    def __call__(self):
        self.epoch += 1
        failing = self.epoch <= self.failures
        for i in range(self.n):
            if failing and i == self.at:
                raise self.error
            yield i

    def dataset(self):
        return generated(self)


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


@pytest.mark.parametrize("steps, more", [(0, 0), (0, 1), (2, 0)])
def test_every_epoch_fails_anew(hvdata, comm, steps, more):
    """The error may come at the first element of an epoch."""
    source = Failing(4 * comm.size, steps * comm.size + more, ValueError("always"), failures=3)
    ds = hvdata.distribute_dataset(source.dataset(), batch="per_rank", prefetch=4, name="always")
    for epoch in 1, 2, 3:
        got, errors = until_it_fails(comm, ds)
        assert got == dealt_to_all(comm, range(source.at))
        same_error(errors, tf.errors.InvalidArgumentError, prefix("always", epoch=epoch), "always")
    assert elements(comm, ds) == dealt_to_all(comm, range(source.n))


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


def test_dynamic(hvdata, comm):
    """Some rank gets each element before the failing one. Then all ranks raise."""
    at = 3 * comm.size + 1
    source = Failing(9 * comm.size, at, ValueError("dynamic"))
    ds = hvdata.distribute_dataset(source.dataset(), batch="per_rank", schedule="dynamic", name="loose")
    got, errors = until_it_fails(comm, ds)
    assert sorted(sum(got, [])) == list(range(at))
    same_error(errors, tf.errors.InvalidArgumentError, prefix("loose", epoch=1), "dynamic")
    assert sorted(sum(elements(comm, ds), [])) == list(range(9 * comm.size))


def test_in_keras_fit(hvdata, comm):
    source = Failing(6 * comm.size, 3 * comm.size, ValueError("in fit"), failures=9)
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
    assert comm.bcast(source.epoch) == 1


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
