# SPDX-License-Identifier: Apache-2.0
"""hvdata.scatter: rows of the root's tensor, disjoint, to every rank; its gradient gathers them at the root."""

import re

import numpy as np
import pytest
import tensorflow as tf
from together import (
    Raised,
    Unwilling,
    gradient_of_a_gradient,
    heard_everywhere,
    outcomes,
    plain,
    raises_everywhere,
    results,
)

pytestmark = pytest.mark.world(np=3)

v1 = tf.compat.v1


def table(rows, columns=3, dtype=np.float32):
    return np.arange(rows * columns).reshape(rows, columns).astype(dtype)


def mine(comm, root, x):
    """The arguments of this rank: x on the root, None on others."""
    return {"x": x} if comm.rank == root else {"x": None, "dtype": tf.as_dtype(x.dtype)}


def uneven(n):
    """Splits that differ, one of them zero."""
    return [(3 * rank + 2) % 5 for rank in range(n)]


def same(got, want):
    assert [plain(one) for one in got] == [plain(one) for one in want]


def goes_on(hvdata, comm, root=0, name=None):
    """After an error the next call works."""
    x = table(comm.size) + 100
    same(results(comm, lambda: hvdata.scatter(x, root=root, name=name).numpy()), np.split(x, comm.size))


@pytest.mark.parametrize("rows, splits", [
    (lambda n: 6 * n, None), (lambda n: sum(uneven(n)), uneven), (lambda n: n + 1, None), (lambda n: n - 1, None),
    (lambda n: 0, None), (lambda n: 200_000 * n, None),
], ids=["equal", "splits", "one more", "one less", "none", "large"])  # fmt: skip
def test_rows(hvdata, comm, root, rows, splits):
    """Without splits the first ranks get one row more."""
    x = table(rows(comm.size))
    splits = splits and splits(comm.size)
    got = results(comm, lambda: hvdata.scatter(**mine(comm, root, x), splits=splits, root=root).numpy())
    same(got, np.split(x, np.cumsum(splits)[:-1]) if splits else np.array_split(x, comm.size))


def test_every_rank_may_pass_a_tensor(hvdata, comm):
    """Only the root's tensor counts."""
    x = table(4 * comm.size) + 1000 * comm.rank
    got = results(comm, lambda: hvdata.scatter(x).numpy())
    same(got, np.split(table(4 * comm.size), comm.size))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "bfloat16", "complex64", "string"])
def test_dtypes(hvdata, comm, root, dtype):
    """A gather is the reverse of a scatter."""
    dtype = tf.as_dtype(dtype)
    x = table(2 * comm.size)
    if dtype == tf.string:
        x = np.array([b"\0%d" % int(i) for i in x.ravel()], object)
    else:
        x = x.astype(dtype.as_numpy_dtype)
    source = {"x": x} if comm.rank == root else {"x": None, "dtype": dtype}
    same(results(comm, lambda: hvdata.scatter(**source, root=root).numpy()), np.split(x, comm.size))
    whole = results(comm, lambda: hvdata.gather(hvdata.scatter(**source, root=root), root=root).numpy())
    assert plain(whole[root]) == plain(x)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("name", ["scatter", "scatter0", "0"])
def test_a_name_never_meets_calls_without_one(hvdata, comm, name):
    """Also a name like those in error texts for calls without a name, and in a graph where each rank has another
    order."""
    x = table(2 * comm.size)

    def calls(order=(0, 1)):
        both = [lambda: hvdata.scatter(**mine(comm, 0, x), name=name), lambda: hvdata.scatter(**mine(comm, 0, x + 100))]
        got = {i: both[i]() for i in order}
        return [got[0], got[1]]

    def in_graph():
        with tf.Graph().as_default(), v1.Session() as session:
            return session.run(calls([0, 1] if comm.rank == 0 else [1, 0]))

    for run in (lambda: [part.numpy() for part in calls()], in_graph):
        for rank, parts in enumerate(results(comm, run)):
            same(parts, [np.split(y, comm.size)[rank] for y in (x, x + 100)])


def test_a_rank_that_traces_more_often(hvdata, comm):
    """The root's tensors have other shapes in each call, and the others pass None. So only the root traces again."""
    w = tf.Variable(1.0)

    @tf.function
    def inner(x):
        return w * hvdata.scatter(x, dtype=tf.float32)

    @tf.function
    def outer(x):
        times = (lambda k: None) if x is None else (lambda k: k * x)
        loop = tf.TensorArray(tf.float32, 3, element_shape=[None])
        for i in tf.range(3):
            loop = loop.write(i, hvdata.scatter(times(tf.cast(i, tf.float32)), dtype=tf.float32))
        return inner(times(10)), hvdata.scatter(times(100), dtype=tf.float32), inner(times(1000)), loop.stack()

    for n in 1, 2, 3:
        x = np.arange(1, n * comm.size + 1, dtype=np.float32)
        got = results(comm, lambda x=x: [part.numpy() for part in outer(tf.constant(x) if comm.rank == 0 else None)])
        for mine, parts in zip(np.split(x, comm.size), got):
            same(parts[:3], [k * mine for k in (10, 100, 1000)])
            assert plain(parts[3]) == plain(np.stack([i * mine for i in range(3)]).astype(np.float32))


