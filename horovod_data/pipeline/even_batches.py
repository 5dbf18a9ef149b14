# SPDX-License-Identifier: Apache-2.0
"""even_batches: batches of nearly equal cost for the ranks of a step, as stages of tf.data.

Each component of a row becomes a list of one tensor. Such a list is a scalar variant, whatever the tensor's shape and
dtype are. So tf.data can batch a window of any rows, gather them in any order, and save them in its checkpoints.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Optional

import tensorflow as tf

from ..channel.tensors import check_types, components, has_composites, put_together, take_apart
from ..elements import nests
from ..errors import at_least, explained
from . import even_steps

_ANY_SHAPE = -1


def even_batches(
    cost: Callable[..., Any],
    *,
    ranks: int,
    window: int,
    max_cost: Optional[float] = None,
    batch_size: Optional[int] = None,
    padded_shapes: Any = None,
    padding_values: Any = None,
    seed: Optional[int] = None,
) -> Callable[[tf.data.Dataset], tf.data.Dataset]:
    """A stage for `dataset.apply()` that makes batches of rows. The `ranks` batches of a step have nearly equal costs.

        rows = rows.apply(hvdata.even_batches(lambda x, y: tf.size(x), ranks=n, window=4096, max_cost=16384))
        dataset = hvdata.distribute_dataset(rows, batch="per_rank")

    All ranks of a step wait for the rank with the most work. This stage collects a window of rows, sorts them by cost
    and gives each step rows of nearly equal cost. Every row comes once. The rows of a window that make no full step
    wait for the next window. So only the last step of the data may be uneven. It has fewer batches if fewer rows remain
    than ranks. The order depends only on the rows, the arguments and the seed. The steps of a window are shuffled, and
    the heaviest batch of a step goes to each rank in turn. Local, not collective.

    Args:
      cost: `cost(*row)`, as for `Dataset.map`, returns a scalar: what the row costs, in any unit. It is finite, and 0
        or more. With `max_cost` it is more than 0.
      ranks: the number of ranks that share a step, 1 or more: `context.num_replicas_in_sync` of the dataset function.
      window: the number of rows that are collected, 1 or more. A wider window makes more even steps. The stage holds
        the rows of one window, and the rows that wait, which are fewer than the rows of a step.
      max_cost: the budget of a batch: its number of rows, times the cost of its heaviest row, is at most `max_cost`. A
        batch has as many rows as fit.
      batch_size: the rows of each batch, instead of `max_cost`. The sums of costs are balanced. Only the batches of the
        last step may have fewer rows.
      padded_shapes: as for `Dataset.padded_batch`. By default each axis of unknown size is padded to the longest
        of the batch. Elements with ragged or sparse components of two axes or more can't be padded: they go through
        `Dataset.batch`.
      padding_values: as for `Dataset.padded_batch`.
      seed: of the order of steps within a window. None is 0.

    Returns:
      A function from a dataset of rows to a dataset of batches: the same structure, each dense component with an
      additional axis 0.

    Raises:
      TypeError, ValueError: an argument is wrong. The text says which.
      tf.errors.InvalidArgumentError: while iterating, `cost` returned a number that is not allowed, or more than
        `max_cost`. The text has the number of the row in the input, counted from 0.
    """
    options = _Options(ranks, window, max_cost, batch_size, seed)
    if not callable(cost):
        raise explained(TypeError, f"cost={cost!r} is not a function", "Pass a function of a row that returns its cost")

    def apply(dataset: tf.data.Dataset) -> tf.data.Dataset:
        rows = _Rows(dataset.element_spec, cost)
        # TensorFlow would run a plain batch() ahead in the background, and hold more windows.
        windows = dataset.map(rows.listed).group_by_window(
            lambda *_: tf.constant(0, tf.int64), lambda _, group: group.batch(options.window), options.window
        )
        end = tf.data.Dataset.from_tensors(0).map(lambda _: rows.none())
        divided = windows.concatenate(end).scan(rows.initial_state(), rows.divide_by(options))
        return divided.flat_map(rows.batches(padded_shapes, padding_values))

    return apply


class _Options:
    """The arguments, checked."""

    def __init__(self, ranks: Any, window: Any, max_cost: Any, batch_size: Any, seed: Any):
        self.ranks = at_least(1, "ranks", ranks)
        self.window = at_least(1, "window", window)
        self.seed = 0 if seed is None else at_least(-(2**63), "seed", seed)
        if self.seed >= 2**63:
            raise explained(ValueError, f"seed={seed!r} has more than 64 bits")
        if (max_cost is None) == (batch_size is None):
            got = "neither of them" if max_cost is None else "both"
            raise explained(ValueError, f"even_batches needs max_cost or batch_size, and got {got}", "Pass one of them")
        self.batch_size = None if batch_size is None else at_least(1, "batch_size", batch_size)
        self.max_cost = math.inf if max_cost is None else _budget(max_cost)
        if self.batch_size and self.window < self.batch_size * self.ranks:
            step = f"{self.batch_size * self.ranks} rows, which is a step of {self.ranks} batches of {self.batch_size}"
            raise explained(ValueError, f"window={self.window} is less than {step}", "Use a window of many steps")

    def divide(self, costs: tf.Tensor, last: tf.Tensor, first: tf.Tensor) -> even_steps.Division:
        if self.batch_size:
            return even_steps.by_count(costs, self.batch_size, self.ranks, last, first, self.seed)
        return even_steps.by_budget(costs, self.max_cost, self.ranks, last, first, self.seed)


def _budget(value: Any) -> float:
    try:
        budget = float(value)
    except (TypeError, ValueError):
        raise explained(TypeError, f"max_cost={value!r} is not a number") from None
    if not 0 < budget < math.inf:
        raise explained(ValueError, f"max_cost={value!r} is not a finite number above 0")
    return budget


class _Rows:
    """The stages for rows of one element_spec."""

    def __init__(self, spec: Any, cost: Callable[..., Any]):
        check_types(spec)
        if any(nests.is_none(leaf) for leaf in tf.nest.flatten(spec)):
            what = "even_batches was given rows with None, which padded_batch() does not take"
            raise explained(TypeError, what, "Leave None out of the rows, and add it by map() behind even_batches")
        # A row of a ragged tensor is a plain tensor in functions of stages.
        plain = [
            tf.TensorSpec(leaf.shape, leaf.dtype)
            if isinstance(leaf, tf.RaggedTensorSpec) and not leaf.ragged_rank
            else leaf
            for _, leaf in nests.leaves(spec)
        ]
        self._spec = nests.filled(spec, plain)
        self._parts = components(self._spec)
        self._cost = cost

    def listed(self, *row: Any) -> tuple[tf.Tensor, ...]:
        """The cost of a row, and each of its components as a list of one tensor."""
        cost = _number(self._cost(*row))
        if cost.shape.rank:
            raise explained(ValueError, f"cost= returned a tensor of shape {cost.shape}", "Return one number for a row")
        return (tf.reshape(tf.cast(cost, tf.float64), []), *map(_list_of_one, take_apart(*row)))

    def none(self) -> tuple[tf.Tensor, ...]:
        """A window without rows, which stands for the end of the data."""
        return (tf.zeros([0], tf.float64), *[_list_of_one(tf.zeros([0], p.dtype))[None][:0] for p in self._parts])

    def initial_state(self) -> Any:
        """The rows that wait, the number of rows that have come, and the number of full steps that have left."""
        return self.none(), tf.constant(0, tf.int64), tf.constant(0, tf.int64)

    def divide_by(self, options: _Options) -> Callable[..., Any]:
        """For Dataset.scan: a window becomes (the rows of its batches as lists, the sizes of the batches)."""

        def divide(state: Any, window: tuple[tf.Tensor, ...]) -> Any:
            waiting, seen, steps = state
            new, last = window, tf.size(window[0]) == 0
            with tf.control_dependencies([_check(new[0], options, seen)]):
                costs, *lists = map(_concatenated, waiting, new)
            division = options.divide(costs, last, steps)
            kept = tuple(tf.gather(each, division.kept) for each in (costs, *lists))
            leaving = tuple(tf.gather(each, division.rows) for each in lists)
            seen += tf.size(new[0], tf.int64)
            return (kept, seen, steps + tf.cast(division.steps, tf.int64)), (leaving, division.sizes)

        return divide

    def batches(self, padded_shapes: Any, padding_values: Any) -> Callable[..., tf.data.Dataset]:
        """For Dataset.flat_map: the batches of a window."""
        pads = padded_shapes is not None or padding_values is not None or not has_composites(self._spec)

        def batch(lists: tuple[tf.Tensor, ...], size: tf.Tensor) -> tf.data.Dataset:
            rows = tf.data.Dataset.from_tensor_slices(lists).map(self._unlisted)
            size = tf.cast(size, tf.int64)
            return rows.padded_batch(size, padded_shapes, padding_values) if pads else rows.batch(size)

        def batches_of(lists: tuple[tf.Tensor, ...], sizes: tf.Tensor) -> tf.data.Dataset:
            runs = tf.data.Dataset.from_tensor_slices((tf.cumsum(sizes, exclusive=True), sizes))
            return runs.flat_map(lambda start, size: batch(tuple(each[start : start + size] for each in lists), size))

        return batches_of

    def _unlisted(self, *lists: tf.Tensor) -> Any:
        tensors = []
        for each, part in zip(lists, self._parts):
            tensor = tf.raw_ops.TensorListGetItem(
                input_handle=each, index=0, element_shape=_ANY_SHAPE, element_dtype=part.dtype
            )
            tensor.set_shape(part.shape)
            tensors.append(tensor)
        return put_together(self._spec)(*tensors)


def _number(returned: Any) -> tf.Tensor:
    """What cost= returned for a row, as a tensor."""
    try:
        cost = tf.convert_to_tensor(returned)
    except (TypeError, ValueError):
        what = f"a {type(returned).__name__}"
    else:
        if cost.dtype.is_floating or cost.dtype.is_integer or cost.dtype.is_bool:
            return cost
        what = f"a tensor of {cost.dtype.name}"
    raise explained(ValueError, f"cost= returned {what}, not a number", "Return one number for a row")


def _list_of_one(tensor: tf.Tensor) -> tf.Tensor:
    """A scalar variant that holds a tensor of any shape."""
    return tf.raw_ops.TensorListFromTensor(tensor=tensor[None], element_shape=_ANY_SHAPE)


def _concatenated(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Joins two vectors. tf.concat does not take variants."""
    first, second = tf.size(one), tf.size(other)
    return tf.dynamic_stitch([tf.range(first), first + tf.range(second)], [one, other])


def _check(costs: tf.Tensor, options: _Options, seen: tf.Tensor) -> tf.Operation:
    """Raises InvalidArgumentError for the first cost that is not allowed. `seen`: the rows before these."""
    allowed = tf.math.is_finite(costs) & (costs >= 0 if options.batch_size else costs > 0)
    least = "costs are 0 or more" if options.batch_size else "with max_cost= costs are more than 0"
    above = allowed & (costs > options.max_cost)
    return tf.group(
        _refuse(~allowed, costs, seen, f"but {least}, and finite"),
        _refuse(above, costs, seen, f"but max_cost is {options.max_cost:g}. Raise it, or cut or filter such rows"),
    )


def _refuse(wrong: tf.Tensor, costs: tf.Tensor, seen: tf.Tensor, why: str) -> tf.Operation:
    first = tf.where(wrong)[:1, 0]
    row, returned = tf.strings.as_string(first + seen), tf.strings.as_string(tf.gather(costs, first), shortest=True)
    text = tf.strings.join(["even_batches: cost= returned ", returned, " for row ", row, f", {why}."])
    return tf.debugging.Assert(~tf.reduce_any(wrong), [text])
