# SPDX-License-Identifier: Apache-2.0
"""hvdata.gather: the rows of all ranks, joined on the root; its gradient scatters them back."""

import os
import re
import resource

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from together import Raised, gradient_of_a_gradient, outcomes, plain, raises_everywhere, results, same_on_all_ranks

pytestmark = pytest.mark.world(np=2)

v1 = tf.compat.v1


@pytest.fixture(params=["first", "last"])
def root(request, comm):
    return {"first": 0, "last": comm.size - 1}[request.param]


def rows_of(rank):
    """Uneven, and none on one rank."""
    return (3 * rank + 2) % 5


def part(rank, dtype=np.float32, rows=None, columns=3):
    n = rows_of(rank) if rows is None else rows
    return (np.arange(n * columns).reshape(n, columns) + 100 * rank).astype(dtype)


def expected(comm, root, parts):
    whole = np.concatenate(parts)
    return [plain(whole if rank == root else whole[:0]) for rank in range(comm.size)]


def test_eager(hvdata, comm, root):
    got = results(comm, lambda: hvdata.gather(part(comm.rank), root=root).numpy())
    assert [plain(one) for one in got] == expected(comm, root, [part(rank) for rank in range(comm.size)])


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "bfloat16", "complex64", "string"])
def test_dtypes(hvdata, comm, dtype):
    dtype = tf.as_dtype(dtype)

    def mine(rank):
        x = part(rank, rows=rank + 1)
        return (
            np.array([b"\0%d" % i for i in x.ravel()], object) if dtype == tf.string else x.astype(dtype.as_numpy_dtype)
        )

    got = results(comm, lambda: hvdata.gather(mine(comm.rank)).numpy())
    assert [plain(one) for one in got] == expected(comm, 0, [mine(rank) for rank in range(comm.size)])


@pytest.mark.world(np=4)
@same_on_all_ranks(25)
@given(rows=st.lists(st.integers(0, 40), min_size=4, max_size=4), shape=st.lists(st.integers(0, 3), max_size=2),
       root=st.integers(0, 3), dtype=st.sampled_from([np.float64, np.uint8, object]))  # fmt: skip
def test_any_rows(hvdata, comm, rows, shape, root, dtype):
    def mine(rank):
        x = np.arange(rows[rank] * int(np.prod(shape))).reshape([rows[rank], *shape]) + rank
        return np.vectorize(lambda i: b"x" * (i % 70), otypes=[object])(x) if dtype is object else x.astype(dtype)

    root %= comm.size
    got = results(
        comm,
        lambda: hvdata.gather(tf.constant(mine(comm.rank), tf.string if dtype is object else None), root=root).numpy(),
    )
    whole = np.concatenate([mine(rank) for rank in range(comm.size)])
    assert [one.tolist() for one in got] == [
        (whole if rank == root else whole[:0]).tolist() for rank in range(comm.size)
    ]


@pytest.mark.world(np=4)
def test_large(hvdata, comm):
    got = results(comm, lambda: hvdata.gather(tf.fill([300_000, 5], float(comm.rank))).numpy().sum(axis=1)[::1000])
    assert got[0].tolist() == [5.0 * rank for rank in range(comm.size) for _ in range(300)]


def test_the_reverse_of_a_scatter(hvdata, comm, root):
    x = part(0, rows=7)
    got = results(comm, lambda: hvdata.gather(hvdata.scatter(x, root=root), root=root).numpy())
    assert plain(got[root]) == plain(x)


def test_in_the_order_of_the_program(hvdata, comm):
    """Calls without names in a tf.function and in a loop match in program order, whichever tensor is ready first."""

    @tf.function
    def several(x):
        first = hvdata.gather(x)
        second = hvdata.gather(tf.concat([x, x], 0), root=comm.size - 1)
        total = tf.zeros([], tf.int64)
        for i in tf.range(3, dtype=tf.int64):
            total += tf.reduce_sum(hvdata.gather(x * i))
        return first, second, total

    got = results(comm, lambda: [one.numpy() for one in several(tf.constant([comm.rank, 10], tf.int64))])
    assert got[0][0].tolist() == [value for rank in range(comm.size) for value in (rank, 10)]
    assert got[-1][1].tolist() == [value for rank in range(comm.size) for value in (rank, 10, rank, 10)]
    assert got[0][2] == 3 * sum(rank + 10 for rank in range(comm.size))


def test_names_in_another_order(hvdata, comm):
    names = ["one", "two", "three"]

    def graph():
        with tf.Graph().as_default(), v1.Session() as session:
            mine = names if comm.rank % 2 == 0 else names[::-1]
            fetches = {name: hvdata.gather(tf.constant([f"{name} {comm.rank}"]), name=name) for name in mine}
            return {name: list(rows) for name, rows in session.run(fetches).items()}

    got = results(comm, graph)
    for name in names:
        assert got[0][name] == [f"{name} {rank}".encode() for rank in range(comm.size)]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "tf.function"])
