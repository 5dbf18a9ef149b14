# SPDX-License-Identifier: Apache-2.0
"""even_batches, against plain Python that makes the same steps."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from heap import in_use
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod_data.pipeline import even_steps
from horovod_data.pipeline.even_batches import even_batches


def heaviest_first(costs):
    return sorted(range(len(costs)), key=lambda row: (-costs[row], row))


def padded(batch, costs):
    return len(batch) * costs[batch[0]]


def budget_batches(costs, max_cost):
    """The rows of each batch, and whether the last batch is full."""
    rows, batches, full = heaviest_first(costs), [], True
    while rows:
        fit = int(max_cost // costs[rows[0]])
        full = fit <= len(rows)
        batches.append(rows[:fit])
        rows = rows[fit:]
    return batches, full


class Oracle:
    """`windows`: for each window its full steps, in some order. `last`: the batches of the last step, if there is one.
    Batches are lists of row numbers."""

    def __init__(self, costs, ranks, window, max_cost=None, batch_size=None):
        self.ranks, self.max_cost, self.batch_size = ranks, max_cost, batch_size
        self.windows, waiting = [], []
        for start in range(0, len(costs), window):
            pool = waiting + list(range(start, min(start + window, len(costs))))
            steps, waiting = self.steps([costs[row] for row in pool], pool)
            self.windows.append(steps)
        steps, self.last = self.end([costs[row] for row in waiting], waiting)
        self.windows.append(steps)

    def steps(self, costs, pool):
        if self.batch_size:
            return self.steps_of_count(costs, pool)
        batches, full = budget_batches(costs, self.max_cost)
        incomplete = [] if full else [batches.pop()]
        return self.steps_of_batches(batches, incomplete, costs, pool)

    def steps_of_batches(self, batches, incomplete, costs, pool):
        batches = sorted(batches, key=lambda batch: -padded(batch, costs))
        steps = [batches[i : i + self.ranks] for i in range(0, len(batches) - self.ranks + 1, self.ranks)]
        left = sum(batches[len(steps) * self.ranks :] + incomplete, [])
        named = [[[pool[row] for row in batch] for batch in step] for step in steps]
        return named, sorted(pool[row] for row in left)

    def steps_of_count(self, costs, pool):
        rows, steps = heaviest_first(costs), []
        while len(rows) >= self.ranks * self.batch_size:
            step = [[] for _ in range(self.ranks)]
            for _ in range(self.batch_size):
                heavy, rows = rows[: self.ranks], rows[self.ranks :]
                lightest = sorted(range(self.ranks), key=lambda rank: (sum(costs[row] for row in step[rank]), rank))
                for rank, row in zip(lightest, heavy):
                    step[rank].append(row)
            steps.append([[pool[row] for row in batch] for batch in step])
        return steps, sorted(pool[row] for row in rows)

    def end(self, costs, pool):
        """The steps of the rows that wait at the end, and the batches of the last step."""
        if self.batch_size:
            rows = heaviest_first(costs)
            rounds = [rows[i : i + self.ranks] for i in range(0, len(rows), self.ranks)]
            batches = [[] for _ in range(self.ranks)]
            for number, row_of in enumerate(rounds):
                row_of = row_of + [None] * (self.ranks - len(row_of))
                for batch, row in zip(batches, row_of[::-1] if number % 2 else row_of):
                    batch += [] if row is None else [row]
            return [], [[pool[row] for row in batch] for batch in batches if batch]
        batches, _ = budget_batches(costs, self.max_cost)
        batches = sorted(batches, key=lambda batch: -padded(batch, costs))
        whole = len(batches) // self.ranks * self.ranks
        steps = [batches[i : i + self.ranks] for i in range(0, whole, self.ranks)]
        tail = batches[whole:]
        while 0 < len(tail) < self.ranks and any(len(batch) > 1 for batch in tail):
            which = max(range(len(tail)), key=lambda i: padded(tail[i], costs) if len(tail[i]) > 1 else -1)
            batch, half = tail[which], len(tail[which]) - len(tail[which]) // 2
            tail[which] = batch[:half]
            tail.append(batch[half:])
        named = lambda batches: [[pool[row] for row in batch] for batch in batches]
        return [named(step) for step in steps], named(tail)


def rows_of(costs):
    return tf.data.Dataset.from_tensor_slices((tf.range(len(costs)), tf.constant(costs, tf.float64)))


def batches_of(costs, **arguments):
    dataset = rows_of(costs).apply(even_batches(lambda _, cost: cost, **arguments))
    return [rows.tolist() for rows, _ in dataset.as_numpy_iterator()]


def divided(costs, *, ranks, window, seed=0, **how):
    """Does what batches_of() does, but a Python loop runs TensorFlow's ops one by one, without tf.data."""
    name, value = how.popitem()
    divide = {"max_cost": even_steps.by_budget, "batch_size": even_steps.by_count}[name]
    batches, waiting, steps = [], [], 0
    for start in [*range(0, len(costs), window), None]:
        last = start is None
        pool = waiting if last else waiting + list(range(start, min(start + window, len(costs))))
        pool_costs = tf.constant([costs[row] for row in pool], tf.float64)
        first = tf.constant(steps, tf.int64)
        rows, sizes, kept, more = divide(pool_costs, value, ranks, tf.constant(last), first, seed)
        batches += [[pool[row] for row in batch] for batch in tf.RaggedTensor.from_row_lengths(rows, sizes).to_list()]
        waiting, steps = [pool[row] for row in kept], steps + int(more)
    return batches


