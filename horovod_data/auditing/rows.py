# SPDX-License-Identifier: Apache-2.0
"""The normal form of an element: columns of rows. Pure.

A loader yields nests (tuples, lists, mappings, records) of components. Each component becomes a Column: an array whose
axis 0 is the rows. The digest of a row is made of its kinds (dtype and shape) and its bytes in all columns. If a
component's rows differ in shape, each row has its own columns.

Rows become bytes in pieces, because an element may be a whole data set in memory.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Iterable, NamedTuple, Optional, Sequence, Union

import numpy as np

from ..errors import explain

SINGLE = (str, bytes, int, float, np.generic)
EXACT = "whole number"  # the dtype of an array of Python's own whole numbers, which fit into no dtype of numpy

_PIECE = 16 << 20  # bytes of rows that are made at a time
_PIECE_ROWS = 1 << 16  # rows at a time, because Python needs an object for each
_PIECE_TEXTS = 256  # rows at a time if their lengths differ, because their bytes are not known before

Array = Any  # an ndarray


class NoArray(TypeError):
    """A component that is not an array. Its text says why, and may be empty."""


class Column(NamedTuple):
    """One component of an element, with its rows along axis 0. `dtype` is the name that array_of() returns."""

    array: Array
    dtype: str

    @property
    def kind(self) -> str:
        """The dtype and shape of a row, as one text."""
        return self.dtype + "x".join(map(str, self.array.shape[1:]))

    @property
    def width(self) -> Optional[int]:
        """The bytes of a row. None: rows differ in length."""
        entries = int(np.prod(self.array.shape[1:], dtype=np.int64))
        return self.array.dtype.itemsize * entries if self.dtype != "string" else None

    def part(self, a: int, b: int) -> Any:
        """Rows a to b: uint8 [b - a, `width`], or a list of bytes. No entry of the list is the begin of another."""
        piece = self.array[a:b]
        if self.dtype == "string":
            return [_framed(map(bytes_of, row)) for row in piece.reshape(len(piece), -1).tolist()]
        bare = np.ascontiguousarray(piece).reshape(-1)  # a view if the rows are contiguous in memory
        return bare.view(np.uint8).reshape(len(piece), self.width or 0)

    def row(self, i: int) -> list[Column]:
        """The columns of row i as an element of its own."""
        return [Column(self.array[i : i + 1], self.dtype)]


class Uneven(NamedTuple):
    """A component whose rows may differ in shape. Each row has columns of its own."""

    rows: Any
    path: str

    def row(self, i: int) -> list[Column]:
        return _columns_of_row(self.rows[i], f"{self.path}[{i}]")


def row_groups(element: Any) -> list[tuple[list[Column], int]]:
    """All rows of an element, in groups: (columns, number of rows in each column).

    Most elements are one group. If rows differ in shape, each row is a group.

    Raises:
      TypeError: a component is not an array.
    """
    if are_samples(element):
        return [(_columns_of_row(sample), 1) for sample in element]
    rows = rows_of(element)
    if rows is None:
        return [(_columns_of_row(element), 1)]
    found = [_column(leaf, path) for path, leaf in leaves(element) if not _is_empty(leaf)]
    columns = [column for column in found if isinstance(column, Column)]
    if len(columns) < len(found):
        return [([one for column in found for one in column.row(i)], 1) for i in range(rows)]
    return [(columns, rows)]


def rows_of(element: Any) -> Optional[int]:
    """The number of rows along axis 0, if all components have an axis 0 of this length. Otherwise None."""
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
    """uint64 [rows, 2]: for each row, the BLAKE2b digest of its bytes and of `kind`."""
    person = blake2b(kind.encode(), digest_size=16).digest()
    joined = b"".join([blake2b(row, digest_size=16, person=person).digest() for row in rows])
    return np.frombuffer(joined, "<u8").astype(np.uint64, copy=False).reshape(-1, 2)


def bytes_of(text: Union[str, bytes]) -> bytes:
    return text.encode(errors="surrogatepass") if isinstance(text, str) else text


# ---- The nest of an element.


def leaves(element: Any, path: str = "", of_row: bool = False) -> list[tuple[str, Any]]:
    """The components of an element, and their paths. A None is not a component.

    Components of a mapping are in the order of its keys, those of a record in the order of its fields. These are one
    component:

    - a list of numbers or texts;
    - a list of lists of numbers or texts, if all are equally deep;
    - a tuple of texts inside of an element, because PyTorch collates texts into tuples;
    - an empty list.

    `of_row`: the element is one row. Then lists of lists are one component only if they form an array. Each text of a
    tuple is a component. Each tensor inside a ragged or a sparse tensor is a component.
    """
    if element is None:
        return []
    if isinstance(element, Mapping):
        names = sorted(element, key=lambda name: (str(type(name)), name))
        parts = [(f"{path}[{name!r}]", element[name]) for name in names]
    elif fields := getattr(getattr(element, "dtype", None), "names", None):
        parts = [(f"{path}[{name!r}]", element[name]) for name in fields]
    elif of_row and hasattr(element, "nested_row_splits"):
        splits = [np.asarray(one).astype(np.int64) for one in element.nested_row_splits]
        parts = [(path, one) for one in (*splits, element.flat_values)]
    elif of_row and hasattr(element, "dense_shape"):
        parts = [(path, one) for one in (element.dense_shape, element.indices, element.values)]
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
    """Says whether an element is a list of samples, where each sample is a row.

    Samples are mappings with the same keys, or tuples of one length, that hold only numbers and texts. Except: a list
    that holds only lists and tuples of texts is not a list of samples. These are components, because PyTorch collates
    texts so.
    """
    if not isinstance(rows, list) or not rows or not isinstance(rows[0], (Mapping, tuple)):
        return False
    forms = {type(row) if not isinstance(row, (Mapping, tuple)) else _form(row) for row in rows}
    inside = [[leaf for _, leaf in leaves(row, of_row=True) if not _is_empty(leaf)] for row in rows]
    if len(forms) > 1 or not all(part and all(isinstance(leaf, (list, *SINGLE)) for leaf in part) for part in inside):
        return False
    if not all(isinstance(leaf, (str, bytes, list)) for leaf in inside[0]):
        return True  # some entries are numbers
    components = [leaf for _, leaf in leaves(rows)]
    texts = all(isinstance(leaf, list) and _are_texts(leaf) for leaf in components)
    return not texts or len({len(leaf) for leaf in components}) > 1


def _form(row: Any) -> Any:
    return frozenset(row) if isinstance(row, Mapping) else len(row)


def _are_texts(values: Sequence[Any]) -> bool:
    return all(isinstance(one, (str, bytes)) for one in values)


def _depth(values: list[Any]) -> int:
    """The depth of the numbers and texts in a list: 1 in [1, 2], 2 in [[1], [2]].

    0: the depths differ, or there are other values, or lists of lists hold both numbers and texts.
    """
    if all(isinstance(one, SINGLE) for one in values):
        return 1
    kinds = _kinds(values, 0) if all(isinstance(one, list) for one in values) else set()
    depth, _ = kinds.pop() if len(kinds) == 1 else (0, False)
    return depth


def _kinds(value: Any, depth: int) -> set[tuple[int, bool]]:
    """For each value: its depth, and whether it is a text. Depth 0: it is neither a number nor a text."""
    if isinstance(value, list):
        return {kind for one in value for kind in _kinds(one, depth + 1)}
    return {(depth, isinstance(value, (str, bytes))) if isinstance(value, SINGLE) else (0, False)}


def _is_empty(leaf: Any) -> bool:
    return isinstance(leaf, list) and not leaf


def length(leaf: Any) -> Optional[int]:
    """The length of a component along axis 0. None: the component is a single value."""
    if isinstance(leaf, list):
        return len(leaf)
    if hasattr(leaf, "dense_shape"):
        return int(leaf.dense_shape[0])
    shape = leaf.shape if hasattr(leaf, "shape") else np.shape(leaf)
    return int(shape[0]) if len(shape) else None


# ---- A component as a column.


def _columns_of_row(row: Any, path: str = "") -> list[Column]:
    """The columns of an element that is one row. The same row in a batch of one has the same columns."""
    made = [_column(leaf, where, single=True) for where, leaf in leaves(row, path, True) if not _is_empty(leaf)]
    return [column for column in made if isinstance(column, Column)]


def _column(leaf: Any, path: str, single: bool = False) -> Union[Column, Uneven]:
    """The column of a component. `path`: of the component, for errors. `single`: the component is one row."""
    if hasattr(leaf, "dense_shape"):
        return Uneven(_rows_of_sparse(leaf), path)
    if hasattr(leaf, "nested_row_splits") or (isinstance(leaf, list) and not single and _depth(leaf) > 1):
        return Uneven(leaf, path)
    why = "whole numbers that no one dtype of numpy's holds"
    try:
        array, dtype = array_of(leaf)
        if dtype != EXACT:  # otherwise the bytes of a row would depend on the other rows of its batch
            return Column(array[None] if single else array, dtype)
    except NoArray as error:
        why = str(error)
    where = f"component {path} of the element" if path else "the element"
    what = f"{where} is of type {type(leaf).__name__}, of which audit() can't make an array{why and f' ({why})'}"
    raise TypeError(explain(what, "Pass key=, a function that returns one key for each row of an element"))


def _rows_of_sparse(leaf: Any) -> list[Any]:
    """For each row of a sparse tensor, the tensors that make up the row by itself."""
    indices, values, shape = np.asarray(leaf.indices), np.asarray(leaf.values), np.asarray(leaf.dense_shape)
    order = np.argsort(indices[:, 0], kind="stable")  # TensorFlow allows any order
    ends = np.searchsorted(indices[order, 0], np.arange(shape[0] + 1))
    rows = [order[a:b] for a, b in zip(ends, ends[1:])]
    return [(shape[1:], indices[row, 1:], values[row]) for row in rows]


def _bytes_of_rows(parts: Sequence[Any]) -> Iterable[Any]:
    """The bytes of each row, from its parts in all columns."""
    if not any(isinstance(part, list) for part in parts):
        table = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        view, width = table.reshape(-1).data, table.shape[1]
        return (view[i * width : (i + 1) * width] for i in range(len(table)))
    each = [part if isinstance(part, list) else [row.tobytes() for row in part] for part in parts]
    return map(_framed, zip(*each))


def _framed(parts: Iterable[bytes]) -> bytes:
    """Joins several texts into one. Other texts give another result."""
    return b"".join([piece for part in parts for piece in (len(part).to_bytes(8, "little"), part)])


# ---- Arrays.


def array_of(leaf: Any) -> tuple[Array, str]:
    """The leaf as an array, and the name of its dtype.

    Texts become an array of objects or of numpy's texts, and their dtype is "string". Whole numbers that fit into no
    dtype of numpy become an array of Python's whole numbers, and their dtype is EXACT.

    Raises:
      NoArray: the leaf is not an array.
    """
    if type(leaf).__module__.partition(".")[0] == "torch":
        leaf = leaf.detach().cpu() if hasattr(leaf, "detach") else leaf
        if str(getattr(leaf, "dtype", "")) == "torch.bfloat16":  # numpy has no bfloat16
            return leaf.view(sys.modules["torch"].int16).numpy(), "bfloat16"
    try:
        if hasattr(leaf, "numpy") and getattr(leaf, "shape", None) == ():
            leaf = leaf.numpy()  # np.asarray() refuses a single bfloat16 of TensorFlow
        array = _listed(leaf) if isinstance(leaf, list) else np.asarray(leaf, _dtype_for(leaf))
    except Exception as error:  # the object's own conversion may raise any error
        raise NoArray(str(error)) from error
    objects = array if array.dtype.kind == "O" else None
    # numpy also makes floats of whole numbers that fit into no other dtype
    if array.dtype.kind == "f" and isinstance(leaf, list):
        objects = np.array(leaf, object)
    if objects is not None and (whole := _whole_numbers(objects)) is not None:
        return whole, EXACT
    if array.dtype.kind == "O" and not _are_texts(array.ravel().tolist()):
        raise NoArray
    if array.dtype.kind in "OSU":
        return array, "string"
    # in one byte order, so that the same numbers have the same bytes
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return array, array.dtype.name


def _dtype_for(leaf: Any) -> Any:
    return object if isinstance(leaf, (str, bytes)) else None  # numpy's own texts lose NULs at their ends


def _listed(values: list[Any]) -> Array:
    """A list as an array, with its texts as objects.

    In an array of numpy's texts, each entry would be as long as the longest.
    """
    if _holds_texts(values):
        return np.array(values, object)
    return np.asarray(values) if values else np.empty(0, np.int64)


def _holds_texts(values: Any) -> bool:
    return any(map(_holds_texts, values)) if isinstance(values, list) else isinstance(values, (str, bytes))


def _whole_numbers(values: Array) -> Optional[Array]:
    """An array of objects as an array of Python's whole numbers.

    None: some entries are not whole numbers, or there are none.
    """
    try:
        flat = [operator.index(one) for one in values.ravel().tolist()]
    except TypeError:
        return None
    whole = np.empty(len(flat), object)
    whole[:] = flat
    return whole.reshape(values.shape) if flat else None
