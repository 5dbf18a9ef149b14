# SPDX-License-Identifier: Apache-2.0
"""Elements with TensorFlow: their specs, and their component tensors.

The C++ core knows plain tensors only. A map on the reader takes ragged and sparse tensors apart, and a map on the
trainers puts them together. A leaf that is None has no tensor, and stays in the structure.
"""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf

from ..elements import specs
from ..elements.nests import check_keys, filled, is_none, leaves
from ..errors import explained
from ..native import tensorflow_private as private


def has_composites(spec: Any) -> bool:
    """Says whether some leaf is not a plain tensor."""
    return any(not isinstance(leaf, tf.TensorSpec) for _, leaf in leaves(spec))


def check_types(spec: Any) -> None:
    """Raises TypeError for a component, or a key of a dict, that can't be sent to another process."""
    check_keys(spec, "the dataset's")
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


def spec_of(spec: Any) -> Any:
    """An element_spec of TensorFlow in the form that other processes get (elements/specs.py).

    Raises:
      TypeError: the spec contains another class, for example a class of the program or of a library.
    """
    parts = filled(spec, [_leaf_of(leaf) for _, leaf in leaves(spec)])
    return tf.nest.map_structure(lambda leaf: None if is_none(leaf) else leaf, parts)


def _leaf_of(leaf: Any) -> specs.LeafSpec:
    if not isinstance(leaf, (tf.TensorSpec, tf.SparseTensorSpec, tf.RaggedTensorSpec)):
        raise TypeError(f"{type(leaf).__name__} has no form for other processes")
    shape = None if leaf.shape.rank is None else tuple(leaf.shape.as_list())
    if isinstance(leaf, tf.TensorSpec):
        return specs.DenseSpec(shape, leaf.dtype.name, leaf.name)
    if isinstance(leaf, tf.SparseTensorSpec):
        return specs.SparseSpec(shape, leaf.dtype.name)
    flat = None if leaf.flat_values_spec is None else _leaf_of(leaf.flat_values_spec)
    assert flat is None or isinstance(flat, specs.DenseSpec)
    return specs.RaggedSpec(shape, leaf.dtype.name, leaf.ragged_rank, leaf.row_splits_dtype.name, flat)


def tf_spec(spec: Any) -> Any:
    """The inverse of spec_of()."""
    parts = filled(spec, [_tf_leaf(leaf) for _, leaf in leaves(spec)])
    return tf.nest.map_structure(lambda leaf: private.NoneTensorSpec() if leaf is None else leaf, parts)


def _tf_leaf(leaf: specs.LeafSpec) -> Any:
    dtype = tf.as_dtype(leaf.dtype)
    if isinstance(leaf, specs.SparseSpec):
        return tf.SparseTensorSpec(leaf.shape, dtype)
    if isinstance(leaf, specs.RaggedSpec):
        flat = leaf.flat and _tf_leaf(leaf.flat)
        return tf.RaggedTensorSpec(leaf.shape, dtype, leaf.ragged_rank, tf.as_dtype(leaf.splits), flat)
    return tf.TensorSpec(leaf.shape, dtype, leaf.name)


def components(spec: Any) -> list[tf.TensorSpec]:
    """The plain tensors of an element of this element_spec, in order."""
    return [tf.TensorSpec(part.shape, part.dtype) for part in specs.components(spec_of(spec))]


def take_apart(*element: Any) -> tuple[tf.Tensor, ...]:
    """The component tensors of an element. `element`: as Dataset.map passes it."""
    return tuple(part for part in tf.nest.flatten(element, expand_composites=True) if part is not None)


def put_together(spec: Any) -> Callable[..., Any]:
    """The inverse of take_apart, for Dataset.map. The mapped dataset then needs `spec` as its element_spec."""

    def as_held(leaf: Any, value: Any) -> Any:
        if isinstance(leaf, tf.RaggedTensorSpec) and not leaf.ragged_rank:
            # A row of a ragged tensor. Datasets hold it as a variant.
            return tf.raw_ops.RaggedTensorToVariant(rt_nested_splits=[], rt_dense_values=value, batched_input=False)
        return value

    def pack(*tensors: tf.Tensor) -> Any:
        made = tf.nest.pack_sequence_as(spec, list(tensors), expand_composites=True)
        return tf.nest.map_structure(as_held, spec, made)

    return pack


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
