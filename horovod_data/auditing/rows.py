# SPDX-License-Identifier: Apache-2.0
"""The normal form of an element: columns of rows. Pure, except that it reads TensorFlow's ragged and sparse tensors.

A loader yields nests (tuples, lists, mappings) of components. Each component becomes a Column. Columns with the same number
of rows form a group. The digest of a row is made of its kinds (dtype and shape) and its bytes in all columns.

Rows become bytes in pieces, because an element may be a whole data set in memory.
"""

from __future__ import annotations

import dataclasses
import operator
import sys
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Callable, Iterable, Optional, Sequence, Union

import numpy as np

from ..errors import explain

SINGLE = (str, bytes, int, float, np.generic)
EXACT = "whole number"  # the dtype of an array of Python's own whole numbers, which no dtype of numpy's holds together

_PIECE = 16 << 20  # bytes of rows that are made at a time
_PIECE_ROWS = 1 << 16  # rows at a time, because Python holds an object for each
_PIECE_TEXTS = 256  # rows at a time where their lengths differ, because their bytes are not known before

Array = Any  # an ndarray


class NoArray(TypeError):
    """A component that is no array. Its text says why, and may be empty."""


@dataclasses.dataclass
class Column:
    """One component of an element.

    `kind`: dtype and shape of a row. `part(a, b)`: rows a to b as uint8 [b - a, `width`]. If rows differ in length, `width`
    is None and `part` returns a list of bytes; none of them begins with another.
    """

    kind: str
    part: Callable[[int, int], Any]
    width: Optional[int] = None

    def row(self, i: int) -> list[Column]:
        """The columns that row i has by itself."""
        return [dataclasses.replace(self, part=lambda a, b: self.part(i + a, i + b))]


class _Lists(Column):
    """A list of lists. Each entry is a row; rows may differ in shape and in dtype."""

    def __init__(self, values: list[Any], path: str):
        super().__init__("", lambda a, b: None)
        self._values, self._path = values, path

    def row(self, i: int) -> list[Column]:
        return _columns_of_row(self._values[i], f"{self._path}[{i}]")


Group = tuple[list[Column], int]


def row_groups(element: Any) -> list[Group]:
    """All rows of an element: columns, and the number of rows that each of them has. Most elements are one group. Batches
    that are made of Python's own lists have a group for each row.

    Raises:
      TypeError: a component is no array.
    """
    if are_samples(element):
        return [(_columns_of_row(sample), 1) for sample in element]
    rows = rows_of(element)
    if rows is None:
        return [(_columns_of_row(element), 1)]
    columns = [_column(leaf, path) for path, leaf in leaves(element) if not _is_empty(leaf)]
    if any(isinstance(column, _Lists) for column in columns):
        return [([one for column in columns for one in column.row(i)], 1) for i in range(rows)]
    return [(columns, rows)]


def rows_of(element: Any) -> Optional[int]:
    """The number of rows along the axis 0 that all components share. None: there is no such axis."""
    if are_samples(element):
        return len(element)
    found = leaves(element)
    components = [leaf for _, leaf in found if not _is_empty(leaf)]
    counts = {length(leaf) for leaf in components} if components else {0} if found else {None}
    return counts.pop() if len(counts) == 1 else None