def test_gradient(hvdata, comm, root, compiled):
    """Every rank gets the rows of the root's gradient that are its own."""

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            whole = hvdata.gather(x, root=root)
            weight = tf.cast(tf.range(tf.size(whole)), tf.float32)
            loss = tf.reduce_sum(tf.reshape(whole, [-1]) * weight)
        return tape.gradient(loss, x)

    run = tf.function(gradient) if compiled else gradient
    for _ in range(2):
        got = results(comm, lambda: run(tf.constant(part(comm.rank))).numpy())
        weights = np.arange(3 * sum(rows_of(rank) for rank in range(comm.size)), dtype=np.float32).reshape(-1, 3)
        at = 0
        for rank in range(comm.size):
            assert got[rank].tolist() == weights[at : at + rows_of(rank)].tolist()
            at += rows_of(rank)


def test_gradient_in_a_tf1_graph(hvdata, comm, root):
    def gradient():
        with tf.Graph().as_default(), v1.Session() as session:
            x = tf.constant(part(comm.rank))
            whole = hvdata.gather(x, root=root, name="in a graph")
            weight = tf.cast(tf.range(tf.size(whole)), tf.float32)
            return session.run(tf.gradients(tf.reduce_sum(tf.reshape(whole, [-1]) * weight), x)[0])

    got = results(comm, gradient)
    weights = np.arange(3 * sum(rows_of(rank) for rank in range(comm.size)), dtype=np.float32).reshape(-1, 3)
    assert np.concatenate(got).tolist() == weights.tolist()
    assert [len(one) for one in got] == [rows_of(rank) for rank in range(comm.size)]


def test_static_shape(hvdata, comm):
    @tf.function(input_signature=[tf.TensorSpec([4, 3])])
    def shape(x):
        y = hvdata.gather(x)
        assert y.shape.as_list() == [None, 3]
        return y

    assert results(comm, lambda: len(shape(tf.zeros([4, 3]))))[0] == 4 * comm.size


# ---- What is wrong.


def test_shapes_that_do_not_fit(hvdata, comm, root):
    if comm.size == 1:
        pytest.skip("one rank fits itself")
    x = tf.zeros([2, 4 if comm.rank == 1 else 3])
    raises_everywhere(
        comm,
        lambda: hvdata.gather(x, root=root),
        tf.errors.InvalidArgumentError,
        r"the ranks' tensors don't fit together: float \[2,3\] on rank 0 on \S+, float \[2,4\] on rank 1 on \S+\. All",
    )
    assert len(results(comm, lambda: hvdata.gather(tf.zeros([1, 1]), root=root).numpy())[root]) == comm.size


def test_dtypes_that_do_not_fit(hvdata, comm):
    if comm.size == 1:
        pytest.skip("one rank fits itself")
    x = tf.zeros([2], tf.int64 if comm.rank == 1 else tf.float32)
    raises_everywhere(
        comm,
        lambda: hvdata.gather(x),
        tf.errors.InvalidArgumentError,
        r"float \[2\] on rank 0 on \S+, int64 \[2\] on rank 1 on \S+\.",
    )


def test_ranks_that_disagree_about_the_root(hvdata, comm):
    if comm.size == 1:
        pytest.skip("one rank agrees with itself")
    got = outcomes(comm, lambda: hvdata.gather(tf.zeros([1]), root=1 if comm.rank == 1 else 0))
    for one, others in zip(got, ("0", "023")):  # rank 1 is told by whoever's message comes first
        assert isinstance(one, Raised) and one.kind is tf.errors.InvalidArgumentError, one
        sides = re.search(r"the ranks disagree in gather\(\): root=(\d) on rank (\d) on \S+; root=(\d) on rank (\d) on \S+\. "
                          r"Every rank must make the same gather calls, with the same root", one.text)  # fmt: skip
        assert sides, one
        roots = {rank: root for root, rank in (sides.group(1, 2), sides.group(3, 4))}
        assert sorted(roots) == list(roots) and roots.pop("1") == "1" and len(roots) == 1, one  # the lower rank first
        assert all(rank in others and root == "0" for rank, root in roots.items()), one
    assert len(results(comm, lambda: hvdata.gather(tf.zeros([1])).numpy())[0]) == comm.size


@pytest.mark.parametrize("wrong, kind, says", [(3.0, ValueError, "x is a scalar"), (object(), ValueError, "x can't be made a tensor")],
                         ids=["scalar", "no tensor"])  # fmt: skip
def test_refused_on_one_rank(hvdata, comm, root, wrong, kind, says):
    """All ranks raise, and the next call works."""
    who = comm.size - 1
    got = outcomes(comm, lambda: hvdata.gather(wrong if comm.rank == who else tf.zeros([2]), root=root, name="refused"))
    for rank, one in enumerate(got):
        assert isinstance(one, Raised) and says in one.text and f"[rank {who} on " in one.text, one
        assert one.kind is (kind if rank == who else tf.errors.InvalidArgumentError)
    assert (
        len(results(comm, lambda: hvdata.gather(tf.zeros([2]), root=root, name="refused").numpy())[root])
        == 2 * comm.size
    )


