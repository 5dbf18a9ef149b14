# SPDX-License-Identifier: Apache-2.0
"""element_spec and cardinality are right on every rank and agree with the delivered elements."""

import collections
import collections.abc

import numpy as np
import pytest
import tensorflow as tf
from together import elements, on_reader, raises_everywhere, results

pytestmark = pytest.mark.world(np=2)

UNKNOWN = tf.data.UNKNOWN_CARDINALITY
INFINITE = tf.data.INFINITE_CARDINALITY


def batches(rows: int, batch: int, drop_remainder: bool) -> tf.data.Dataset:
    x = np.zeros((rows, 4), np.float32)
    y = np.zeros(rows, np.int64)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch, drop_remainder=drop_remainder)


def distributed(hvdata, make, **arguments):
    return hvdata.distribute_dataset(on_reader(hvdata, make), **arguments)


def cardinalities(comm, ds):
    return results(comm, lambda: int(ds.cardinality()))


def spec_is(comm, ds, spec):
    # Compared where they are: TensorSpec and RaggedTensorSpec needn't travel.
    assert results(comm, lambda: ds.element_spec == spec) == [True] * comm.size, ds.element_spec


def steps_are(comm, ds, steps):
    """The cardinality is the number of steps that come."""
    assert cardinalities(comm, ds) == [steps] * comm.size
    assert [len(mine) for mine in elements(comm, ds)] == [steps] * comm.size


def x_y(rows):
    return (tf.TensorSpec([rows, 4], tf.float32), tf.TensorSpec([rows], tf.int64))


@pytest.mark.world(np=3)
@pytest.mark.parametrize("remainder", ["drop", "partial", "pad"])
@pytest.mark.parametrize("rows, batch, static", [(30, 12, True), (21, 7, True), (20, 12, False)],
                         ids=["static", "static, not divided", "unknown"])  # fmt: skip