def test_eager_here_and_in_tf_function_there(hvdata, comm):
    """Calls without a name match in the order of the program, eager or traced."""

    def both(x):
        first = hvdata.scatter(x, dtype=tf.float32)
        return first, hvdata.scatter(None if x is None else -x, dtype=tf.float32)

    call = tf.function(both) if comm.rank % 2 else both
    x = table(2 * comm.size)
    got = results(comm, lambda: [part.numpy() for part in call(tf.constant(x) if comm.rank == 0 else None)])
    for mine, parts in zip(np.split(x, comm.size), got):
        same(parts, [mine, -mine])


def test_several_without_names_in_one_v1_graph(hvdata, comm):
    """In a graph calls may run in any order, because each has a number in the graph. A rank may have built another
    graph before."""
    x = [table(2 * comm.size) + 10 * i for i in range(4)]

    def run():
        if comm.rank == 0:
            with tf.Graph().as_default():
                hvdata.scatter(x[0])
        with tf.Graph().as_default(), v1.Session() as session:
            parts = [hvdata.scatter(**mine(comm, 0, value)) for value in x]
            return [session.run(parts) for _ in range(2)]

    for rank, runs in enumerate(results(comm, run)):
        for parts in runs:
            same(parts, [np.split(value, comm.size)[rank] for value in x])


# ---- Gradients.


@pytest.mark.world(np=2)
@pytest.mark.parametrize("function", [lambda f: f, tf.function], ids=["eager", "tf.function"])
def test_gradient(hvdata, comm, root, function):
    """sum over ranks of (rank + 1) * sum(y^3), against one process that has all of x."""
    splits = uneven(comm.size)
    x = np.random.default_rng(0).normal(size=(sum(splits), 3)).astype(np.float32)

    @function
    def gradient(value):
        with tf.GradientTape() as tape:
            tape.watch(value)
            y = hvdata.scatter(value, splits=splits, root=root)
            loss = (comm.rank + 1.0) * tf.reduce_sum(y**3)
        return tape.gradient(loss, value)

    def run():
        value = tf.constant(x) if comm.rank == root else tf.zeros([0, 3])
        got = gradient(value)
        return None if got is None else got.numpy()

    factors = np.repeat(np.arange(1.0, comm.size + 1), splits)[:, None]
    for rank, got in enumerate(results(comm, run)):
        if rank == root:
            np.testing.assert_allclose(got, factors * 3 * x**2, rtol=1e-5)
        else:  # the arguments of other ranks don't matter
            assert got is None or not np.any(got)


