# SPDX-License-Identifier: Apache-2.0
"""Which rows of a window make which batch: functions of TensorFlow's ops, for the stages of even_batches.py.

Rows are sorted by cost, the heaviest first, and rows of equal cost by position. A run is a batch of neighbours in that
order. A step is `ranks` batches of nearly equal cost.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf


class Runs(NamedTuple):
    """Batches, as two int32 vectors: where each batch starts in an order of rows, and its number of rows."""

    starts: tf.Tensor
    sizes: tf.Tensor

    def take(self, which: tf.Tensor) -> Runs:
        return Runs(tf.gather(self.starts, which), tf.gather(self.sizes, which))

    def then(self, other: Runs) -> Runs:
        return Runs(tf.concat([self.starts, other.starts], 0), tf.concat([self.sizes, other.sizes], 0))

    def rows(self) -> tf.Tensor:
        """The places of all rows in the order, batch by batch."""
        return tf.ragged.range(self.starts, self.starts + self.sizes).flat_values


class Division(NamedTuple):
    """The rows that leave a window, and those that stay. All tensors are int32."""

    rows: tf.Tensor  # the positions of the rows that leave, batch by batch
    sizes: tf.Tensor  # the number of rows of each batch
    kept: tf.Tensor  # the positions of the rows that wait for the next window, in the order of the input
    steps: tf.Tensor  # the full steps


def by_budget(costs: tf.Tensor, max_cost: float, ranks: int, last: tf.Tensor, first: tf.Tensor, seed: int) -> Division:
    """Batches whose padded size (rows x the heaviest row) costs at most `max_cost`.

    Args:
      costs: float64 [rows], each in (0, max_cost].
      ranks: the batches of a step.
      last: bool; no further window comes, so no row may stay.
      first: int64; the full steps before this window.
      seed: of the order of the steps.
    """
    order = _heaviest_first(costs)
    sorted_costs = tf.gather(costs, order)
    runs, full = _filled(sorted_costs, max_cost)
    batches = tf.size(runs.starts)
    whole = tf.where(last | full, batches, batches - 1)
    heaviest = _heaviest_first(_padded(runs, sorted_costs)[:whole])
    steps = whole // ranks
    fits = heaviest[: steps * ranks]
    # The rows of all other batches stay, or are cut into one more step.
    others = runs.take(tf.concat([heaviest[steps * ranks :], tf.range(whole, batches)], 0))
    tail = tf.cond(last, lambda: _halved(others, sorted_costs, ranks), _no_runs)
    kept = tf.cond(last, _no_rows, lambda: tf.sort(tf.gather(order, others.rows())))
    leaving = _in_turn(runs.take(fits), ranks, first, seed).then(tail)
    return Division(tf.gather(order, leaving.rows()), leaving.sizes, kept, steps)


def by_count(costs: tf.Tensor, batch_size: int, ranks: int, last: tf.Tensor, first: tf.Tensor, seed: int) -> Division:
    """Batches of `batch_size` rows. In a step the sums of their costs are nearly equal. Arguments as for by_budget."""
    order = _heaviest_first(costs)
    steps = tf.size(costs) // (batch_size * ranks)
    divided = steps * batch_size * ranks
    places = tf.reshape(tf.range(divided), [steps, batch_size, ranks])
    places = _balanced(tf.gather(tf.gather(costs, order), places), places)
    starts = tf.range(0, divided, batch_size)
    leaving = _in_turn(Runs(starts, tf.fill([steps * ranks], batch_size)), ranks, first, seed)
    rows = tf.gather(order, tf.gather(places, leaving.rows()))
    others = order[divided:]
    dealt, sizes = tf.cond(last, lambda: _dealt(others, ranks), lambda: (_no_rows(), _no_rows()))
    kept = tf.cond(last, _no_rows, lambda: tf.sort(others))
    return Division(tf.concat([rows, dealt], 0), tf.concat([leaving.sizes, sizes], 0), kept, steps)


def _no_rows() -> tf.Tensor:
    return tf.zeros([0], tf.int32)


def _no_runs() -> Runs:
    return Runs(_no_rows(), _no_rows())


def _heaviest_first(costs: tf.Tensor) -> tf.Tensor:
    return tf.argsort(costs, direction="DESCENDING", stable=True)


def _padded(runs: Runs, sorted_costs: tf.Tensor) -> tf.Tensor:
    """The cost of each batch: its rows times its heaviest row."""
    return tf.cast(runs.sizes, tf.float64) * tf.gather(sorted_costs, runs.starts)


def _filled(sorted_costs: tf.Tensor, max_cost: float) -> tuple[Runs, tf.Tensor]:
    """Cuts all rows into batches that are as long as the budget allows. Also returns whether the last batch is full."""
    rows = tf.size(sorted_costs)
    # One more than there are rows means that more rows would fit.
    fit = tf.cast(tf.minimum(tf.floor(max_cost / sorted_costs), tf.cast(rows + 1, tf.float64)), tf.int32)
    found = tf.TensorArray(tf.int32, size=0, dynamic_size=True, element_shape=[])
    end, _, found = tf.while_loop(
        lambda start, *_: start < rows,
        lambda start, batch, found: (start + fit[start], batch + 1, found.write(batch, start)),
        (0, 0, found),
    )
    starts = found.stack()
    return Runs(starts, tf.concat([starts[1:], [rows]], 0)[: tf.size(starts)] - starts), end == rows


def _halved(runs: Runs, sorted_costs: tf.Tensor, ranks: int) -> Runs:
    """Cuts fewer batches than `ranks` in halves, until there are `ranks` of them, or each has one row."""

    def halve(runs: Runs) -> tuple[Runs]:
        divisible = tf.where(runs.sizes > 1, _padded(runs, sorted_costs), -1.0)
        which = tf.argmax(divisible, output_type=tf.int32)[None]
        start, size = runs.take(which)
        sizes = tf.tensor_scatter_nd_update(runs.sizes, which[None], size - size // 2)
        return (Runs(runs.starts, sizes).then(Runs(start + size - size // 2, size // 2)),)

    def goes_on(runs: Runs) -> tf.Tensor:
        return (tf.size(runs.sizes) < ranks) & tf.reduce_any(runs.sizes > 1)

    anysize = tf.TensorShape([None])
    return tf.while_loop(goes_on, halve, (runs,), shape_invariants=(Runs(anysize, anysize),))[0]


def _balanced(costs: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Orders [steps, rounds, ranks] rows batch by batch. In each round the batch that is the lightest so far gets the
    heaviest row."""
    steps, rounds, ranks = tf.unstack(tf.shape(costs))
    found = tf.TensorArray(tf.int32, size=rounds, element_shape=[None, costs.shape[2]])

    def deal(round_: tf.Tensor, loads: tf.Tensor, found: tf.TensorArray) -> tuple[tf.Tensor, ...]:
        gets = tf.argsort(tf.argsort(loads, stable=True), stable=True)
        loads += tf.gather(costs[:, round_], gets, batch_dims=1)
        return round_ + 1, loads, found.write(round_, tf.gather(places[:, round_], gets, batch_dims=1))

    loads = tf.zeros([steps, ranks], tf.float64)
    *_, found = tf.while_loop(lambda round_, *_: round_ < rounds, deal, (0, loads, found))
    return tf.reshape(tf.transpose(found.stack(), [1, 2, 0]), [-1])


