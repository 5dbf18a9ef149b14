# SPDX-License-Identifier: Apache-2.0
"""Writes the spec of an element as JSON, for other processes, which therefore unpickle nothing."""

from __future__ import annotations

import collections
from typing import Any

import tensorflow as tf

from ..native import tensorflow_private as private
from .elements import is_none


def to_json(spec: Any) -> Any:
    """Returns the spec as a value that JSON can hold.

    Dicts keep the order of their keys. Namedtuples keep the names of their class and of their fields.

    Raises:
      TypeError: the spec contains another class, for example a class of the program or of a library.
    """
    if is_none(spec):
        return None
    if isinstance(spec, dict):
        kind = "ordered" if isinstance(spec, collections.OrderedDict) else "dict"
        return [kind, [[key, to_json(part)] for key, part in spec.items()]]
    if isinstance(spec, (tuple, list)):
        if hasattr(spec, "_fields"):
            return ["named", type(spec).__name__, list(spec._fields), [to_json(part) for part in spec]]
        return ["list" if isinstance(spec, list) else "tuple", [to_json(part) for part in spec]]
    if isinstance(spec, tf.TensorSpec):
        return ["tensor", _sizes(spec), spec.dtype.name, spec.name]
    if isinstance(spec, tf.SparseTensorSpec):
        return ["sparse", _sizes(spec), spec.dtype.name]
    if isinstance(spec, tf.RaggedTensorSpec):
        flat = spec.flat_values_spec and to_json(spec.flat_values_spec)
        return ["ragged", _sizes(spec), spec.dtype.name, spec.ragged_rank, spec.row_splits_dtype.name, flat]
    raise TypeError(f"{type(spec).__name__} has no form for other processes")


def from_json(said: Any) -> Any:
    """The inverse of to_json(). It makes a new class for each namedtuple."""
    if said is None:
        return private.NoneTensorSpec()
    kind, *given = said
    if kind in ("dict", "ordered"):
        items = [(key, from_json(part)) for key, part in given[0]]
        return collections.OrderedDict(items) if kind == "ordered" else dict(items)
    if kind == "named":
        return collections.namedtuple(given[0], given[1])(*map(from_json, given[2]))
    if kind in ("list", "tuple"):
        parts = [from_json(part) for part in given[0]]
        return parts if kind == "list" else tuple(parts)
    shape, dtype = given[0], tf.as_dtype(given[1])
    if kind == "tensor":
        return tf.TensorSpec(shape, dtype, given[2])
    if kind == "sparse":
        return tf.SparseTensorSpec(shape, dtype)
    flat = given[4] and from_json(given[4])
    return tf.RaggedTensorSpec(shape, dtype, given[2], tf.as_dtype(given[3]), flat)


def _sizes(spec: Any) -> Any:
    return None if spec.shape.rank is None else spec.shape.as_list()
