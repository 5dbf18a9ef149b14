# SPDX-License-Identifier: Apache-2.0
"""Every dtype, nest, shape and composite of an element arrives unchanged."""

from typing import NamedTuple

import numpy as np
import psutil
import pytest
import tensorflow as tf
from oracle import deliver
from together import (
    dealt_to_all,
    elements,
    local,
    merged,
    numbers,
    on_reader,
    outcomes,
    plain,
    raises_everywhere,
    results,
)

pytestmark = pytest.mark.world(np=3)

DTYPES = [
    tf.bool, tf.uint8, tf.uint16, tf.uint32, tf.uint64, tf.int8, tf.int16, tf.int32, tf.int64, tf.float16, tf.bfloat16,
    tf.float32, tf.float64, tf.complex64, tf.complex128,
]  # fmt: skip
STRINGS = [b"", b"\0", b"a\0b", "äöü".encode(), b"x" * 100_000, b"\xff\xfe", b" ", b"end\0"]


class Sample(NamedTuple):
    image: object
    label: object


def pattern(dtype: tf.DType, shape: tuple[int, ...]) -> np.ndarray:
    """Every bit pattern that `dtype` has, NaNs and infinities included, in some order."""
    count = int(np.prod(shape))
    if dtype == tf.bool:
        return (np.arange(count) % 3 == 0).reshape(shape)
    raw = np.random.default_rng(dtype.as_datatype_enum).bytes(count * dtype.size)
    return np.frombuffer(raw, dtype.as_numpy_dtype).reshape(shape)


def listed(values, signature) -> tf.data.Dataset:
    return tf.data.Dataset.from_generator(lambda: iter(values), output_signature=signature)


def plain_all(shares):
    return [[plain(step) for step in steps] for steps in shares]


def cut(batches, ranks, remainder, zero):
    """The rows of global batches, given as lists, as each rank gets them. `zero` is a row of padding."""
    rows = sum(map(list, batches), [])
    places = np.split(np.arange(len(rows)), np.cumsum([len(batch) for batch in batches])[:-1])
    weighed = lambda share: zip(*share) if remainder == "pad" else ((place, 1) for place in share)
    return [
        [[rows[place] if weight else zero for place, weight in weighed(share)] for share in mine]
        for mine in deliver(places, ranks, "global", remainder=remainder)
    ]


def without_weights(comm, got, batches, remainder):
    """The elements. Checks the weights that `pad` adds."""
    if remainder != "pad":
        return got
    weights = [[weight.tolist() for _, weight in steps] for steps in got]
    assert weights == cut([[1.0] * len(rows) for rows in batches], comm.size, "pad", 0.0)
    return [[element for element, _ in steps] for steps in got]


@pytest.mark.world(np=2)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_numeric_dtypes(hvdata, comm, dtype):
    rows = pattern(dtype, (24, 3))
    for batch in "global", "per_rank":
        source = tf.data.Dataset.from_tensor_slices(tf.constant(rows)).batch(12 if batch == "global" else 2)
        ds = hvdata.distribute_dataset(source, batch=batch, remainder="partial")
        assert ds.element_spec.dtype == dtype
        assert plain(np.concatenate(merged(elements(comm, ds)))) == plain(rows)


