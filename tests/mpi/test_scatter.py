# SPDX-License-Identifier: Apache-2.0
"""hvdata.scatter: rows of the root's tensor, disjoint, to every rank; its gradient gathers them at the root."""

import re
import threading

import numpy as np
import pytest
import tensorflow as tf
from ranks.slowness import slowness
from together import Raised, gradient_of_a_gradient, host_of, outcomes, plain, raises_everywhere, results

pytestmark = pytest.mark.world(np=3)

v1 = tf.compat.v1


@pytest.fixture(params=["first", "last"])
def root(request, comm):
    return {"first": 0, "last": comm.size - 1}[request.param]


def table(rows, columns=3, dtype=np.float32):
    return np.arange(rows * columns).reshape(rows, columns).astype(dtype)


def mine(comm, root, x):
    """The arguments of this rank: x on the root, None on others."""
    return {"x": x} if comm.rank == root else {"x": None, "dtype": tf.as_dtype(x.dtype)}


def uneven(n):
    """Splits that differ, one of them zero."""
    return [(3 * rank + 2) % 5 for rank in range(n)]


def cut(x, splits):
    return np.split(x, np.cumsum(splits)[:-1])


def test_eager(hvdata, comm, root):
    x = table(6 * comm.size)
    got = results(comm, lambda: hvdata.scatter(**mine(comm, root, x), root=root).numpy())
    assert [plain(part) for part in got] == [plain(part) for part in np.split(x, comm.size)]


def test_splits(hvdata, comm, root):
    splits = uneven(comm.size)
    x = table(sum(splits))
    got = results(comm, lambda: hvdata.scatter(**mine(comm, root, x), splits=splits, root=root).numpy())
    assert [plain(part) for part in got] == [plain(part) for part in cut(x, splits)]


@pytest.mark.world(np=2)
@pytest.mark.parametrize("splits", [[1.9], np.array([2.0]), tf.constant([True]), ["a"], [[1]]],
                         ids=["floats", "whole floats", "bools", "texts", "two axes"])  # fmt: skip
@pytest.mark.parametrize("name", [None, "not-whole"])
def test_splits_that_are_no_whole_numbers(hvdata, comm, root, splits, name):
    """Only the root can see it. Every rank raises, and the next call works."""
    splits = splits * comm.size if isinstance(splits, list) else tf.tile(splits, [comm.size])
    got = outcomes(comm, lambda: hvdata.scatter(table(comm.size), splits=splits, root=root, name=name))
    for rank, one in enumerate(got):
        assert isinstance(one, Raised) and one.kind is (
            TypeError if rank == root else tf.errors.InvalidArgumentError
        ), one
        assert re.search(rf"\[rank {root} on \S+\] splits=.* are not whole numbers, one for each rank\. Pass the number of rows",
                         one.text, re.S), one  # fmt: skip
    assert results(comm, lambda: len(hvdata.scatter(table(comm.size), root=root, name=name))) == [1] * comm.size


def test_the_root_has_no_tensor(hvdata, comm, root):
    got = outcomes(comm, lambda: hvdata.scatter(None, dtype=tf.float32, root=root))
    for rank, one in enumerate(got):
        assert isinstance(one, Raised) and one.kind is (
            ValueError if rank == root else tf.errors.InvalidArgumentError
        ), one
        assert "x is None on the root" in one.text
    assert results(comm, lambda: len(hvdata.scatter(table(comm.size)))) == [1] * comm.size


def test_arguments_refused_on_another_rank(hvdata, comm):
    """The others get their rows and don't wait for that rank."""
    if comm.size == 1:
        pytest.skip("there is no other")
    wrong = {"x": None} if comm.rank == 1 else {"x": table(comm.size)}
    for name in None, "refused":
        got = outcomes(comm, lambda name=name: len(hvdata.scatter(**wrong, name=name)))
        assert [one for rank, one in enumerate(got) if rank != 1] == [1] * (comm.size - 1)
        assert isinstance(got[1], Raised) and got[1].kind is ValueError and "so dtype must be given" in got[1].text
        assert results(comm, lambda name=name: len(hvdata.scatter(table(comm.size), name=name))) == [1] * comm.size


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("name", [None, "wrong-root"])
def test_a_wrong_root_on_one_rank(hvdata, comm, name):
    """The wrong call counts as a call with root 0, so the next call gets its own rows."""
    for who, wrong, kind in ((1, comm.size, ValueError), (1, "0", TypeError), (0, -1, ValueError)):
        got = outcomes(
            comm,
            lambda who=who, wrong=wrong: len(
                hvdata.scatter(table(comm.size), root=wrong if comm.rank == who else 0, name=name)
            ),
        )
        for rank, one in enumerate(got):
            if rank == who or who == 0:
                assert isinstance(one, Raised) and one.kind is (
                    kind if rank == who else tf.errors.InvalidArgumentError
                ), one
                assert f"root={wrong!r} is not " in one.text, one
            else:
                assert one == 1
        x = table(comm.size) + 100
        got = results(comm, lambda x=x: hvdata.scatter(x, name=name).numpy())
        assert [plain(part) for part in got] == [plain(part) for part in np.split(x, comm.size)]


