# SPDX-License-Identifier: Apache-2.0
"""What an element of a loader is made of: components in a nest, or rows in Python's own lists. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable, Optional

import numpy as np

SINGLE = (str, bytes, int, float, np.generic)


def leaves(
    element: Any, path: str = "", texts_of_rows: bool = True, is_component: Optional[Callable[[list[Any]], bool]] = None
) -> list[tuple[str, Any]]:
    """The components and their paths, dicts in the order of their keys. None is no component. A list is one component where
    `is_component` says so, by default if it is of numbers or texts. A tuple of them is several, but for one of texts within the
    element: that is how PyTorch collates the texts of a batch's rows, if `texts_of_rows`."""
    if element is None:
        return []
    if isinstance(element, Mapping):
        names = sorted(element, key=lambda name: (str(type(name)), name))
        return [
            leaf for name in names for leaf in leaves(element[name], f"{path}[{name!r}]", texts_of_rows, is_component)
        ]
    if isinstance(element, list) and (is_component or _is_flat)(element):
        return [(path, element)]
    if (
        isinstance(element, tuple)
        and element
        and path
        and texts_of_rows
        and all(isinstance(part, (str, bytes)) for part in element)
    ):
        return [(path, list(element))]
    if isinstance(element, (list, tuple)):
        return [
            leaf for i, part in enumerate(element) for leaf in leaves(part, f"{path}[{i}]", texts_of_rows, is_component)
        ]
    return [(path, element)]


def _is_flat(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(one, SINGLE) for one in values)


def _is_nested(values: list[Any]) -> bool:
    """Numbers alone or texts alone, all as deep, in lists of lists, whose lengths may differ."""
    if not values or not all(isinstance(one, list) for one in values):
        return False
    kinds = _kinds(values, 0)
    return len(kinds) == 1 and None not in kinds


def _kinds(value: Any, depth: int) -> set[Optional[tuple[int, bool]]]:
    """How deep they lie, and whether they are texts; None: something else."""
    if isinstance(value, list):
        return {kind for one in value for kind in _kinds(one, depth + 1)}
    return {(depth, isinstance(value, (str, bytes))) if isinstance(value, SINGLE) else None}


def is_table(values: list[Any]) -> bool:
    """A list that is an array: of numbers or texts, or of lists that are arrays of one shape."""
    return _is_flat(values) or (_is_nested(values) and _shape_of(values) is not None)


def _shape_of(values: Any) -> Optional[tuple[int, ...]]:
    if not isinstance(values, list):
        return ()
    inner = {_shape_of(one) for one in values}
    shape = inner.pop() if len(inner) == 1 else None
    return None if shape is None else (len(values), *shape)


def rows_in_lists(element: Any) -> Optional[list[Any]]:
    """The rows of a batch that is made of Python's own lists, each with the row's part of all components. None: it is none, or its
    components differ in their rows."""
    if isinstance(element, list) and _are_samples(element):
        return element
    components = [leaf for _, leaf in leaves(element, is_component=_is_flat_or_nested)]
    if not any(isinstance(leaf, list) and _is_nested(leaf) for leaf in components):
        return None
    counts = {_rows_along_axis_0(leaf) for leaf in components}
    rows = counts.pop() if len(counts) == 1 else None
    return None if rows is None else [_row_of(element, i) for i in range(rows)]


def _are_samples(rows: list[Any]) -> bool:
    """Mappings with the same keys, or tuples of one length, with numbers and texts in them: not what PyTorch collates, components that are
    lists or tuples of all rows' texts, or tensors."""
    forms = {
        frozenset(row) if isinstance(row, Mapping) else len(row) if isinstance(row, tuple) else None for row in rows
    }
    if len(forms) != 1 or None in forms or not all(_is_plain(row) and leaves(row) for row in rows):
        return False
    columns = _columns_of_texts(rows)
    return columns is None or len(columns) > 1


def _columns_of_texts(part: Any) -> Optional[set[int]]:
    """The lengths of the lists and tuples of texts that it is made of; None: there is something else in it."""
    if isinstance(part, (list, tuple)) and part and all(isinstance(one, (str, bytes)) for one in part):
        return {len(part)}
    parts = list(part.values()) if isinstance(part, Mapping) else list(part) if isinstance(part, (list, tuple)) else []
    lengths: set[int] = set()
    for one in parts:
        if (found := _columns_of_texts(one)) is None:
            return None
        lengths |= found
    return lengths or None


def _is_flat_or_nested(values: list[Any]) -> bool:
    return _is_flat(values) or _is_nested(values)


def _is_plain(row: Any) -> bool:
    """Whether there are only numbers and texts in it, in any nest."""
    if isinstance(row, Mapping):
        return all(map(_is_plain, row.values()))
    return all(map(_is_plain, row)) if isinstance(row, (list, tuple)) else row is None or isinstance(row, SINGLE)


def _rows_along_axis_0(leaf: Any) -> Optional[int]:
    if isinstance(leaf, list):
        return len(leaf)
    shape = tuple(getattr(leaf, "shape", None) or ())
    return int(shape[0]) if shape and shape[0] is not None and not hasattr(leaf, "dense_shape") else None


def _row_of(element: Any, i: int) -> Any:
    """Row i of a nest of batches."""
    if isinstance(element, Mapping):
        return {name: _row_of(part, i) for name, part in element.items()}
    if isinstance(element, list) and _is_flat_or_nested(element):
        return element[i]
    if isinstance(element, tuple) and element and all(isinstance(part, (str, bytes)) for part in element):
        return element[i]
    if isinstance(element, (list, tuple)):
        return tuple(_row_of(part, i) for part in element)
    return None if element is None else getattr(element, "iloc", element)[i]  # pandas' own [i] is the row of that name