def test_global(hvdata, comm, remainder, rows, batch, static):
    """Of 20 rows in batches of 12, the last batch of 8 rows makes a step, too."""
    if static and batch % comm.size and remainder == "drop":
        pytest.skip("an error at the call")
    ds = distributed(hvdata, lambda: batches(rows, batch, static), batch="global", remainder=remainder)
    share = -(-batch // comm.size) if static else None
    weight = (tf.TensorSpec([share], tf.float32),) if remainder == "pad" else ()
    spec_is(comm, ds, x_y(None if remainder == "partial" else share) + weight)
    steps_are(comm, ds, -(-rows // batch) if not static else rows // batch)


@pytest.mark.world(np=3)
@pytest.mark.parametrize("known", [True, False], ids=["static", "unknown"])
@pytest.mark.parametrize("remainder", ["drop", "partial", "pad"])
def test_global_batches_without_rows(hvdata, comm, remainder, known):
    """With "drop" batches without rows make no step."""

    def make():
        ds = tf.data.Dataset.from_tensors(tf.zeros([0, 3])).repeat(5)
        if known:
            return ds
        ds = ds.apply(tf.data.experimental.assert_cardinality(5))
        return ds.map(lambda x: tf.ensure_shape(tf.py_function(lambda y: y, [x], tf.float32), [None, 3]))

    ds = distributed(hvdata, make, batch="global", remainder=remainder)
    steps = 5 if remainder != "drop" else 0
    assert cardinalities(comm, ds) == [steps if known or remainder != "drop" else UNKNOWN] * comm.size
    assert [len(one) for one in elements(comm, ds)] == [steps] * comm.size


@pytest.mark.world(np=3)
@pytest.mark.parametrize(("remainder", "up"), [("drop", 0), ("partial", 1), ("pad", 1)])
def test_per_rank_static(hvdata, comm, remainder, up):
    n = 3 * comm.size + comm.size // 2
    ds = distributed(hvdata, lambda: batches(5 * n, 5, True), batch="per_rank", remainder=remainder)
    spec = x_y(None if remainder == "partial" else 5)
    spec_is(comm, ds, spec + ((tf.TensorSpec([5], tf.float32),) if remainder == "pad" else ()))
    steps_are(comm, ds, 3 + (up if n % comm.size else 0))


def test_per_rank_dynamic(hvdata, comm):
    """The number of elements of a rank is unknown."""
    ds = distributed(hvdata, lambda: batches(20, 5, True), batch="per_rank", schedule="dynamic")
    spec_is(comm, ds, x_y(5))
    assert set(cardinalities(comm, ds)) <= {UNKNOWN, 4 if comm.size == 1 else UNKNOWN}
    assert sum(len(one) for one in elements(comm, ds)) == 4


@pytest.mark.parametrize("arguments", [
    {"batch": "global"}, {"batch": "per_rank"}, {"batch": "per_rank", "schedule": "dynamic"},
    {"batch": "per_rank", "remainder": "pad"},
])  # fmt: skip
def test_infinite(hvdata, comm, arguments):
    ds = distributed(hvdata, lambda: batches(12, 12, True).repeat(), **arguments)
    assert cardinalities(comm, ds) == [INFINITE] * comm.size
    assert cardinalities(comm, ds.take(5)) == [5] * comm.size


@pytest.mark.parametrize("rows, size", [(30, 12), (25, 12), (24, 12), (13, 12), (5, 12), (7, 1), (0, 4)])
def test_the_reader_knows_the_rows_of_its_batches(hvdata, comm, rows, size):
    """With remainder="drop" a batch of fewer rows than ranks makes no step."""
    for make in (
        lambda: batches(rows, size, False),
        lambda: batches(rows, size, False).shuffle(3, seed=1).cache().prefetch(2),
        lambda: batches(rows, 1, False).unbatch().apply(tf.data.experimental.assert_cardinality(rows)).batch(size),
    ):
        steps = sum(min(size, rows - first) >= comm.size for first in range(0, rows, size))
        steps_are(comm, distributed(hvdata, make, batch="global"), steps)
    mapped = distributed(hvdata, lambda: batches(rows, size, False).map(lambda x, y: (x, y)), batch="global")
    assert cardinalities(comm, mapped) == [UNKNOWN] * comm.size, "a map may change the number of rows"


def test_behind_a_filter(hvdata, comm):
    def filtered():
        return batches(24, 12, True).filter(lambda x, y: True)

    assert cardinalities(comm, distributed(hvdata, filtered, batch="global")) == [UNKNOWN] * comm.size
    asserted = lambda: filtered().apply(tf.data.experimental.assert_cardinality(2))
    assert cardinalities(comm, distributed(hvdata, asserted, batch="global")) == [2] * comm.size


def test_dicts_whose_keys_are_numbers(hvdata, comm):
    source = tf.data.Dataset.range(comm.size).map(lambda i: {2: i, 1: {0.5: 10 * i}, 10: (i,)})
    ds = hvdata.distribute_dataset(source, batch="per_rank")
    assert results(comm, lambda: repr(ds.element_spec)) == [repr(source.element_spec)] * comm.size
    got = results(comm, lambda: [(int(e[2]), int(e[1][0.5]), int(e[10][0])) for e in ds])
    assert got == [[(rank, 10 * rank, rank)] for rank in range(comm.size)]


class Pair(collections.abc.Mapping):
    """A Mapping that is no dict."""

    def __init__(self, parts):
        self.parts = dict(parts)

    def __getitem__(self, key):
        return self.parts[key]

    def __iter__(self):
        return iter(self.parts)

    def __len__(self):
        return len(self.parts)


@pytest.mark.parametrize("nest, says", [
    (lambda i: {(1, 2): i}, r"the dataset's elements have a dict with the key \(1, 2\), a tuple, which can't be sent to another "
     r"rank\. Use strings or numbers as keys\."),
    (lambda i: (i, Pair({"a": i})), r"component \[1\] of the dataset's elements is a Pair, a container that can't be sent to "
     r"another rank\. Let a map\(\) make dicts, tuples or namedtuples of tensors\."),
], ids=["key", "container"])  # fmt: skip
def test_nests_that_cannot_be_sent(hvdata, comm, nest, says):
    source = tf.data.Dataset.range(comm.size).map(nest)
    raises_everywhere(comm, lambda: hvdata.distribute_dataset(source, batch="per_rank"), TypeError, says)


def test_dicts_keep_their_kind_and_the_order_of_their_keys(hvdata, comm):
    def make():
        def element(i):
            inner = {"z": i, "y": 10 * i}
            return collections.OrderedDict(
                b=(100 * i, inner), a={"d": 1000 * i, "c": tf.ragged.constant([[1], [2, 3]])}
            )

        return tf.data.Dataset.range(comm.size).map(element)

    ds = distributed(hvdata, make, batch="per_rank")

    def shape(nest):
        if isinstance(nest, dict):
            return (type(nest).__name__, [(key, shape(part)) for key, part in nest.items()])
        return [shape(part) for part in nest] if isinstance(nest, tuple) else None

    expected = (
        "OrderedDict",
        [("b", [None, ("dict", [("z", None), ("y", None)])]), ("a", ("dict", [("d", None), ("c", None)]))],
    )
    assert results(comm, lambda: shape(ds.element_spec)) == [expected] * comm.size
    got = results(comm, lambda: [(shape(e), int(e["b"][0]), int(e["b"][1]["y"]), int(e["a"]["d"])) for e in ds])
    assert got == [[(expected, 100 * rank, 10 * rank, 1000 * rank)] for rank in range(comm.size)]