def test_no_gradient_of_its_gradient(hvdata, comm):
    raises_everywhere(
        comm,
        lambda: gradient_of_a_gradient(tf.constant([1.0, 2.0]), hvdata.gather),
        LookupError,
        r"rank \d on \S+\] gather\(\) has no second gradient: .*\. Compute what needs it",
    )


@pytest.mark.parametrize("more, wider", [(1, 0), (-1, 0), (0, 1), (0, -1)])
def test_a_gradient_of_another_shape(hvdata, comm, root, more, wider):
    """The root's program made the gradient. Every rank raises, and the job goes on."""

    def gradient(more, wider):
        x = tf.constant(part(comm.rank, rows=2))
        with tf.GradientTape() as tape:
            tape.watch(x)
            whole = hvdata.gather(x, root=root, name="odd")
        return tape.gradient(
            whole, x, output_gradients=tf.ones([len(whole) + more, 3 + wider] if comm.rank == root else [0, 3])
        ).numpy()

    raises_everywhere(
        comm,
        lambda: gradient(more, wider),
        tf.errors.InvalidArgumentError,
        rf"\[rank {root} on \S+, gradient of gather 'odd'\] the gradient has shape \[{2 * comm.size + more},{3 + wider}\], but what the "
        rf"call returned has shape \[{2 * comm.size},3\]\. Pass output_gradients",
    )
    assert all(one.tolist() == [[1.0] * 3] * 2 for one in results(comm, lambda: gradient(0, 0)))


@pytest.mark.ranks(2, 4)
def test_more_rows_than_a_tensor_can_have(hvdata, comm, root):
    """The rows have no bytes."""
    raises_everywhere(
        comm,
        lambda: hvdata.gather(tf.zeros([2**62, 0]), root=root, name="countless"),
        tf.errors.InvalidArgumentError,
        "the ranks have more rows than a tensor can have",
    )


@pytest.mark.ranks(2)
@pytest.mark.skipif(
    bool(os.environ.get("HVDATA_TEST_SANITIZED")), reason="a sanitizer ends the process where memory is short"
)
def test_no_memory_to_join_the_rows(hvdata, comm, root):
    """The root has memory for the other's rows, but not for all rows together."""
    part = tf.ones([128 << 20], tf.uint8)

    def short():
        before = resource.getrlimit(resource.RLIMIT_AS)
        with open("/proc/self/statm") as file:
            mapped = int(file.read().split()[0]) * resource.getpagesize()
        if comm.rank == root:
            resource.setrlimit(resource.RLIMIT_AS, (mapped + (200 << 20), before[1]))
        try:
            return len(hvdata.gather(part, root=root, name="large"))
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)

    for one in outcomes(comm, short):
        assert (
            isinstance(one, Raised) and one.kind is tf.errors.ResourceExhaustedError and f"[rank {root} on " in one.text
        ), one
    assert results(comm, lambda: len(hvdata.gather(part, root=root, name="large")))[root] == 256 << 20


@pytest.mark.slow
def test_a_scalar_that_only_the_kernel_sees(hvdata, comm):
    scalar = tf.function(lambda x: hvdata.gather(x, name="unknown"), input_signature=[tf.TensorSpec(None)])
    raises_everywhere(
        comm,
        lambda: scalar(tf.constant(1.0) if comm.rank == 0 else tf.zeros([1])),
        tf.errors.InvalidArgumentError,
        r"\[rank 0 on \S+, gather 'unknown'\] a scalar has no rows to gather",
    )


@pytest.mark.parametrize("wrong, kind", [(-1, ValueError), (99, ValueError), (0.5, TypeError), (True, TypeError)])
def test_wrong_roots(hvdata, comm, wrong, kind):
    raises_everywhere(comm, lambda: hvdata.gather(tf.zeros([1]), root=wrong), kind, "root=")


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("name", [None, "wrong-root"])
def test_a_wrong_root_on_one_rank(hvdata, comm, name):
    """The wrong call counts as a call with root 0, and every rank raises."""
    for who in (1, 0):
        got = outcomes(
            comm, lambda who=who: hvdata.gather(tf.zeros([1]), root=99 if comm.rank == who else 0, name=name)
        )
        for rank, one in enumerate(got):
            assert isinstance(one, Raised) and one.kind is (
                ValueError if rank == who else tf.errors.InvalidArgumentError
            ), one
            assert "root=99 is not one of the" in one.text, one
        got = results(comm, lambda: hvdata.gather(part(comm.rank), name=name).numpy())
        assert [plain(one) for one in got] == expected(comm, 0, [part(rank) for rank in range(comm.size)])