@pytest.mark.ranks(3)
def test_a_wrong_root_where_the_others_have_another(hvdata, comm):
    got = outcomes(comm, lambda: hvdata.scatter(table(comm.size), root=9 if comm.rank == 1 else 2))
    for rank, one in enumerate(got):
        assert isinstance(one, Raised) and one.kind is (ValueError if rank == 1 else tf.errors.InvalidArgumentError), (
            one
        )
    assert results(comm, lambda: len(hvdata.scatter(table(comm.size), root=2))) == [1] * comm.size


@pytest.mark.parametrize("kind", ["variant", "resource"])
def test_what_can_not_be_sent(hvdata, comm, root, kind):
    """The root checks its tensor, the others their dtype."""

    def tensor():
        if kind == "variant":
            return tf.data.experimental.to_variant(tf.data.Dataset.range(3))[tf.newaxis]
        return tf.raw_ops.VarHandleOp(dtype=tf.int32, shape=[], shared_name="unsent")

    dtype = {"variant": tf.variant, "resource": tf.resource}[kind]
    for others in (dtype, tf.float32):
        got = outcomes(
            comm,
            lambda others=others: hvdata.scatter(
                **({"x": tensor()} if comm.rank == root else {"x": None, "dtype": others}), root=root
            ),
        )
        for rank, one in enumerate(got):
            sees = rank == root or others is dtype
            assert isinstance(one, Raised) and one.kind is (TypeError if sees else tf.errors.InvalidArgumentError), one
            says = "would be" if sees and rank != root else "is"
            assert (
                f"x {says} a tensor of {kind}, which can't be sent to another rank. Pass a tensor of numbers, bools or strings."
                in one.text
            ), one
    assert results(comm, lambda: len(hvdata.scatter(table(comm.size), root=root))) == [1] * comm.size


def test_splits_whose_sum_is_beyond_all_numbers(hvdata, comm):
    if comm.size == 1:
        pytest.skip("a single number does not overflow")
    splits = {2: [2**63 - 1, 2], 3: [2**63 - 1, 2**63 - 1, 6], 4: [2**62] * 4}[comm.size]
    raises_everywhere(
        comm,
        lambda: hvdata.scatter(tf.zeros([4 if comm.size == 3 else 0, 3]), splits=splits),
        tf.errors.InvalidArgumentError,
        "splits=.*add up",
    )


def test_every_rank_may_pass_a_tensor(hvdata, comm):
    """Only the root's tensor counts."""
    x = table(4 * comm.size) + 1000 * comm.rank
    got = results(comm, lambda: hvdata.scatter(x).numpy())
    assert [plain(part) for part in got] == [plain(part) for part in np.split(table(4 * comm.size), comm.size)]


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "bfloat16", "complex64", "string"])
def test_dtypes(hvdata, comm, dtype):
    dtype = tf.as_dtype(dtype)
    x = table(2 * comm.size)
    x = (
        np.array([b"\0%d" % int(i) for i in x.ravel()], object)
        if dtype == tf.string
        else x.astype(dtype.as_numpy_dtype)
    )
    source = {"x": x} if comm.rank == 0 else {"x": None, "dtype": dtype}
    got = results(comm, lambda: hvdata.scatter(**source).numpy())
    assert [plain(part) for part in got] == [plain(part) for part in np.split(x, comm.size)]


@pytest.mark.world(np=4)
def test_large_and_empty(hvdata, comm):
    for rows in 0, 200_000:
        x = table(rows * comm.size)
        got = results(comm, lambda: hvdata.scatter(**mine(comm, 0, x)).numpy())
        assert [plain(part) for part in got] == [plain(part) for part in np.split(x, comm.size)]


