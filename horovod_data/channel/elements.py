# SPDX-License-Identifier: Apache-2.0
"""The component tensors of an element, their names, and the specs of the shares that trainers get.

The C++ core knows plain tensors only. A map on the reader takes ragged and sparse tensors apart, and a map on the
trainers puts them together. A leaf that is None has no tensor, and stays in the structure.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, Callable, Optional, Sequence

import tensorflow as tf

from ..errors import explained
from ..native import tensorflow_private as private
from .options import Options


class EmptyRule(enum.IntEnum):
    """What a component becomes in a share without an element. The numbers are those of csrc/rows/leaves.h."""

    ROWS = 0
    ROW_SPLITS = 1
    DENSE_SHAPE = 2
    ENTRIES = 3


@dataclasses.dataclass(frozen=True)
class Component:
    """One tensor of a flattened element."""

    name: str
    dtype: tf.DType
    shape: tf.TensorShape
    rule: EmptyRule
    row_length: int = -1  # the length of a uniform axis that a ragged tensor stores as row splits; else -1
    says: Optional[tf.TensorShape] = None  # for a sparse tensor's dense shape: the static shape that it must match


def is_none(leaf: Any) -> bool:
    """Says whether a leaf of an element, or of its spec, is None."""
    return leaf is None or isinstance(leaf, private.NoneTensorSpec)


def filled(spec: Any, parts: Sequence[Any]) -> Any:
    """The structure of `spec` with `parts` in the places of its leaves. A leaf that is None stays None."""
    rest = iter(parts)
    return tf.nest.pack_sequence_as(spec, [leaf if is_none(leaf) else next(rest) for leaf in tf.nest.flatten(spec)])


def leaves(spec: Any, path: str = "") -> list[tuple[str, Any]]:
    """The leaf specs of an element_spec with their paths (`['image']`, `[1]['length']`), in tf.nest's order, without
    None."""
    if is_none(spec):
        return []
    if isinstance(spec, dict):
        return [leaf for key in sorted(spec) for leaf in leaves(spec[key], f"{path}[{key!r}]")]
    if isinstance(spec, tuple) and hasattr(spec, "_fields"):
        return [leaf for key in spec._fields for leaf in leaves(getattr(spec, key), f"{path}.{key}")]
    if isinstance(spec, (tuple, list)):
        return [leaf for i, part in enumerate(spec) for leaf in leaves(part, f"{path}[{i}]")]
    return [(path or "the element", spec)]


def _keys(spec: Any) -> list[Any]:
    """All keys of all dicts in `spec`."""
    if isinstance(spec, dict):
        return [*spec, *[key for part in spec.values() for key in _keys(part)]]
    return [key for part in spec for key in _keys(part)] if isinstance(spec, (tuple, list)) else []


def _is_ragged(spec: Any) -> bool:
    return isinstance(spec, tf.RaggedTensorSpec) and spec.ragged_rank > 0


def has_composites(spec: Any) -> bool:
    """Says whether some leaf is not a plain tensor."""
    return any(not isinstance(leaf, tf.TensorSpec) for _, leaf in leaves(spec))


def check_types(spec: Any) -> None:
    """Raises TypeError for a component, or a key of a dict, that can't be sent to another process."""
    for key in _keys(spec):
        if not isinstance(key, (str, int, float)):
            what = f"the dataset's elements have a dict with the key {key!r}, a {type(key).__name__}"
            raise explained(TypeError, f"{what}, which can't be sent to another rank", "Use strings or numbers as keys")
    for name, leaf in leaves(spec):
        if isinstance(leaf, (tf.RaggedTensorSpec, tf.SparseTensorSpec)):
            continue
        if isinstance(leaf, tf.TensorSpec) and leaf.dtype not in (tf.variant, tf.resource):
            continue
        what = f"component {name} of the dataset's elements is a {type(leaf).__name__}"
        if isinstance(leaf, tf.TypeSpec):
            to_do = "Elements may hold dense, ragged and sparse tensors of every dtype except variant and resource"
            raise explained(TypeError, f"{what} ({leaf}), which can't be sent to another rank", to_do)
        # For example a Mapping, or a class of attrs or dataclasses. Other ranks don't have such a class.
        to_do = "Let a map() make dicts, tuples or namedtuples of tensors"
        raise explained(TypeError, f"{what}, a container that can't be sent to another rank", to_do)