@pytest.mark.world(np=4)
@pytest.mark.usefixtures("either_way")
def test_strings(hvdata, comm):
    n = comm.size
    scalars = hvdata.distribute_dataset(tf.data.Dataset.from_tensor_slices(STRINGS * n), batch="per_rank")
    assert elements(comm, scalars) == dealt_to_all(comm, STRINGS * n)
    source = tf.data.Dataset.from_tensors(np.array([STRINGS] * 12, dtype=object))
    rows = elements(comm, hvdata.distribute_dataset(source, batch="global"))
    assert [[step.tolist() for step in steps] for steps in rows] == [[[STRINGS] * (12 // n)]] * n


@pytest.mark.parametrize("batch", ["global", "per_rank"])
def test_zero_rows_and_zero_columns(hvdata, comm, batch):
    """Per rank the last element has no others: their shares have no rows, and its other axes."""
    shapes = [(0, 3), (12, 0), (0, 0), (12, 3)]
    values = [np.ones(shape, np.float32) for shape in shapes for _ in range(1 if batch == "global" else comm.size)]
    values.append(np.ones((12, 7), np.float32))
    ds = hvdata.distribute_dataset(listed(values, tf.TensorSpec([None, None])), batch=batch, remainder="partial")
    rows = 12 // comm.size if batch == "global" else 12
    want = [[(0, 3), (rows, 0), (0, 0), (rows, 3)] for _ in range(comm.size)]
    for rank, mine in enumerate(want):
        mine.append((rows if rank == 0 or batch == "global" else 0, 7))
    assert [[step.shape for step in steps] for steps in elements(comm, ds)] == want


@pytest.mark.usefixtures("either_way")
def test_no_rows_of_any_size(hvdata, comm):
    """The product of the other axes overflows an integer."""
    ds = hvdata.distribute_dataset(
        lambda: tf.data.Dataset.from_tensors(tf.zeros([0, 2**40, 2**40])).repeat(2 * comm.size), batch="per_rank"
    )
    assert results(comm, lambda: [tuple(x.shape) for x in ds]) == [[(0, 2**40, 2**40)] * 2] * comm.size


def check_nest(hvdata, comm, source):
    """The elements and their spec are those of the source."""
    ds = hvdata.distribute_dataset(on_reader(hvdata, lambda: source), batch="per_rank")
    assert ds.element_spec == source.element_spec
    whole = [plain(element) for element in local(source)]
    # A rank that doesn't read has no Sample: it gets a named tuple of that name, which can't travel as it is.
    assert results(comm, lambda: [plain(element) for element in local(ds)]) == dealt_to_all(comm, whole)


@pytest.mark.parametrize("nest", [
    lambda i, x: {"b": (x, {"c": i}), "a": Sample(image=[x, x + 1], label=(i,)), "n": (((x,),),)},
    lambda i, x: (x,), lambda i, x: {"x": x}, lambda i, x: Sample(x, i), lambda i, x: (i, i % 2 == 0, tf.strings.as_string(i)),
], ids=["nest", "tuple", "dict", "named tuple", "scalars"])  # fmt: skip
def test_nests(hvdata, comm, nest):
    source = tf.data.Dataset.range(2 * comm.size).map(lambda i: nest(i, tf.cast(tf.range(i, i + 2), tf.float32)))
    check_nest(hvdata, comm, source)


@pytest.mark.usefixtures("either_way")
def test_shapes_and_ranks_change(hvdata, comm):
    """An unknown rank, and shapes that differ from element to element."""
    shapes = [(), (3,), (2, 2), (1, 1, 5), (0, 4), (7,)]
    values = [np.full(shape, i, np.int32) for i, shape in enumerate(shapes * comm.size)]
    ds = hvdata.distribute_dataset(listed(values, tf.TensorSpec(None, tf.int32)), batch="per_rank")
    assert ds.element_spec.shape.rank is None
    assert plain_all(elements(comm, ds)) == dealt_to_all(comm, [plain(value) for value in values])


def ragged(i):
    i = tf.cast(i, tf.int32)
    return tf.RaggedTensor.from_row_lengths(tf.range(i * 10, i * 10 + 5), [2, 0, 3])


def sparse(i):
    return tf.SparseTensor(indices=[[0, 1], [2, 0]], values=tf.stack([i, i + 1]), dense_shape=[3, 4])


@pytest.mark.world(np=4)
@pytest.mark.parametrize("composite", [ragged, sparse, lambda i: {"r": ragged(i), "s": sparse(i), "d": i}])
@pytest.mark.usefixtures("either_way")
def test_composites_per_rank(hvdata, comm, composite):
    check_nest(hvdata, comm, tf.data.Dataset.range(3 * comm.size).map(composite))


LINES = tf.ragged.constant([[1], [2, 3], [], [4, 5, 6]] * 6, tf.int32)


@pytest.mark.parametrize("make", [
    lambda: tf.data.Dataset.from_tensor_slices(LINES),
    lambda: tf.data.Dataset.from_tensors(LINES).unbatch(),
    lambda: tf.data.Dataset.from_tensor_slices({"line": LINES, "at": tf.range(24)}),
], ids=["slices", "unbatched", "dict"])  # fmt: skip
def test_rows_of_a_ragged_tensor(hvdata, comm, make):
    """The rows have the spec of a ragged tensor of rank 0. They are plain tensors, and a batch of them is ragged."""
    source = make()
    check_nest(hvdata, comm, source)
    ds = hvdata.distribute_dataset(on_reader(hvdata, make), batch="per_rank")
    want = dealt_to_all(comm, local(source))
    mapped = elements(comm, ds.map(lambda one: tf.nest.map_structure(lambda x: x + 1, one)))
    wanted = [[tf.nest.map_structure(lambda x: x + np.int32(1), one) for one in steps] for steps in want]
    assert plain_all(mapped) == plain_all(wanted)
    if isinstance(source.element_spec, dict):
        ds = ds.map(lambda one: one["line"])  # no ragged tensors for TensorFlow any more, here as in the source
    else:
        batched = [[list(row) for batch in steps for row in batch] for steps in elements(comm, ds.batch(2))]
        assert batched == [[one.tolist() for one in steps] for steps in want]
    assert [len(steps) for steps in elements(comm, ds)] == [24 // comm.size] * comm.size


@pytest.mark.parametrize("remainder", ["drop", "partial", "pad"])
def test_rows_of_a_ragged_tensor_global(hvdata, comm, remainder):
    """Each element is a batch: 2, 0 and 5 rows."""
    rows = [[1, 2], [], [3, 4, 5, 6, 7]]
    source = tf.data.Dataset.from_tensor_slices({"line": tf.ragged.constant(rows, tf.int32)})
    ds = hvdata.distribute_dataset(on_reader(hvdata, lambda: source), batch="global", remainder=remainder)
    got = without_weights(comm, elements(comm, ds), rows, remainder)
    assert [[one["line"].tolist() for one in steps] for steps in got] == cut(rows, comm.size, remainder, 0)


# Of each kind of component that is no plain slice the rows of 11 elements, what a row of padding is, and the tensor.
WORDS = [b"", b"a", "ä".encode(), b"x" * 40, b"\0"]
UNEVEN = {
    "ragged": ([list(range(i, i + i % 4)) for i in range(11)], [],
               lambda rows: tf.ragged.constant(rows, tf.int32, row_splits_dtype=tf.int32)),
    "deep": ([[WORDS[: i % 3], WORDS[i % 5 :]][: i % 2 + 1] for i in range(11)], [],
             lambda rows: tf.ragged.constant(rows, tf.string)),
    "pairs": ([[list(range(i % 3)), list(range(i % 5))] for i in range(11)], [[], []],
              lambda rows: tf.RaggedTensor.from_uniform_row_length(tf.ragged.constant(sum(rows, []), tf.int64), 2)),
    "boxes": ([[[i, 1, 2], [i, 3, 4]] for i in range(11)], [[0, 0, 0], [0, 0, 0]],
              lambda rows: tf.RaggedTensor.from_uniform_row_length(tf.constant(sum(rows, [])), 2)),
    "sparse": ([[i % 3, 0, i % 2 * i] for i in range(11)], [0, 0, 0],
               lambda rows: tf.sparse.from_dense(tf.constant(rows))),
    "text": ([WORDS[i % 5] for i in range(11)], b"", tf.constant),
    "number": ([float(i + 1) for i in range(11)], 0.0, tf.constant),
}  # fmt: skip


def listed_rows(component):
    if isinstance(component, tf.compat.v1.SparseTensorValue):
        return tf.sparse.to_dense(tf.sparse.SparseTensor(*component)).numpy().tolist()
    return component.tolist() if isinstance(component, np.ndarray) else component


@pytest.mark.parametrize("remainder", ["partial", "pad"])
@pytest.mark.parametrize("names", [["text"], ["ragged", "text"], list(UNEVEN)], ids="-".join)
def test_rows_that_ranks_do_not_divide(hvdata, comm, remainder, names):
    """Batches of 5, 5 and 1 rows: the shares of each rank, and the padding."""
    source = tf.data.Dataset.from_tensor_slices({name: UNEVEN[name][2](UNEVEN[name][0]) for name in names}).batch(5)
    ds = hvdata.distribute_dataset(on_reader(hvdata, lambda: source), batch="global", remainder=remainder)
    spec = ds.element_spec[0] if remainder == "pad" else ds.element_spec
    assert spec == source.element_spec
    got = without_weights(comm, elements(comm, ds), [range(5), range(5), range(1)], remainder)
    for name in names:
        rows, zero, _ = UNEVEN[name]
        want = cut([rows[:5], rows[5:10], rows[10:]], comm.size, remainder, zero)
        assert [[listed_rows(step[name]) for step in steps] for steps in got] == want, name


def test_an_entry_beyond_the_rows_of_a_sparse_tensor(hvdata, comm):
    """The step raises an error. No rank silently loses the entry."""
    source = tf.data.Dataset.range(1).map(lambda i: {"x": tf.SparseTensor([[0, 1], [4, 0]], [1, 2], [4, 3])})
    ds = hvdata.distribute_dataset(on_reader(hvdata, lambda: source), batch="global", remainder="partial")
    text = r"can't cut \['x'\]: it is a sparse tensor with a value in row 4, of 4 rows"
    raises_everywhere(comm, lambda: list(ds), tf.errors.InvalidArgumentError, text, r"epoch 1, step 0")
    nothing = tf.data.Dataset.range(1).map(
        lambda i: tf.SparseTensor(tf.zeros([0, 2], tf.int64), tf.zeros([0]), [i - 5, 3])
    )
    ds = hvdata.distribute_dataset(on_reader(hvdata, lambda: nothing), batch="global", remainder="pad", verify=True)
    raises_everywhere(comm, lambda: list(ds), tf.errors.InvalidArgumentError, r"epoch 1, step 0", "-5")


@pytest.mark.parametrize("batch", ["per_rank", "global"])
def test_a_sparse_tensor_of_fewer_than_no_rows(hvdata, comm, batch):
    """Every rank raises an error that says so, and the reader's process lives."""

    def make(i):
        return tf.SparseTensor(tf.zeros([0, 1], tf.int64), tf.zeros([0]), tf.reshape(-1 - i, [1]))

    ds = hvdata.distribute_dataset(tf.data.Dataset.range(comm.size).map(make), batch=batch, remainder="pad")
    text = "it says that it has -1 rows" if batch == "per_rank" else "it is a sparse tensor of -1 rows"
    raises_everywhere(
        comm, lambda: next(iter(ds)), tf.errors.InvalidArgumentError, text, "Fix the stage of the pipeline"
    )


@pytest.mark.parametrize("remainder", ["partial", "pad"])
@pytest.mark.usefixtures("either_way")
def test_composites_in_a_tail(hvdata, comm, remainder):
    """One element for N ranks: the others' ragged and sparse shares are empty, of the same type."""
    source = tf.data.Dataset.range(1).map(lambda i: {"r": ragged(i), "s": sparse(i)})
    ds = hvdata.distribute_dataset(on_reader(hvdata, lambda: source), batch="per_rank", remainder=remainder)
    if remainder == "pad":
        ds = ds.map(lambda element, weight: element)
    got = elements(comm, ds)
    assert [len(steps) for steps in got] == [1] * comm.size
    assert got[0][0]["r"] == [[0, 1], [], [2, 3, 4]] and got[0][0]["s"].values.tolist() == [0, 1]
    for steps in got[1:]:  # of rank 0's shape, or without rows
        assert [list(row) for row in steps[0]["r"]] == ([[0, 0], [], [0, 0, 0]] if remainder == "pad" else [])
        assert not np.any(steps[0]["s"].values)
        assert steps[0]["s"].dense_shape.tolist() == [3 if remainder == "pad" else 0, 4]


def test_an_empty_share_of_a_scalar_is_an_error(hvdata, comm, several):
    """An element without an axis 0 can't have zero rows. Every rank raises in that step, after whole steps."""
    it = iter(numbers(hvdata, comm.size + 1, remainder="partial"))
    assert results(comm, lambda: int(next(it))) == list(range(comm.size))
    raises_everywhere(comm, lambda: next(it), tf.errors.InvalidArgumentError, r"partial", r"epoch 1, step")


@pytest.mark.world(np=4)
@pytest.mark.slow
@pytest.mark.ranks(1, 4)  # the latter over two hosts: through shared memory and as messages
def test_an_element_larger_than_2_gib(hvdata, comm):
    """The last rank gets it, so with more than one rank it goes over MPI."""
    if min(comm.allgather(psutil.virtual_memory().available)) < 12 << 30:
        pytest.skip("needs 12 GiB of free memory")
    n, period, times = comm.size, 4_194_301, 513
    assert period * times > 2**31

    def element(i):
        unit = tf.cast(tf.range(period) % 251, tf.uint8)
        return tf.cond(i % n == n - 1, lambda: tf.tile(unit[None], [times, 1]), lambda: unit[None])

    ds = hvdata.distribute_dataset(tf.data.Dataset.range(n).map(element), batch="per_rank", prefetch=1)

    def check():
        big = next(iter(ds)).numpy()
        unit = (np.arange(period) % 251).astype(np.uint8)
        return big.size, all(np.array_equal(row, unit) for row in big)

    sizes = [period] * (n - 1) + [period * times]
    assert outcomes(comm, check) == [(size, True) for size in sizes]