def test_tf_function(hvdata, comm, root):
    x = table(2 * comm.size)

    @tf.function
    def double(value=None):
        source = {"x": value} if value is not None else {"x": None, "dtype": tf.float32}
        return 2 * hvdata.scatter(**source, root=root)

    for epoch in range(3):
        got = results(comm, lambda: (double(tf.constant(x + epoch)) if comm.rank == root else double()).numpy())
        assert [plain(part) for part in got] == [plain(2 * part) for part in np.split(x + epoch, comm.size)]


def test_v1_graph(hvdata, comm, root):
    x = table(3 * comm.size)

    def run():
        with tf.Graph().as_default(), v1.Session() as session:
            if comm.rank == root:
                value = v1.placeholder(tf.float32, [None, 3])
                part = hvdata.scatter(value, root=root)
                return [session.run(part, {value: x + i}) for i in range(3)]
            part = hvdata.scatter(None, dtype=tf.float32, root=root)
            return [session.run(part) for _ in range(3)]

    got = results(comm, run)
    for i in range(3):
        assert [plain(parts[i]) for parts in got] == [plain(part) for part in np.split(x + i, comm.size)]


@pytest.mark.world(np=4)
def test_in_flight_in_different_orders(hvdata, comm):
    """Named scatters match by name, so every rank may issue them in its own order."""
    names = [f"in-flight-{i}" for i in range(5)]
    order = np.random.default_rng(comm.rank).permutation(len(names))
    x = {name: table(2 * comm.size) + 100 * i for i, name in enumerate(names)}
    got = {}

    def one(name):
        got[name] = hvdata.scatter(**mine(comm, 0, x[name]), name=name).numpy()

    def run():
        threads = [threading.Thread(target=one, args=(names[i],)) for i in order]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return got

    for rank, parts in enumerate(results(comm, run)):
        assert sorted(parts) == names
        for name in names:
            assert plain(parts[name]) == plain(np.split(x[name], comm.size)[rank])


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("name", ["scatter", "scatter0", "0"])
def test_a_name_never_meets_calls_without_one(hvdata, comm, name):
    """Also a name like those in error texts for calls without a name, and in a graph where each rank has another
    order."""
    x = table(2 * comm.size)

    def calls(order=(0, 1), **more):
        both = [lambda: hvdata.scatter(**mine(comm, 0, x), name=name), lambda: hvdata.scatter(**mine(comm, 0, x + 100))]
        got = {i: both[i]() for i in order}
        return [got[0], got[1]]

    def in_graph():
        with tf.Graph().as_default(), v1.Session() as session:
            return session.run(calls([0, 1] if comm.rank == 0 else [1, 0]))

    for run in (lambda: [part.numpy() for part in calls()], in_graph):
        for rank, parts in enumerate(results(comm, run)):
            assert [plain(part) for part in parts] == [plain(np.split(y, comm.size)[rank]) for y in (x, x + 100)]


@pytest.mark.slow
@pytest.mark.ranks(2, 3)
@pytest.mark.alone(
    HOROVOD_DATA_STALL_SECONDS="2", HOROVOD_DATA_TIMEOUT=str(round(6 * slowness()))
)  # for init() as well
def test_calls_that_block_and_cross_name_both_ranks(hvdata, comm, capfd):
    """Each rank has one thread and calls two roots in opposite orders. Each waits for the other until the time
    limit."""
    last = comm.size - 1
    x = table(comm.size)

    def run():
        calls = {name: lambda root=root, name=name: hvdata.scatter(**mine(comm, root, x), root=root, name=name).numpy()
                 for name, root in (("crossed-a", 0), ("crossed-b", last))}  # fmt: skip
        for name in sorted(calls, reverse=comm.rank > 0):
            calls[name]()

    comm.Barrier()
    got = outcomes(comm, run)
    assert all(isinstance(one, Raised) and one.kind is tf.errors.DeadlineExceededError for one in got), got
    lines = comm.allgather(capfd.readouterr().err)
    others = ", ".join(f"rank {rank} on {host_of(rank)}" for rank in range(1, comm.size))
    for text in (lines[0], got[0].text):
        assert f"[rank 0 on {host_of(0)}, scatter 'crossed-a', call 0] has waited" in text, text
        assert (
            f"for {others}, which has not made this call; rank {last} on {host_of(last)} waits in scatter 'crossed-b', call 0, "
            in text
        )
    assert "same order. Every rank must make the same scatter calls; the limit is" in got[0].text, got[0].text
    assert re.search(
        rf"\[rank {last} on \S+, scatter 'crossed-b', call 0\] has waited \d+ s for rank 0 on {host_of(0)}, which",
        lines[last],
    )

    def run_swapped():  # neither waiting rank is the root of its own call: each waits for the other's part
        calls = {name: lambda root=root, name=name: hvdata.scatter(**mine(comm, root, x), root=root, name=name).numpy()
                 for name, root in (("again-a", last), ("again-b", 0))}  # fmt: skip
        for name in sorted(calls, reverse=comm.rank > 0):
            calls[name]()

    comm.Barrier()
    got = outcomes(comm, run_swapped)
    assert all(isinstance(one, Raised) and one.kind is tf.errors.DeadlineExceededError for one in got), got
    for rank, other, call in ((0, last, "b"), (last, 0, "a")):
        assert re.search(
            rf"has waited \d+ s for rank {other} on {host_of(other)}, which has not sent its part; rank {other} on "
            rf"{host_of(other)} waits in scatter 'again-{call}', call 0, which this rank has not made",
            got[rank].text,
        ), got