def components(spec: Any) -> list[Component]:
    """The plain tensors of an element of this spec, in order."""
    found: list[Component] = []
    for name, leaf in leaves(spec):
        if isinstance(leaf, tf.SparseTensorSpec):
            rank = leaf.shape.rank
            found += [
                Component(name, tf.int64, tf.TensorShape([None, rank]), EmptyRule.ENTRIES),
                Component(name, leaf.dtype, tf.TensorShape([None]), EmptyRule.ENTRIES),
                Component(name, tf.int64, tf.TensorShape([rank]), EmptyRule.DENSE_SHAPE, says=leaf.shape),
            ]
        elif _is_ragged(leaf):
            shape, ragged = leaf.shape, leaf.ragged_rank
            sizes = [None] * (ragged + 1) if shape.rank is None else shape[: ragged + 1].as_list()
            values = tf.TensorShape(None)
            if leaf.flat_values_spec is not None:
                values = tf.TensorShape([None]).concatenate(leaf.flat_values_spec.shape[1:])
            elif shape.rank is not None:
                values = tf.TensorShape([None]).concatenate(shape[ragged + 1 :])
            found.append(Component(name, leaf.dtype, values, EmptyRule.ROWS))
            splits = [None if sizes[0] is None else sizes[0] + 1] + [None] * (ragged - 1)
            for n, length in zip(splits, sizes[1:]):
                length = -1 if length is None else length
                found.append(Component(name, leaf.row_splits_dtype, tf.TensorShape([n]), EmptyRule.ROW_SPLITS, length))
        else:
            found.append(Component(name, leaf.dtype, leaf.shape, EmptyRule.ROWS))
    return found


def components_of_channel(spec: Any, options: Options) -> list[Component]:
    """The plain tensors that a reader sends. `spec`: of elements, or of (element, costs) if options.has_costs."""
    if not options.has_costs:
        return components(spec)
    element, costs = spec
    return [*components(element), Component("what weigh= returned", costs.dtype, costs.shape, EmptyRule.ROWS)]


def common_spec(specs: Sequence[Any]) -> Any:
    """The spec that fits the elements of several readers. Sizes that differ become unknown.

    Raises:
      ValueError: the readers have different components, or components of different types. The text says which.
    """
    named = [leaves(spec) for spec in specs]
    for reader, parts in enumerate(named):
        if [name for name, _ in parts] != [name for name, _ in named[0]]:
            first, other = (", ".join(name for name, _ in one) for one in (named[0], parts))
            raise ValueError(f"reader 0 has {first}, reader {reader} has {other}")
    common = []
    for same in zip(*named):
        leaf = same[0][1].most_specific_common_supertype([other for _, other in same[1:]])
        if leaf is None:
            fits = [same[0][1].most_specific_common_supertype([other]) is not None for _, other in same]
            reader = fits.index(False)
            raise ValueError(f"for reader 0 {same[0][0]} is {same[0][1]}, for reader {reader} it is {same[reader][1]}")
        common.append(leaf)
    return filled(specs[0], common)


def take_apart(*element: Any) -> tuple[tf.Tensor, ...]:
    """The component tensors of an element. `element`: as Dataset.map passes it."""
    tensors: list[tf.Tensor] = []
    for leaf in tf.nest.flatten(element):
        if isinstance(leaf, tf.SparseTensor):
            tensors += [leaf.indices, leaf.values, leaf.dense_shape]
        elif isinstance(leaf, tf.RaggedTensor):
            tensors += [leaf.flat_values, *leaf.nested_row_splits]
        elif leaf is not None:
            tensors.append(leaf)
    return tuple(tensors)


def put_together(spec: Any) -> Callable[..., Any]:
    """The inverse of take_apart, for Dataset.map. The caller must then set the dataset's element_spec to `spec`."""

    def pack(*tensors: tf.Tensor) -> Any:
        rest = list(tensors)
        parts: list[Any] = []
        for _, leaf in leaves(spec):
            if isinstance(leaf, tf.SparseTensorSpec):
                parts.append(tf.SparseTensor(rest.pop(0), rest.pop(0), rest.pop(0)))
            elif _is_ragged(leaf):
                values = rest.pop(0)
                splits = [rest.pop(0) for _ in range(leaf.ragged_rank)]
                parts.append(tf.RaggedTensor.from_nested_row_splits(values, splits, validate=False))
            elif isinstance(leaf, tf.RaggedTensorSpec):  # a row of a ragged tensor. Datasets hold it as a variant
                row = dict(rt_nested_splits=[], rt_dense_values=rest.pop(0), batched_input=False)
                parts.append(tf.raw_ops.RaggedTensorToVariant(**row))
            else:
                parts.append(rest.pop(0))
        return tf.nest.map_structure(lambda leaf: None if is_none(leaf) else leaf, filled(spec, parts))

    return pack


def with_weight(element: Any, weight: Any) -> Any:
    """(x, y) becomes (x, y, weight), as Keras takes it. Anything else becomes (element, weight)."""
    if type(element) is tuple and len(element) == 2:
        return (*element, weight)
    return (element, weight)


def has_sample_weight(spec: Any) -> bool:
    """Says whether an element is Keras' (x, y, sample_weight): the third component is one float tensor with an axis 0."""
    if type(spec) is not tuple or len(spec) != 3:
        return False
    weight = spec[2]
    return isinstance(weight, tf.TensorSpec) and weight.dtype.is_floating and bool(weight.shape.rank)