def _dealt(rows: tf.Tensor, ranks: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Deals the rows that make no full step to up to `ranks` batches, forth and back. Returns the rows batch by batch,
    and the sizes of the batches."""
    rounds = (tf.size(rows) + ranks - 1) // ranks
    table = tf.reshape(tf.pad(rows, [[0, rounds * ranks - tf.size(rows)]], constant_values=-1), [rounds, ranks])
    odd = tf.range(rounds) % 2 == 1
    columns = tf.transpose(tf.where(odd[:, None], table[:, ::-1], table))
    sizes = tf.reduce_sum(tf.cast(columns >= 0, tf.int32), 1)
    return tf.boolean_mask(columns, columns >= 0), tf.boolean_mask(sizes, sizes > 0)


def _in_turn(runs: Runs, ranks: int, first: tf.Tensor, seed: int) -> Runs:
    """Puts full steps into the order in which they leave. The heaviest batch goes to each rank in turn."""
    steps = tf.size(runs.starts) // ranks
    drawn = tf.random.stateless_uniform([steps], tf.stack([tf.constant(seed, tf.int64), first]), alg="philox")
    shuffled = tf.argsort(drawn, stable=True)
    turns = tf.cast((first + tf.range(tf.cast(steps, tf.int64))) % ranks, tf.int32)
    columns = (tf.range(ranks)[None, :] - turns[:, None]) % ranks
    return runs.take(tf.reshape(shuffled[:, None] * ranks + columns, [-1]))