def check(costs, got, ranks, **arguments):
    """The batches are the oracle's. The steps of a window come in some order, and turned."""
    assert sorted(sum(got, [])) == list(range(len(costs)))
    right, done = Oracle(costs, ranks, **arguments), 0
    for window in right.windows:
        for _ in range(len(window)):
            step, got, turn = got[:ranks], got[ranks:], done % ranks
            window.remove(step[turn:] + step[:turn])
            done += 1
    assert got == right.last


lists_of_costs = st.lists(st.integers(1, 40).map(float), max_size=120)


@settings(max_examples=60, deadline=None)
@given(lists_of_costs, st.integers(1, 4), st.integers(1, 130), st.integers(40, 200), st.integers(0, 5))
def test_budgets_are_those_of_plain_python(costs, ranks, window, max_cost, seed):
    arguments = {"ranks": ranks, "window": window, "max_cost": max_cost}
    check(costs, divided(costs, seed=seed, **arguments), **arguments)


@settings(max_examples=60, deadline=None)
@given(lists_of_costs, st.integers(1, 4), st.integers(1, 6), st.integers(0, 50), st.integers(0, 5))
def test_counts_are_those_of_plain_python(costs, ranks, batch_size, more, seed):
    arguments = {"ranks": ranks, "window": ranks * batch_size + more, "batch_size": batch_size}
    check(costs, divided(costs, seed=seed, **arguments), **arguments)


@pytest.mark.parametrize("how", [{"max_cost": 4000}, {"batch_size": 16}])
@pytest.mark.parametrize("rows", [150, 1000])
def test_the_stages_of_tf_data_make_the_same(rows, how):
    costs, arguments = lengths(1, rows), {"ranks": 3, "window": 200, **how}
    got = batches_of(costs, seed=3, **arguments)
    check(costs, got, **arguments)
    assert got == divided(costs, seed=3, **arguments)


def lengths(sigma, rows, seed=1):
    """Log-normal, with a median of 100, and not above 4000."""
    drawn = np.random.default_rng(seed).lognormal(np.log(100), sigma, rows)
    return np.minimum(np.maximum(drawn, 1), 4000).astype(int).tolist()


def evenness(costs, batches, ranks, padded_cost=True):
    """Max over mean of the batches' costs in a step, averaged over steps by their cost, without the last step."""
    cost = (lambda b: len(b) * max(costs[r] for r in b)) if padded_cost else (lambda b: sum(costs[r] for r in b))
    steps = [[cost(b) for b in batches[i : i + ranks]] for i in range(0, len(batches) - ranks, ranks)]
    return sum(map(max, steps)) / sum(map(np.mean, steps))


@pytest.mark.parametrize("sigma, ranks", [pytest.param(0.6, 8, marks=pytest.mark.slow), (1, 4)])
def test_batches_are_even_and_filled(sigma, ranks):
    costs, budget = lengths(sigma, 20_000), 16384
    got = batches_of(costs, ranks=ranks, window=10_000, max_cost=budget)
    padded_costs = [len(b) * max(costs[r] for r in b) for b in got[:-ranks]]
    assert max(padded_costs) <= budget
    assert np.mean(padded_costs) >= 0.97 * budget
    assert evenness(costs, got, ranks) <= 1.05
    assert sum(padded_costs) <= 1.05 * sum(costs[r] for b in got[:-ranks] for r in b)
    counted = batches_of(costs, ranks=ranks, window=4096, batch_size=64)
    assert evenness(costs, counted, ranks, padded_cost=False) <= 1.05


def test_the_heaviest_batch_goes_to_each_rank_in_turn():
    got = batches_of([float(cost) for cost in range(1, 1 + 64)], ranks=4, window=64, batch_size=1)
    heaviest = [int(np.argmax(got[i : i + 4])) for i in range(0, 64, 4)]
    assert heaviest == [0, 1, 2, 3] * 4