def test_several_in_one_tf_function(hvdata, comm):
    """TensorFlow runs independent ops in any order."""
    x = [table(2 * comm.size) + 10 * i for i in range(8)]

    @tf.function
    def all_of_them():
        return [hvdata.scatter(**mine(comm, 0, value), name=f"together-{i}") for i, value in enumerate(x)]

    for _ in range(3):
        got = results(comm, lambda: [part.numpy() for part in all_of_them()])
        for rank, parts in enumerate(got):
            assert [plain(part) for part in parts] == [plain(np.split(value, comm.size)[rank]) for value in x]


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
        else:  # what the others passed played no part
            assert got is None or not np.any(got)


@pytest.mark.parametrize("shape", [[5, 3], [2, 4], [2], []], ids=str)
def test_a_gradient_of_another_shape(hvdata, comm, root, shape):
    """The last rank's program made the gradient. That rank raises, and so does the root, which waits for it."""
    who = comm.size - 1

    def gradient(wrong):
        value = tf.constant(table(2 * comm.size, 3)) if comm.rank == root else tf.zeros([0, 3])
        with tf.GradientTape() as tape:
            tape.watch(value)
            y = hvdata.scatter(value, root=root, name="odd")
        return tape.gradient(
            y, value, output_gradients=tf.ones(shape if wrong and comm.rank == who else [2, 3])
        ).numpy()

    for rank, got in enumerate(outcomes(comm, lambda: gradient(True))):
        if rank not in (root, who):
            assert not np.any(got)
            continue
        assert isinstance(got, Raised) and got.kind is tf.errors.InvalidArgumentError, got
        shown = ",".join(map(str, shape))
        assert re.search(
            rf"\[rank {who} on \S+, gradient of scatter 'odd'\] the gradient has shape \[{shown}\], but what the call "
            r"returned has shape \[2,3\]\. Pass output_gradients of that shape",
            got.text,
        ), got.text
    assert results(comm, lambda: gradient(False))[root].tolist() == [[1.0] * 3] * (2 * comm.size)


class Unwilling:
    def __array__(self, *_, **__):
        raise RuntimeError("requires grad")


def test_what_raises_an_error_of_its_own_kind(hvdata, comm, root):
    """The call counts, as any call with a wrong argument."""
    for call, name in (hvdata.scatter, "scatter"), (hvdata.gather, "gather"):
        got = outcomes(
            comm,
            lambda call=call, name=name: call(
                Unwilling() if comm.rank == root else tf.zeros([2]), root=root, name=f"odd {name}"
            ),
        )
        for rank, one in enumerate(got):
            assert isinstance(one, Raised) and "x can't be made a tensor" in one.text and "requires grad" in one.text, (
                one
            )
            assert one.kind is (ValueError if rank == root else tf.errors.InvalidArgumentError), one
    x = table(2 * comm.size)
    got = results(comm, lambda: hvdata.scatter(**mine(comm, root, x), root=root, name="odd scatter").numpy())
    assert [plain(part) for part in got] == [plain(part) for part in np.split(x, comm.size)]


def test_no_gradient_of_its_gradient(hvdata, comm):
    """The root raises, because only the root has the gradient."""
    x = tf.range(2.0 * comm.size) if comm.rank == 0 else tf.zeros([0])
    first, *others = outcomes(comm, lambda: gradient_of_a_gradient(x, hvdata.scatter))
    assert first.kind is LookupError and re.search(
        r"rank 0 on \S+\] scatter\(\) has no second gradient: .*\. Compute what needs it", first.text
    ), first
    assert others == [None] * (comm.size - 1)