def row_digests(columns: Sequence[Column], rows: int) -> Array:
    """uint64 [rows, 2]: the digest of each row."""
    kind = ";".join(column.kind for column in columns)
    widths = [column.width for column in columns if column.width is not None]
    step = max(1, min(_PIECE // max(1, sum(widths)), _PIECE_ROWS if len(widths) == len(columns) else _PIECE_TEXTS))
    found = np.empty((rows, 2), np.uint64)
    for begin in range(0, rows, step):
        end = min(begin + step, rows)
        parts = [column.part(begin, end) for column in columns]
        found[begin:end] = digests(_bytes_of_rows(parts) if parts else [b""] * (end - begin), kind)
    return found


def digests(rows: Iterable[Any], kind: str) -> Array:
    """uint64 [rows, 2]: BLAKE2b of each row's bytes and of the kind of the row."""
    person = blake2b(kind.encode(), digest_size=16).digest()
    joined = b"".join([blake2b(row, digest_size=16, person=person).digest() for row in rows])
    return np.frombuffer(joined, "<u8").astype(np.uint64, copy=False).reshape(-1, 2)


def bytes_of(text: Union[str, bytes]) -> bytes:
    return text.encode(errors="surrogatepass") if isinstance(text, str) else text


# ---- The nest of an element.


def leaves(element: Any, path: str = "", of_row: bool = False) -> list[tuple[str, Any]]:
    """The components and their paths; those of a mapping in the order of its keys. None is no component.

    A list of numbers or texts is one component. So is a list of lists of them, if all lie equally deep. So is a tuple of
    texts inside of an element, because PyTorch collates texts so. An empty list stands for itself.

    `of_row`: the element is one row. Then lists of lists are one component only if they form an array, and each text of a
    tuple is a component.
    """
    if element is None:
        return []
    if isinstance(element, Mapping):
        names = sorted(element, key=lambda name: (str(type(name)), name))
        parts = [(f"{path}[{name!r}]", element[name]) for name in names]
    elif isinstance(element, list) and (not element or (depth := _depth(element))):
        if not element or not of_row or depth == 1 or np.array(element, object).ndim == depth:
            return [(path, element)]
        parts = [(f"{path}[{i}]", part) for i, part in enumerate(element)]
    elif isinstance(element, tuple) and element and path and not of_row and _are_texts(element):
        return [(path, list(element))]
    elif isinstance(element, (list, tuple)):
        parts = [(f"{path}[{i}]", part) for i, part in enumerate(element)]
    else:
        return [(path, element)]
    return [leaf for where, part in parts for leaf in leaves(part, where, of_row)]


def are_samples(rows: Any) -> bool:
    """Whether an element is a list of samples, each a row: mappings with the same keys, or tuples of one length, that hold
    only numbers and texts. A list that holds only lists and tuples of texts is no list of samples: these are components, as
    PyTorch collates texts."""
    if not isinstance(rows, list) or not rows or not isinstance(rows[0], (Mapping, tuple)):
        return False
    forms = {type(row) if not isinstance(row, (Mapping, tuple)) else _form(row) for row in rows}
    inside = [[leaf for _, leaf in leaves(row, of_row=True) if not _is_empty(leaf)] for row in rows]
    if len(forms) > 1 or not all(part and all(isinstance(leaf, (list, *SINGLE)) for leaf in part) for part in inside):
        return False
    components = [leaf for _, leaf in leaves(rows)]
    texts = all(isinstance(leaf, list) and _are_texts(leaf) for leaf in components)
    return not texts or len({len(leaf) for leaf in components}) > 1


def _form(row: Any) -> Any:
    return frozenset(row) if isinstance(row, Mapping) else len(row)


def _are_texts(values: Sequence[Any]) -> bool:
    return all(isinstance(one, (str, bytes)) for one in values)


def _depth(values: list[Any]) -> int:
    """How deep the numbers and texts of a list lie: 1 in [1, 2], 2 in [[1], [2]]. 0: not all lie equally deep, or there is
    something else, or lists of lists have both numbers and texts."""
    if all(isinstance(one, SINGLE) for one in values):
        return 1
    kinds = _kinds(values, 0) if all(isinstance(one, list) for one in values) else set()
    depth, _ = kinds.pop() if len(kinds) == 1 else (0, False)
    return depth


def _kinds(value: Any, depth: int) -> set[tuple[int, bool]]:
    """How deep each value lies, and whether it is a text. Depth 0: it is neither a number nor a text."""
    if isinstance(value, list):
        return {kind for one in value for kind in _kinds(one, depth + 1)}
    return {(depth, isinstance(value, (str, bytes))) if isinstance(value, SINGLE) else (0, False)}


def _is_empty(leaf: Any) -> bool:
    return isinstance(leaf, list) and not leaf


def length(leaf: Any) -> Optional[int]:
    """The length of a component along axis 0. None: it is a single value."""
    if isinstance(leaf, list):
        return len(leaf)
    if hasattr(leaf, "dense_shape"):
        return int(leaf.dense_shape[0])
    shape = leaf.shape if hasattr(leaf, "shape") else np.shape(leaf)
    return int(shape[0]) if len(shape) else None


# ---- A component as a column.


def _columns_of_row(row: Any, path: str = "") -> list[Column]:
    """The columns of an element that is one row. They are those of the same row in a batch of one."""
    return [_column(leaf, where, single=True) for where, leaf in leaves(row, path, True) if not _is_empty(leaf)]


def _column(leaf: Any, path: str, single: bool = False) -> Column:
    """`path`: of the component, for errors."""
    if isinstance(leaf, list) and not single and _depth(leaf) > 1:
        return _Lists(leaf, path)
    try:
        return column_of(leaf, single)
    except NoArray as error:
        where = f"component {path} of the element" if path else "the element"
        why = f" ({error})" if str(error) else ""
        raise TypeError(
            explain(
                f"{where} is of type {type(leaf).__name__}, of which audit() can't make an array{why}",
                "Pass key=, a function that returns one key for each row of an element",
            )
        ) from None


def column_of(leaf: Any, single: bool = False) -> Column:
    """The column of a component. `single`: the component is one row.

    Raises:
      NoArray: it is no array.
    """
    if hasattr(leaf, "dense_shape"):
        return _sparse(leaf, single)
    if hasattr(leaf, "nested_row_splits"):
        rows = [leaf] if single else leaf
        kind = f"ragged {leaf.dtype.name}"
        return Column(kind, lambda a, b: [_ragged_row(row) for row in rows[a:b]])
    array, dtype = array_of(leaf)
    if dtype == EXACT:  # a row's bytes would depend on the other rows of its batch
        raise NoArray("whole numbers that no one dtype of numpy's holds")
    return dense(array[None] if single else array, dtype)


def dense(array: Array, dtype: str) -> Column:
    """The column of an array that has an axis 0; `dtype` as array_of() returns it."""
    kind = dtype + "x".join(map(str, array.shape[1:]))
    entries = int(np.prod(array.shape[1:], dtype=np.int64))
    if dtype == "string":
        table = array.reshape(len(array), entries)
        return Column(kind, lambda a, b: [_framed(map(bytes_of, row)) for row in table[a:b].tolist()])
    width = array.dtype.itemsize * entries

    def part(a: int, b: int) -> Array:
        piece = np.ascontiguousarray(array[a:b])  # a view where rows lie one behind the other
        return piece.reshape(-1).view(np.uint8).reshape(len(piece), width)

    return Column(kind, part, width)


def _sparse(leaf: Any, single: bool) -> Column:
    indices, values, shape = np.asarray(leaf.indices), np.asarray(leaf.values), np.asarray(leaf.dense_shape)
    if single:
        indices, shape = np.insert(indices, 0, 0, axis=1), np.insert(shape, 0, 1)
    order = np.argsort(indices[:, 0], kind="stable")  # TensorFlow allows any order
    indices, values = indices[order], values[order]

    def part(a: int, b: int) -> list[bytes]:
        ends = np.searchsorted(indices[:, 0], np.arange(a, b + 1))
        return [_framed([indices[c:d, 1:].tobytes(), _value_bytes(values[c:d])]) for c, d in zip(ends, ends[1:])]

    return Column(f"sparse {leaf.dtype.name}{'x'.join(map(str, shape[1:]))}", part)


def _ragged_row(row: Any) -> bytes:
    if not hasattr(row, "nested_row_splits"):
        array = np.asarray(row)
        return _framed([str(array.shape).encode(), _value_bytes(array)])
    splits = [np.asarray(one).astype(np.int64).tobytes() for one in row.nested_row_splits]
    return _framed([*splits, _value_bytes(np.asarray(row.flat_values))])


def _value_bytes(values: Array) -> bytes:
    return _framed(map(bytes_of, values.ravel().tolist())) if values.dtype.kind in "OSU" else values.tobytes()


def _bytes_of_rows(parts: Sequence[Any]) -> Iterable[Any]:
    """The bytes of each row, from its parts in all columns."""
    if not any(isinstance(part, list) for part in parts):
        table = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        view, width = table.reshape(-1).data, table.shape[1]
        return (view[i * width : (i + 1) * width] for i in range(len(table)))
    each = [part if isinstance(part, list) else [row.tobytes() for row in part] for part in parts]
    return map(_framed, zip(*each))


def _framed(parts: Iterable[bytes]) -> bytes:
    """Several texts as one. No other texts make the same."""
    return b"".join([piece for part in parts for piece in (len(part).to_bytes(8, "little"), part)])


# ---- Arrays.


def array_of(leaf: Any) -> tuple[Array, str]:
    """The leaf as an array, and its dtype's name. Texts are an array of objects, or of numpy's texts, whose dtype is
    "string". An array of whole numbers that no dtype of numpy's holds has Python's own, and the dtype EXACT.

    Raises:
      NoArray: it is no array.
    """
    if type(leaf).__module__.partition(".")[0] == "torch":
        leaf = leaf.detach().cpu() if hasattr(leaf, "detach") else leaf
        if str(getattr(leaf, "dtype", "")) == "torch.bfloat16":  # numpy has none
            return leaf.view(sys.modules["torch"].int16).numpy(), "bfloat16"
    try:
        if hasattr(leaf, "numpy") and getattr(leaf, "shape", None) == ():
            leaf = leaf.numpy()  # np.asarray() refuses a single bfloat16 of TensorFlow's
        array = _listed(leaf) if isinstance(leaf, list) else np.asarray(leaf, _dtype_for(leaf))
    except Exception as error:  # whatever the object's own conversion raises
        raise NoArray(str(error)) from error
    if array.dtype.kind == "O" or (array.dtype.kind == "f" and isinstance(leaf, list)):
        values = array if array.dtype.kind == "O" else np.array(leaf, object)
        if (whole := _whole_numbers(values)) is not None:
            return whole, EXACT
        if array.dtype.kind == "O" and not _are_texts(array.ravel().tolist()):
            raise NoArray
    if array.dtype.kind in "OSU":
        return array, "string"
    if array.dtype.hasobject:  # the array would hold addresses in memory
        raise NoArray("its records have fields of Python objects")
    dtype = array.dtype
    if dtype.byteorder not in "=|" or dtype.names is not None:  # the same numbers have the same bytes
        dtype = _packed(dtype)
        array = array.astype(dtype, copy=False)
    return array, dtype.name if dtype.names is None else str(dtype)


def _dtype_for(leaf: Any) -> Any:
    return object if isinstance(leaf, (str, bytes)) else None  # numpy's own texts lose NULs at their ends


def _listed(values: list[Any]) -> Array:
    """A list as an array, with its texts as objects. numpy's own texts would be as long as the longest."""
    if _holds_texts(values):
        return np.array(values, object)
    return np.asarray(values) if values else np.empty(0, np.int64)


def _holds_texts(values: Any) -> bool:
    return any(map(_holds_texts, values)) if isinstance(values, list) else isinstance(values, (str, bytes))


def _whole_numbers(values: Array) -> Optional[Array]:
    """An array of objects as one of Python's own whole numbers; None: some are none, or there are none."""
    try:
        flat = [operator.index(one) for one in values.ravel().tolist()]
    except TypeError:
        return None
    whole = np.empty(len(flat), object)
    whole[:] = flat
    return whole.reshape(values.shape) if flat else None


def _packed(dtype: Any) -> Any:
    """The dtype of records without gaps between their fields, in the machine's byte order."""
    if dtype.subdtype is not None:
        inner, shape = dtype.subdtype
        return np.dtype((_packed(inner), shape))
    if dtype.names is None:
        return dtype.newbyteorder("=")
    return np.dtype([(name, _packed(dtype.fields[name][0])) for name in dtype.names])
