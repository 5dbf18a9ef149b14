# SPDX-License-Identifier: Apache-2.0
"""hvdata.gather: the rows of all ranks, joined on the root; its gradient scatters them back."""

import os
import resource

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from together import (
    Unwilling,
    gradient_of_a_gradient,
    heard_everywhere,
    plain,
    raises_everywhere,
    results,
    same_on_all_ranks,
)

pytestmark = pytest.mark.world(np=2)

v1 = tf.compat.v1


def rows_of(rank):
    """Uneven, and none on one rank."""
    return (3 * rank + 2) % 5


def part(rank, dtype=np.float32, rows=None, columns=3):
    n = rows_of(rank) if rows is None else rows
    return (np.arange(n * columns).reshape(n, columns) + 100 * rank).astype(dtype)


def expected(comm, root, parts):
    whole = np.concatenate(parts)
    return [plain(whole if rank == root else whole[:0]) for rank in range(comm.size)]


def goes_on(hvdata, comm, root=0, name=None):
    """After an error the next call works."""
    got = results(comm, lambda: hvdata.gather(part(comm.rank), root=root, name=name).numpy())
    assert [plain(one) for one in got] == expected(comm, root, [part(rank) for rank in range(comm.size)])


@pytest.mark.world(np=4)
@same_on_all_ranks(25)
@given(rows=st.lists(st.integers(0, 40), min_size=4, max_size=4), shape=st.lists(st.integers(0, 3), max_size=2),
       root=st.integers(0, 3), dtype=st.sampled_from([np.float64, np.uint8, object]))  # fmt: skip
def test_any_rows(hvdata, comm, rows, shape, root, dtype):
    def mine(rank):
        x = np.arange(rows[rank] * int(np.prod(shape))).reshape([rows[rank], *shape]) + rank
        return np.vectorize(lambda i: b"x" * (i % 70), otypes=[object])(x) if dtype is object else x.astype(dtype)

    root %= comm.size
    given_here = tf.constant(mine(comm.rank), tf.string if dtype is object else None)
    got = results(comm, lambda: hvdata.gather(given_here, root=root).numpy())
    whole = np.concatenate([mine(rank) for rank in range(comm.size)])
    wanted = [whole if rank == root else whole[:0] for rank in range(comm.size)]
    assert [one.tolist() for one in got] == [one.tolist() for one in wanted]


@pytest.mark.parametrize("how", ["eager", "tf.function", "TF1 graph"])
def test_gradient(hvdata, comm, root, how):
    """Every rank gets the rows of the root's gradient that are its own."""

    def loss(x):
        whole = hvdata.gather(x, root=root, name="gradient")
        weight = tf.cast(tf.range(tf.size(whole)), tf.float32)
        return tf.reduce_sum(tf.reshape(whole, [-1]) * weight)

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = loss(x)
        return tape.gradient(y, x)

    def in_a_graph():
        with tf.Graph().as_default(), v1.Session() as session:
            x = tf.constant(part(comm.rank))
            return session.run(tf.gradients(loss(x), x)[0])

    call = {"eager": gradient, "tf.function": tf.function(gradient)}.get(how)
    run = in_a_graph if call is None else lambda: call(tf.constant(part(comm.rank))).numpy()
    weights = np.arange(3 * sum(rows_of(rank) for rank in range(comm.size)), dtype=np.float32).reshape(-1, 3)
    for _ in range(2):
        got = results(comm, run)
        assert np.concatenate(got).tolist() == weights.tolist()
        assert [len(one) for one in got] == [rows_of(rank) for rank in range(comm.size)]


# ---- What is wrong.


@pytest.mark.parametrize("odd, says", [
    (tf.zeros([2, 4]), r"the ranks' tensors don't fit together: float \[2,3\] on rank 0 on \S+, float \[2,4\] on rank 1 on \S+\. All"),
    (tf.zeros([2, 3], tf.int64), r"float \[2,3\] on rank 0 on \S+, int64 \[2,3\] on rank 1 on \S+\."),
], ids=["shape", "dtype"])  # fmt: skip
def test_what_does_not_fit(hvdata, comm, root, several, odd, says):
    x = odd if comm.rank == 1 else tf.zeros([2, 3])
    raises_everywhere(comm, lambda: hvdata.gather(x, root=root), tf.errors.InvalidArgumentError, says)
    goes_on(hvdata, comm, root)


@pytest.mark.parametrize("wrong, says", [
    (3.0, "x is a scalar"), (object(), "x can't be made a tensor"), (Unwilling(), "x can't be made a tensor.*requires grad"),
], ids=["scalar", "no tensor", "unwilling"])  # fmt: skip
def test_refused_on_one_rank(hvdata, comm, root, wrong, says):
    """All ranks raise, and the next call works."""
    who = comm.size - 1
    x = wrong if comm.rank == who else tf.zeros([2])
    heard_everywhere(
        comm, lambda: hvdata.gather(x, root=root, name="refused"), who, ValueError, says, f"rank {who} on "
    )
    goes_on(hvdata, comm, root, "refused")


def test_gradient_of_a_gradient(hvdata, comm):
    x = tf.constant([1.0, 2.0]) + comm.rank
    got = results(comm, lambda: gradient_of_a_gradient(x, hvdata.gather).numpy().tolist())
    assert got == [[6.0 * (rank + 1), 6.0 * (rank + 2)] for rank in range(comm.size)]


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

    raises_everywhere(comm, short, tf.errors.ResourceExhaustedError, rf"\[rank {root} on ")
    assert results(comm, lambda: len(hvdata.gather(part, root=root, name="large")))[root] == 256 << 20


@pytest.mark.slow
def test_a_scalar_that_only_the_kernel_sees(hvdata, comm):
    gather = tf.function(lambda x: hvdata.gather(x, name="unknown"), input_signature=[tf.TensorSpec(None)])
    x = tf.constant(1.0) if comm.rank == 0 else tf.zeros([1])
    says = r"\[rank 0 on \S+, gather 'unknown'\] a scalar has no rows to gather"
    raises_everywhere(comm, lambda: gather(x), tf.errors.InvalidArgumentError, says)