def test_steps_of_a_window_are_shuffled_by_the_seed():
    costs = [float(cost) for cost in range(1, 1 + 64)]
    orders = [batches_of(costs, ranks=1, window=64, batch_size=1, seed=seed) for seed in (None, 0, 1, 1)]
    assert orders[0] == orders[1] != orders[2] == orders[3]
    assert orders[1] not in (sorted(orders[1]), sorted(orders[1])[::-1])


def all_kinds(rows=50):
    """Rows of every kind of component, as long as their number modulo 7."""

    def row(i):
        n = i % 7
        return {
            "text": tf.strings.as_string(tf.range(n)),
            "matrix": tf.fill([n, 2], tf.cast(i, tf.float32)),
            "number": i,
            "flag": tf.constant(True),
        }

    return tf.data.Dataset.range(rows).map(row)


def told(batches):
    return [
        str(tf.nest.map_structure(lambda t: t.numpy().tolist(), batch, expand_composites=True)) for batch in batches
    ]


def test_components_of_all_kinds_are_padded():
    even = even_batches(lambda row: tf.size(row["text"]) + 1, ranks=2, window=20, max_cost=30)
    dataset = all_kinds().apply(even)
    assert dataset.element_spec["text"] == tf.TensorSpec([None, None], tf.string)
    assert dataset.element_spec["matrix"] == tf.TensorSpec([None, None, 2], tf.float32)
    seen = []
    for batch in dataset.as_numpy_iterator():
        longest = max(i % 7 for i in batch["number"])
        assert batch["text"].shape[1] == longest and batch["flag"].all()
        for text, matrix, i in zip(batch["text"], batch["matrix"], batch["number"]):
            n = i % 7
            assert text.tolist() == [str(k).encode() for k in range(n)] + [b""] * (longest - n)
            assert (matrix[:n] == i).all() and (matrix[n:] == 0).all()
        seen += batch["number"].tolist()
    assert sorted(seen) == list(range(50))


def test_padding_is_that_of_padded_batch():
    rows = tf.data.Dataset.range(12).map(lambda i: (tf.repeat(i, i), i))
    even = even_batches(lambda x, _: tf.size(x) + 1, ranks=2, window=12, batch_size=3, padded_shapes=([15], []),
                        padding_values=(np.int64(-1), None))  # fmt: skip
    for x, i in rows.apply(even).as_numpy_iterator():
        assert x.shape == (3, 15) and [(row != -1).sum() for row in x] == i.tolist()


def test_ragged_and_sparse_rows():
    ragged = tf.ragged.constant([[[1], [2, 3]], [[4]], [], [[], [5]]] * 3)
    sparse = tf.sparse.from_dense(np.eye(12, dtype=np.int32))
    dataset = tf.data.Dataset.from_tensor_slices((ragged, sparse, tf.range(12)))
    even = even_batches(lambda x, *_: x.nrows() + 1, ranks=2, window=8, batch_size=2)
    seen = []
    for x, y, i in dataset.apply(even):
        for row, at, number in zip(x, tf.sparse.to_dense(y), i):
            assert row.to_list() == ragged[int(number)].to_list() and at[number] == 1
        seen += i.numpy().tolist()
    assert sorted(seen) == list(range(12))
    rows = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 2], [], [3, 3, 3]]))
    batches = rows.apply(even_batches(tf.size, ranks=1, window=4, batch_size=2)).as_numpy_iterator()
    assert sorted(batch.tolist() for batch in batches) == [[[1], [0]], [[3, 3, 3], [2, 2, 0]]]