def test_gradient_through_layers(hvdata, comm):
    """The root's variables get the gradient of every rank's loss: the same as one process with the whole batch."""
    x = np.random.default_rng(1).normal(size=(4 * comm.size, 3)).astype(np.float32)
    w = tf.Variable(tf.ones([3, 2]))

    def run():
        with tf.GradientTape() as tape:
            hidden = tf.constant(x) @ w if comm.rank == 0 else tf.zeros([0, 2])
            tape.watch(hidden)
            loss = tf.reduce_sum(tf.tanh(hvdata.scatter(hidden, name="through-layers")))
        return tape.gradient(loss, w if comm.rank == 0 else hidden)

    got = results(comm, lambda: None if (one := run()) is None else one.numpy())[0]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.tanh(tf.constant(x) @ w))
    np.testing.assert_allclose(got, tape.gradient(loss, w), rtol=1e-5)


def test_splits_that_do_not_add_up(hvdata, comm):
    splits = [2] * comm.size
    x = table(2 * comm.size + 1)
    raises_everywhere(
        comm, lambda: hvdata.scatter(**mine(comm, 0, x), splits=splits, name="bad-sum"), Exception,
        "splits", rf"\b{2 * comm.size}\b", rf"\b{2 * comm.size + 1}\b",
    )  # fmt: skip


@pytest.mark.world(np=2)
@pytest.mark.parametrize(
    "change", [lambda s: s + [1], lambda s: s[1:], lambda s: [-1, *s[1:]]], ids=["more", "fewer", "<0"]
)
def test_wrong_splits(hvdata, comm, change):
    splits = change([2] * comm.size)
    x = table(2 * comm.size)
    raises_everywhere(
        comm, lambda: hvdata.scatter(**mine(comm, 0, x), splits=splits), (ValueError, tf.errors.OpError), "splits"
    )


def test_wrong_arguments(hvdata, comm):
    x = table(comm.size)
    for root in (-1, comm.size):
        raises_everywhere(comm, lambda root=root: hvdata.scatter(x, root=root), ValueError, "root", str(root))
    for root in ("0", 0.0, True):
        raises_everywhere(comm, lambda root=root: hvdata.scatter(x, root=root), TypeError, f"root={root!r}", "0 to")
    parts = results(comm, lambda: hvdata.scatter(x, root=np.int64(comm.size - 1)).numpy())
    assert [plain(part) for part in parts] == [plain(x[rank : rank + 1]) for rank in range(comm.size)]
    raises_everywhere(comm, lambda: hvdata.scatter(None), ValueError, "x is None")
    for name, kind in ((7, TypeError), ("", ValueError), ("a\0", ValueError)):
        raises_everywhere(
            comm,
            lambda name=name: hvdata.scatter(x, name=name),
            kind,
            rf"\[rank \d on \S+\] name={re.escape(repr(name))} is ",
        )
    raises_everywhere(
        comm,
        lambda: hvdata.scatter(tf.ragged.constant([[1], []])),
        (TypeError, ValueError),
        r"\[rank \d on \S+\] x can't be made a tensor: .* Pass a tensor; of a ragged or sparse one",
    )
    raises_everywhere(
        comm,
        lambda: hvdata.scatter(tf.constant([1]), dtype=tf.float32),
        (TypeError, ValueError),
        r"\[rank \d on \S+\] x can't be made a tensor of float32: .* Pass a tensor",
    )
    raises_everywhere(
        comm, lambda: hvdata.scatter("\ud800"), ValueError, r"\[rank \d on \S+\] x can't be made a tensor: "
    )
    for value in (x, None if comm.rank else x):
        raises_everywhere(
            comm,
            lambda value=value: hvdata.scatter(value, dtype="numbers"),
            TypeError,
            r"\[rank \d on \S+\] dtype='numbers' is none of TensorFlow's\. Pass one, as in dtype=tf\.float32\.",
        )
    raises_everywhere(
        comm, lambda: hvdata.scatter(tf.constant(3.0) if comm.rank == 0 else None, dtype=tf.float32),
        (ValueError, tf.errors.OpError), "scalar|axis 0",
    )  # fmt: skip


def test_rows_that_ranks_do_not_divide(hvdata, comm, root):
    """Without splits the first ranks get one row more."""
    for rows in comm.size + 1, comm.size - 1:
        x = table(rows)
        got = results(comm, lambda: hvdata.scatter(**mine(comm, root, x), root=root).numpy())
        assert [plain(part) for part in got] == [plain(part) for part in np.array_split(x, comm.size)]