def test_gradients_of_two_that_were_traced_differently(hvdata, comm):
    """The backward pass may run them in any order, and twice."""
    factor = comm.rank + 1.0

    @tf.function
    def gradients(x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            a, b = hvdata.scatter(x), hvdata.scatter(x * x)
            one, other = tf.reduce_sum(a) * factor + tf.reduce_sum(b) * factor, tf.reduce_sum(b)
        return tape.gradient(one, x), tape.gradient(other, x)

    for n in 1, 2:
        x = np.arange(n * comm.size, dtype=np.float32)
        mine = tf.constant(x) if comm.rank == 0 else tf.zeros([0])
        got = results(comm, lambda mine=mine: [g.numpy() for g in gradients(mine)])
        factors = np.repeat(np.arange(1.0, comm.size + 1), n)
        np.testing.assert_allclose(got[0][0], factors * (1 + 2 * x))
        np.testing.assert_allclose(got[0][1], 2 * x)


def test_a_gradient_of_another_shape_in_a_function(hvdata, comm):
    """The shapes are unknown when the function is made. Each rank checks its own gradient: all are wrong here."""

    @tf.function(input_signature=[tf.TensorSpec([None, 3])] * 2)
    def gradient(value, given):
        with tf.GradientTape() as tape:
            tape.watch(value)
            y = hvdata.scatter(value, name="odd in a function")
        return tape.gradient(y, value, output_gradients=given)

    value = tf.constant(table(2 * comm.size, 3)) if comm.rank == 0 else tf.zeros([0, 3])
    wrong = "the gradient has another shape than what the call returned"
    call = lambda: gradient(value, tf.ones([1 if comm.rank % 2 else 3, 3]))
    raises_everywhere(comm, call, tf.errors.InvalidArgumentError, wrong)
    assert results(comm, lambda: gradient(value, tf.ones([2, 3])).numpy())[0].tolist() == [[1.0] * 3] * (2 * comm.size)


@pytest.mark.parametrize("shape", [[5, 3], [2, 4], [2], []], ids=str)
def test_a_gradient_of_another_shape(hvdata, comm, root, shape):
    """The last rank's program made the gradient. Every rank raises, and the job goes on."""
    who = comm.size - 1

    def gradient(wrong):
        value = tf.constant(table(2 * comm.size, 3)) if comm.rank == root else tf.zeros([0, 3])
        with tf.GradientTape() as tape:
            tape.watch(value)
            y = hvdata.scatter(value, root=root, name="odd")
        given = tf.ones(shape if wrong and comm.rank == who else [2, 3])
        return tape.gradient(y, value, output_gradients=given).numpy()

    shown = ", ".join(map(str, shape)) + "," * (len(shape) == 1)
    raises_everywhere(
        comm,
        lambda: gradient(True),
        tf.errors.InvalidArgumentError,
        rf"\[rank {who} on \S+, gradient of scatter 'odd', call \d+\] the gradient has shape \({shown}\), but what the call returned has shape \(2, 3\)\. "
        r"Pass output_gradients of that shape",
    )
    assert results(comm, lambda: gradient(False))[root].tolist() == [[1.0] * 3] * (2 * comm.size)


def test_gradient_in_a_loop(hvdata, comm):
    """In each pass through the loop the gradient belongs to another call."""

    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.constant(0.0)
            for i in tf.range(3):
                total += tf.cast(i, tf.float32) * tf.reduce_sum(hvdata.scatter(x) ** 2)
        return tape.gradient(total, x)

    x = np.arange(2.0 * comm.size, dtype=np.float32)
    got = results(comm, lambda: gradient(tf.constant(x) if comm.rank == 0 else tf.zeros([0])).numpy().tolist())
    assert got == [(6 * x).tolist(), *[[]] * (comm.size - 1)]


def test_gradient_of_a_gradient(hvdata, comm):
    x = tf.range(2.0 * comm.size) if comm.rank == 0 else tf.zeros([1])
    got = results(comm, lambda: gradient_of_a_gradient(x, hvdata.scatter).numpy().tolist())
    assert got == [[6.0 * i for i in range(2 * comm.size)], *[[0.0]] * (comm.size - 1)]


# ---- What is wrong.


def a_variant():
    return tf.data.experimental.to_variant(tf.data.Dataset.range(3))[tf.newaxis]


def a_resource():
    return tf.raw_ops.VarHandleOp(dtype=tf.int32, shape=[], shared_name="unsent")


def unsent(kind):
    return rf"x (is|would be) a tensor of {kind}, which can't be sent to another rank\. Pass a tensor of numbers, bools or strings\."


NOT_WHOLE = r"\[rank \d on [^\]]+\] splits=.* are not whole numbers, one for each rank\. Pass the number of rows"
WRONG_ON_THE_ROOT = {
    "floats": (lambda n: {"splits": [1.9] * n}, TypeError, NOT_WHOLE),
    "whole floats": (lambda n: {"splits": tf.fill([n], tf.constant(2.0, tf.float64))}, TypeError, NOT_WHOLE),
    "bools": (lambda n: {"splits": tf.fill([n], True)}, TypeError, NOT_WHOLE),
    "texts": (lambda n: {"splits": ["a"] * n}, TypeError, NOT_WHOLE),
    "two axes": (lambda n: {"splits": [[1]] * n}, TypeError, NOT_WHOLE),
    "no tensor": (lambda n: {"x": None, "dtype": tf.float32}, ValueError, "x is None on the root"),
    "unwilling": (lambda n: {"x": Unwilling()}, ValueError, "x can't be made a tensor.*requires grad"),
    "variant": (lambda n: {"x": a_variant()}, TypeError, unsent("variant")),
    "resource": (lambda n: {"x": a_resource()}, TypeError, unsent("resource")),
}


@pytest.mark.world(np=2)
@pytest.mark.parametrize("wrong", WRONG_ON_THE_ROOT)
@pytest.mark.parametrize("name", [None, "wrong-on-the-root"])
def test_wrong_on_the_root(hvdata, comm, root, wrong, name):
    """Only the root can see it. Every rank raises, and the next call works."""
    make, kind, says = WRONG_ON_THE_ROOT[wrong]
    given = {"x": table(comm.size), **make(comm.size)}
    if comm.rank != root:
        given = {**given, "x": None, "dtype": tf.float32}
    heard_everywhere(comm, lambda: hvdata.scatter(**given, root=root, name=name), root, kind, says)
    goes_on(hvdata, comm, root, name)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("name", [None, "wrong-root"])
def test_a_wrong_root_on_one_rank(hvdata, comm, name):
    """The wrong call counts as a call with root 0, so the next call gets its own rows."""
    for who, wrong, kind in ((1, comm.size, ValueError), (1, "0", TypeError), (0, -1, ValueError)):
        root = wrong if comm.rank == who else 0
        got = outcomes(comm, lambda root=root: len(hvdata.scatter(table(comm.size), root=root, name=name)))
        for rank, one in enumerate(got):
            if rank != who and who > 0:
                assert one == 1
                continue
            assert one.kind is (kind if rank == who else tf.errors.InvalidArgumentError), one
            assert f"root={wrong!r} is not " in one.text, one
        goes_on(hvdata, comm, name=name)


@pytest.mark.parametrize("name", [None, "two-roots"])
def test_ranks_that_disagree_on_the_root(hvdata, comm, several, name):
    """The next call works. csrc/tests/meeting_exchange_test.cc has other roots."""
    call = lambda: hvdata.scatter(table(comm.size), root=int(comm.rank == 1), name=name)
    # Which two ranks the error names depends on timing.
    raises_everywhere(comm, call, tf.errors.InvalidArgumentError, "ranks disagree", "root=1 on rank 1", "the same root")
    goes_on(hvdata, comm)


def test_ranks_that_disagree_on_dtype(hvdata, comm, several):
    source = {"x": table(comm.size)} if comm.rank == 0 else {"x": None, "dtype": tf.int32}
    got = outcomes(comm, lambda: hvdata.scatter(**source, name="other-dtype").numpy())
    for one in got[1:]:  # the root has sent its rows by then and may have no error
        assert isinstance(one, Raised) and "float" in one.text and "int32" in one.text, one


# With 2, 3 and 4 ranks their sum, as a 64-bit number, is that of the rows.
OVERFLOWING = {1: ([1], 0), 2: ([2**63 - 1, 2], 0), 3: ([2**63 - 1, 2**63 - 1, 6], 4), 4: ([2**62] * 4, 0)}


@pytest.mark.world(np=2)
@pytest.mark.parametrize("make", [
    lambda n: ([2] * n + [1], 2 * n), lambda n: ([2] * (n - 1), 2 * n), lambda n: ([-1] + [2] * (n - 1), 2 * n),
    lambda n: ([2] * n, 2 * n + 1), OVERFLOWING.get], ids=["more", "fewer", "less than 0", "another sum", "beyond all numbers"])  # fmt: skip
def test_wrong_splits(hvdata, comm, make):
    splits, rows = make(comm.size)
    says = ("splits", rf"\b{2 * comm.size}\b", rf"\b{rows}\b") if rows == 2 * comm.size + 1 else ("splits",)
    kinds = (ValueError, tf.errors.OpError)
    raises_everywhere(comm, lambda: hvdata.scatter(tf.zeros([rows, 3]), splits=splits), kinds, *says)


HERE = r"\[rank \d on \S+\] "
WRONG = [
    (dict(root=-1), ValueError, "root=-1"),
    (dict(root=9), ValueError, "root=9"),
    *((dict(root=root), TypeError, rf"root={root!r}.*0 to") for root in ("0", 0.0, True)),
    (dict(x=None), ValueError, "x is None"),
    (dict(name=7), TypeError, HERE + "name=7 is "),
    (dict(name=""), ValueError, HERE + "name='' is "),
    (dict(name="a\0"), ValueError, HERE + re.escape("name='a\\x00' is ")),
    (dict(x=tf.ragged.constant([[1], []])), (TypeError, ValueError),
     HERE + r"x can't be made a tensor: .* Pass a tensor\. For a ragged or sparse tensor"),
    (dict(x=tf.constant([1]), dtype=tf.float32), (TypeError, ValueError),
     HERE + "x can't be made a tensor of float32: .* Pass a tensor"),
    (dict(x="\ud800"), ValueError, HERE + "x can't be made a tensor: "),
    (dict(x=None, dtype=tf.variant), TypeError, unsent("variant")),
    (dict(dtype="numbers"), TypeError, HERE + r"dtype='numbers' is no dtype of TensorFlow\. Pass one, as in dtype=tf\.float32\."),
    (dict(x=tf.constant(3.0)), (ValueError, tf.errors.OpError), "scalar|axis 0"),
]  # fmt: skip


@pytest.mark.parametrize("wrong, kind, says", WRONG, ids=[ascii(wrong) for wrong, _, _ in WRONG])
def test_wrong_arguments(hvdata, comm, wrong, kind, says):
    raises_everywhere(comm, lambda: hvdata.scatter(**{"x": table(comm.size), **wrong}), kind, says)
    goes_on(hvdata, comm, np.int64(comm.size - 1))