@pytest.mark.parametrize("how", [{"max_cost": 8.0}, {"batch_size": 8}])
def test_one_window_is_in_memory(how):
    """The next window is collected when the last batch of a window has left."""
    window, length = 96, 50_000  # int32: 200 kB a row
    pulled = [0]

    def pull(i):
        pulled[0] += 1
        return i

    def row(i):
        return tf.fill([length], tf.cast(tf.ensure_shape(tf.numpy_function(pull, [i], tf.int64), []), tf.int32))

    rows = tf.data.Dataset.range(4 * window).map(row)
    dataset = rows.apply(even_batches(lambda x: 1.0, ranks=2, window=window, **how))
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # batches ahead of the program
    before, most, seen = in_use(), 0, []
    for number, batch in enumerate(dataset.with_options(options)):
        seen += batch[:, 0].numpy().tolist()
        assert pulled[0] <= (number * 8 // window + 1) * window + 16, "rows of the next window"
        most = max(most, in_use() - before)
    assert sorted(seen) == list(range(4 * window))
    assert most < 1.4 * 4 * window * length, f"{most / (4 * window * length):.2f} windows"


@pytest.mark.parametrize("how", [{"max_cost": 30}, {"batch_size": 3}])
def test_an_iterator_is_restored_anywhere(how, tmp_path):
    dataset = all_kinds(40).apply(even_batches(lambda row: tf.size(row["text"]) + 1, ranks=2, window=16, **how))
    whole = told(dataset)
    assert len(whole) > 6
    for taken in range(0, len(whole) + 1, 3):
        it = iter(dataset)
        for _ in range(taken):
            next(it)
        path = tf.train.Checkpoint(iterator=it).write(str(tmp_path / str(taken)))
        again = iter(dataset)
        tf.train.Checkpoint(iterator=again).read(path).assert_consumed()
        assert told(again) == whole[taken:]


@pytest.mark.parametrize("rows, ranks, how", [(0, 2, {"max_cost": 5}), (0, 2, {"batch_size": 2}), (1, 3, {"max_cost": 5}),
                                              (2, 3, {"batch_size": 1})])  # fmt: skip
def test_few_rows(rows, ranks, how):
    assert sum(batches_of([1.0] * rows, ranks=ranks, window=8, **how), []) == list(range(rows))


def test_an_endless_input():
    numbers = tf.data.Dataset.range(1, 100).repeat()
    got = numbers.apply(even_batches(lambda i: i, ranks=2, window=64, max_cost=200)).take(500)
    assert all(len(batch) * max(batch) <= 200 for batch in got.as_numpy_iterator())


@pytest.mark.parametrize("cost, how, text", [
    (-1.0, {"max_cost": 9}, "cost= returned -1 for row 21, but with max_cost= costs are more than 0, and finite"),
    (0.0, {"max_cost": 9}, "cost= returned 0 for row 21, but with max_cost="),
    (np.nan, {"max_cost": 9}, "cost= returned nan for row 21"),
    (np.nan, {"batch_size": 2}, "cost= returned nan for row 21, but costs are 0 or more"),
    (np.inf, {"batch_size": 2}, "cost= returned inf for row 21"),
    (-0.5, {"batch_size": 2}, "cost= returned -0.5 for row 21"),
    (9.5, {"max_cost": 9}, "cost= returned 9.5 for row 21, but max_cost is 9. Raise it"),
])  # fmt: skip
def test_costs_that_are_refused(cost, how, text):
    costs = [1.0] * 21 + [cost] + [1.0] * 20
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        batches_of(costs, ranks=2, window=10, **how)


@pytest.mark.parametrize("arguments, kind, text", [
    ({}, ValueError, "max_cost or batch_size, and got neither of them"),
    ({"max_cost": 1, "batch_size": 1}, ValueError, "max_cost or batch_size, and got both"),
    ({"max_cost": 0}, ValueError, "max_cost=0 is not a finite number above 0"),
    ({"max_cost": "many"}, TypeError, "max_cost='many' is not a number"),
    ({"batch_size": 0}, ValueError, "batch_size must be a whole number of 1 or more, not 0"),
    ({"max_cost": 1, "ranks": 0}, ValueError, "ranks must be a whole number of 1 or more, not 0"),
    ({"max_cost": 1, "window": True}, ValueError, "window must be a whole number of 1 or more, not True"),
    ({"max_cost": 1, "seed": 0.5}, ValueError, "seed must be a whole number"),
    ({"max_cost": 1, "seed": 2**63}, ValueError, "seed=9223372036854775808 has more than 64 bits"),
    ({"batch_size": 5}, ValueError, "window=8 is less than 10 rows, which is a step of 2 batches of 5"),
    ({"max_cost": 1, "cost": 3}, TypeError, "cost=3 is not a function"),
    ({"max_cost": 1, "cost": lambda x: x[None]}, ValueError, r"cost= returned a tensor of shape \(1,\)"),
    ({"max_cost": 1, "cost": lambda x: None}, ValueError, "cost= returned a NoneType, not a number. Return one number"),
    ({"max_cost": 1, "cost": lambda x: {"cost": x}}, ValueError, "cost= returned a dict, not a number"),
    ({"max_cost": 1, "cost": tf.strings.as_string}, ValueError, "cost= returned a tensor of string, not a number"),
    ({"max_cost": 1, "cost": lambda x: tf.complex(1.0, 1.0)}, ValueError, "cost= returned a tensor of complex64"),
])  # fmt: skip
def test_arguments_that_are_refused(arguments, kind, text):
    given = {"cost": lambda x: x, "ranks": 2, "window": 8, **arguments}
    with pytest.raises(kind, match=text):
        tf.data.Dataset.range(3).apply(even_batches(given.pop("cost"), **given))


def test_rows_with_none_are_refused():
    rows = tf.data.Dataset.range(3).map(lambda i: (i, None))
    with pytest.raises(
        TypeError, match="rows with None, which padded_batch.* does not take. Leave None out of the rows"
    ):
        rows.apply(even_batches(lambda i, _: i, ranks=1, window=2, batch_size=1))