def test_ranks_that_disagree_on_dtype(hvdata, comm):
    if comm.size == 1:
        pytest.skip("one rank agrees with itself")
    source = {"x": table(comm.size)} if comm.rank == 0 else {"x": None, "dtype": tf.int32}
    got = []

    def run():
        got.append(hvdata.scatter(**source, name="other-dtype").numpy())

    # The root has sent by then and may be content; whoever receives says what came and what was expected.
    for rank, one in enumerate(outcomes(comm, run)):
        if rank > 0:
            assert isinstance(one, Raised) and "float" in one.text and "int32" in one.text, one


@pytest.fixture
def several(comm):
    if comm.size == 1:
        pytest.skip("one rank agrees with itself")


def test_ranks_that_disagree_on_the_root(hvdata, comm, several):
    """Each rank has its own root, or rank 0 differs from the others, or no rank is root. The next call works."""
    x = table(comm.size)
    for roots in (range(comm.size), [0] + [1] * (comm.size - 1), [(r + 1) % comm.size for r in range(comm.size)]):
        got = raises_everywhere(
            comm, lambda root=roots[comm.rank]: hvdata.scatter(x, root=root), tf.errors.InvalidArgumentError,
            "ranks disagree", "the same root",
        )  # fmt: skip
        for one in got:
            sides = re.findall(r"root=(\d+) on rank (\d+)", one.text)  # which two of them met is up to timing
            assert len({root for root, _ in sides}) == 2, one.text
            assert all(int(root) == roots[int(rank)] for root, rank in sides), one.text
        parts = results(comm, lambda: hvdata.scatter(x).numpy())
        assert [plain(part) for part in parts] == [plain(x[r : r + 1]) for r in range(comm.size)]


def test_named_ranks_that_disagree_on_the_root(hvdata, comm, several):
    """No rank gets a part before all have called with the same root."""
    root = 1 if comm.rank == 1 else 0
    got = raises_everywhere(comm, lambda: hvdata.scatter(table(comm.size), root=root, name="two-roots"),
                            tf.errors.InvalidArgumentError, "ranks disagree", "the same root")  # fmt: skip
    for one in got:
        sides = re.findall(r"root=(\d+) on rank (\d+)", one.text)  # which two of them met is up to timing
        assert {(root, rank == "1") for root, rank in sides} == {("0", False), ("1", True)}, one.text


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
            assert [plain(part) for part in parts[:3]] == [plain(k * mine) for k in (10, 100, 1000)]
            assert plain(parts[3]) == plain(np.stack([i * mine for i in range(3)]).astype(np.float32))


def test_eager_here_and_in_tf_function_there(hvdata, comm):
    """Calls without a name match in the order of the program, eager or traced."""

    def both(x):
        first = hvdata.scatter(x, dtype=tf.float32)
        return first, hvdata.scatter(None if x is None else -x, dtype=tf.float32)

    call = tf.function(both) if comm.rank % 2 else both
    x = table(2 * comm.size)
    got = results(comm, lambda: [part.numpy() for part in call(tf.constant(x) if comm.rank == 0 else None)])
    assert [[plain(p) for p in parts] for parts in got] == [[plain(p), plain(-p)] for p in np.split(x, comm.size)]


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
        got = results(
            comm, lambda x=x: [g.numpy() for g in gradients(tf.constant(x) if comm.rank == 0 else tf.zeros([0]))]
        )
        factors = np.repeat(np.arange(1.0, comm.size + 1), n)
        np.testing.assert_allclose(got[0][0], factors * (1 + 2 * x))
        np.testing.assert_allclose(got[0][1], 2 * x)


def test_several_without_names_in_one_v1_graph(hvdata, comm):
    """In a graph calls may run in any order, because each has a number in the graph. A rank may have built another
    graph before."""
    x = [table(2 * comm.size) + 10 * i for i in range(4)]

    def run():
        if comm.rank == 0:
            with tf.Graph().as_default():
                hvdata.scatter(x[0])
        with tf.Graph().as_default(), v1.Session() as session:
            return session.run([hvdata.scatter(**mine(comm, 0, value)) for value in x])

    for rank, parts in enumerate(results(comm, run)):
        assert [plain(part) for part in parts] == [plain(np.split(value, comm.size)[rank]) for value in x]