def times_weight(element: Any, weight: tf.Tensor) -> Any:
    """Returns (x, y, sample_weight * weight)."""
    x, y, own = element
    ours = tf.reshape(weight, tf.concat([tf.shape(weight), tf.ones([tf.rank(own) - 1], tf.int32)], 0))
    product = own * tf.cast(ours, own.dtype)
    product.set_shape(own.shape)
    return x, y, product


def with_costs(weigh: Callable[..., Any], spec: Any) -> Callable[..., Any]:
    """For Dataset.map on the reader: an element of this spec becomes (element, the costs of its rows)."""

    def pair(*element: Any) -> Any:
        return (element if type(spec) is tuple else element[0]), weigh(*element)

    return pair


def costs_as_floats(element: Any, costs: tf.Tensor) -> Any:
    """For a Dataset.map after with_costs(): makes the costs float32."""
    return element, tf.cast(costs, tf.float32)


def check_costs(spec: Any) -> None:
    """Raises ValueError if `weigh` does not return one cost for each row. `spec`: of (element, costs)."""
    element, costs = spec
    numbers = isinstance(costs, tf.TensorSpec) and (
        costs.dtype.is_floating or costs.dtype.is_integer or costs.dtype.is_bool
    )
    if not numbers:
        kind = type(costs).__name__.replace("Spec", "")
        what = f"a tensor of {costs.dtype.name}" if isinstance(costs, tf.TensorSpec) else f"a {kind}"
        raise explained(
            ValueError, f"weigh= returned {what} instead of numbers", "Let it return a vector with the cost of each row"
        )
    first = leaves(element)[0][1]
    if first.shape.rank is None or costs.shape.rank is None:
        return
    rank = min(first.shape.rank, 1)
    if costs.shape.rank != rank or (rank and not costs.shape.is_compatible_with(first.shape[:1])):
        raise explained(
            ValueError,
            f"weigh= returned costs of shape {costs.shape} for an element whose first component has shape {first.shape}",
            "weigh= gets a whole element. Let it return a vector with the cost of each row"
            if rank
            else "Let it return a number, because the elements have no rows",
        )


# ---- Specs of shares.


def rows_of(leaf: Any) -> Optional[int]:
    """The static size of axis 0, or None if it is unknown."""
    return leaf.shape[0] if leaf.shape.rank else None


def _replace_rows(leaf: Any, rows: Optional[int]) -> Any:
    if not leaf.shape.rank:  # unknown, or a scalar
        return leaf
    shape = tf.TensorShape([rows]).concatenate(leaf.shape[1:])
    if isinstance(leaf, tf.SparseTensorSpec):
        return tf.SparseTensorSpec(shape, leaf.dtype)
    if isinstance(leaf, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, leaf.dtype, leaf.ragged_rank, leaf.row_splits_dtype)
    return tf.TensorSpec(shape, leaf.dtype, leaf.name)


def share_spec(spec: Any, options: Options, trainers: int) -> Any:
    """The spec of a share as readers send it. With weights it is (x, y, weight) or (element, weight)."""

    def of_leaf(leaf: Any) -> Any:
        if is_none(leaf):
            return leaf
        rows = rows_of(leaf)
        if options.batch == "per_rank":
            return (
                _replace_rows(leaf, None) if options.remainder == "partial" and options.schedule == "static" else leaf
            )
        if rows is None or options.remainder == "partial":
            return _replace_rows(leaf, None)
        return _replace_rows(leaf, rows // trainers if options.remainder == "drop" else -(-rows // trainers))

    shared = tf.nest.map_structure(of_leaf, spec)
    if options.has_costs:
        return with_weight(*shared)
    if not options.weighs:
        return shared
    first = leaves(shared)[0][1]
    shape = tf.TensorShape(None) if first.shape.rank is None else first.shape[:1]
    return with_weight(shared, tf.TensorSpec(shape, tf.float32))


def check_global(spec: Any, remainder: str, trainers: int) -> None:
    """Raises ValueError where the spec alone shows that batch="global" is wrong."""
    named = [(name, leaf) for name, leaf in leaves(spec) if leaf.shape.rank is not None]
    for name, leaf in named:
        if leaf.shape.rank == 0:
            what = f'batch="global" cuts every component along axis 0, but {name} is a scalar'
            raise explained(ValueError, what, 'Give it an axis 0, or use batch="per_rank"')
    known = [(name, rows_of(leaf)) for name, leaf in named if rows_of(leaf) is not None]
    for name, rows in known[1:]:
        if rows != known[0][1]:
            both = f"{known[0][0]} has {known[0][1]} rows and {name} has {rows}"
            what = f'batch="global" needs one axis 0 for all components, but {both}'
            raise explained(ValueError, what, 'Make them equal, or use batch="per_rank"')
    if known and remainder == "drop" and (known[0][1] or 0) % trainers:
        rows = known[0][1] or 0
        raise explained(
            ValueError,
            f'every global batch has {rows} rows, which {trainers} ranks can\'t share evenly: with remainder="drop" '
            f"{rows % trainers} rows of every batch would be lost",
            f"Use batches of {max(rows // trainers, 1) * trainers} rows, or another remainder=",
        )
