# SPDX-License-Identifier: Apache-2.0
"""A component of an element as bytes, row by row, and their digests. Pure, but for the look at TensorFlow's ragged and sparse
tensors.

Rows become bytes piece by piece: an element may be all that there is of a data set, and stands in memory once.
"""

from __future__ import annotations

import dataclasses
import sys
from hashlib import blake2b
from typing import Any, Callable, Iterable, Optional, Sequence, Union

import numpy as np

from ..errors import explain

# The first word of a whole number's key; a digest begins with one of them in 1 of 2^63 cases.
INTEGER, LARGE_INTEGER = 1, 2

_PIECE = 16 << 20  # bytes of rows that are made at a time,
_PIECE_ROWS = 1 << 16  # and rows, of each of which Python holds an object,
_PIECE_TEXTS = 256  # or rows that differ in length: nobody knows how long they are

Array = Any  # an ndarray: Python 3.9's mypy and numpy's types don't agree on much more


@dataclasses.dataclass
class Column:
    """One component of an element, as bytes.

    `rows`: along its axis 0; None: it has none. `part`: rows a to b, as uint8 [b - a, `width`]; or, where rows differ in length and
    `width` is None, a list of them, each in a form of which no other row has the beginning. `whole`: all of it as one row, in the
    same form. `words`: of whole numbers that are keys, uint64 [rows or 1, 2]. `texts`: of texts, one by one, what they are.
    """

    rows: Optional[int]
    kind: str  # dtype and shape of a row
    whole_kind: str  # and of the whole
    whole: Callable[[], bytes]
    part: Callable[[int, int], Any]
    width: Optional[int] = None
    words: Array = None
    texts: Array = None


def column_of(leaf: Any, path: str, keep_integers: bool = False) -> Column:
    """Of a leaf of an element: `path`, for errors. `keep_integers`: whole numbers are the same in all dtypes.

    Raises:
      TypeError: it is no array.
    """
    if hasattr(leaf, "nested_row_splits") or hasattr(leaf, "dense_shape"):
        return _composite(leaf)
    array, dtype = _array(leaf, path)
    rows = array.shape[0] if array.ndim else None
    if keep_integers and array.dtype.kind in "iub" and array.ndim <= 1:
        words = _integer_words(np.atleast_1d(array))
        return Column(rows, "integer", "integer", words.tobytes, lambda a, b: _bytes_in_rows(words[a:b], 16), 16, words)
    inner = "" if array.ndim <= 1 else "x".join(map(str, array.shape[1:]))
    outer = "x".join(map(str, array.shape))
    entries = int(np.prod(array.shape[1:], dtype=np.int64))
    if array.dtype.kind in "OSU":
        table = array.reshape(1 if rows is None else rows, entries)

        def texts(a: int, b: int) -> list[bytes]:
            return [framed(map(bytes_of, row)) for row in table[a:b].tolist()]

        return Column(
            rows,
            "string" + inner,
            "string" + outer,
            lambda: b"".join(texts(0, len(table))),
            texts,
            texts=table.reshape(-1),
        )
    width = array.dtype.itemsize * entries
    return Column(
        rows, dtype + inner, dtype + outer, array.tobytes, lambda a, b: _bytes_in_rows(array[a:b], width), width
    )


def _bytes_in_rows(array: Array, width: int) -> Array:
    """A view where rows lie one behind the other."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(len(array), width)


def row_digests(columns: Sequence[Column], rows: int, kind: str, bare: bool = False) -> Array:
    """uint64 [rows, 2]: of each row, which has a part in every column. `bare`: of one column, as it says its rows."""
    widths = [column.width for column in columns if column.width is not None]
    step = max(1, min(_PIECE // max(1, sum(widths)), _PIECE_ROWS if len(widths) == len(columns) else _PIECE_TEXTS))
    found = np.empty((rows, 2), np.uint64)
    for begin in range(0, rows, step):
        end = min(begin + step, rows)
        found[begin:end] = digests(_rows([column.part(begin, end) for column in columns], bare), kind)
    return found


def _rows(parts: Sequence[Any], bare: bool) -> Iterable[Any]:
    """The bytes of each row, of its parts in all columns."""
    if not any(isinstance(part, list) for part in parts):
        table = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        view, width = table.reshape(-1).data, table.shape[1]
        return (view[i * width : (i + 1) * width] for i in range(len(table)))
    each = [part if isinstance(part, list) else [row.tobytes() for row in part] for part in parts]
    return each[0] if bare else map(framed, zip(*each))


def _array(leaf: Any, path: str) -> tuple[Array, str]:
    """The leaf as numpy has it, and its dtype's name."""
    if type(leaf).__module__.partition(".")[0] == "torch":
        leaf = leaf.detach().cpu() if hasattr(leaf, "detach") else leaf
        if str(getattr(leaf, "dtype", "")) == "torch.bfloat16":  # numpy has none
            return leaf.view(sys.modules["torch"].int16).numpy(), "bfloat16"
    try:
        if hasattr(leaf, "numpy") and getattr(leaf, "shape", None) == ():
            leaf = leaf.numpy()  # np.asarray() refuses a single bfloat16 of TensorFlow's
        # A text of numpy's own type loses NULs at its end.
        array = (
            listed(leaf)
            if isinstance(leaf, list)
            else np.asarray(leaf, object if isinstance(leaf, (str, bytes)) else None)
        )
    except Exception as error:  # whatever the object's own conversion raises
        raise TypeError(_no_array(leaf, path, str(error))) from error
    if isinstance(leaf, (list, tuple)) and array.dtype.kind == "f" and _all_whole(leaf):
        # Beside others they might fit: a row's content would depend on its batch.
        raise TypeError(_no_array(leaf, path, "whole numbers that no one dtype of numpy's holds"))
    if array.dtype.kind == "O" and not all(isinstance(one, (str, bytes)) for one in array.ravel()):
        raise TypeError(_no_array(leaf, path))
    if array.dtype.hasobject and array.dtype.kind == "V":  # of which the array holds the places in memory
        raise TypeError(_no_array(leaf, path, "its records have fields of Python objects"))
    dtype = array.dtype
    if dtype.byteorder not in "=|" or dtype.names is not None:  # the same numbers have the same bytes
        dtype = _packed(dtype)
        array = array.astype(dtype, copy=False)
    return array, dtype.name if dtype.names is None else str(dtype)


def _packed(dtype: Any) -> Any:
    """Of records: their fields, one behind the other. What stands between them says nothing, nor does the class that they have."""
    if dtype.subdtype is not None:
        inner, shape = dtype.subdtype
        return np.dtype((_packed(inner), shape))
    if dtype.names is None:
        return dtype.newbyteorder("=")
    return np.dtype([(name, _packed(dtype.fields[name][0])) for name in dtype.names])


def _no_array(leaf: Any, path: str, why: str = "") -> str:
    why = f" ({why})" if why else ""
    where = f"component {path} of the element" if path else "the element"
    return explain(
        f"{where} is of type {type(leaf).__name__}, of which audit() can't make an array{why}",
        "Pass key=, a function that returns one key for each row of an element",
    )


def _all_whole(values: Any) -> bool:
    """Of a list, or of lists in lists."""
    return all(
        _all_whole(one) if isinstance(one, (list, tuple)) else isinstance(one, (int, np.integer)) for one in values
    )


def _holds_texts(values: Any) -> bool:
    return any(map(_holds_texts, values)) if isinstance(values, list) else isinstance(values, (str, bytes))


def listed(values: list[Any]) -> Array:
    """A list as an array, its texts as objects: numpy's own would be as long as the longest, and lose NULs at their ends."""
    if any(isinstance(one, (str, bytes)) for one in values):
        array = np.empty(len(values), object)
        array[:] = values
        return array
    if _holds_texts(values):  # lists in a list
        return np.array(values, object)
    return np.asarray(values) if values else np.empty(0, np.int64)


def _composite(leaf: Any) -> Column:
    """A ragged or a sparse tensor: the rows' values and where they stand."""
    dtype = leaf.dtype.name
    if hasattr(leaf, "dense_shape"):
        indices, values, shape = np.asarray(leaf.indices), np.asarray(leaf.values), np.asarray(leaf.dense_shape)
        by_row = np.argsort(indices[:, 0], kind="stable")  # TensorFlow doesn't ask that they are in order
        indices, values = indices[by_row], values[by_row]
        inner, outer = (f"sparse {dtype}{'x'.join(map(str, dims))}" for dims in (shape[1:], shape))

        def part(a: int, b: int) -> list[bytes]:
            ends = np.searchsorted(indices[:, 0], np.arange(a, b + 1))
            return [framed([indices[c:d, 1:].tobytes(), _value_bytes(values[c:d])]) for c, d in zip(ends, ends[1:])]

        return Column(int(shape[0]), inner, outer, lambda: framed([indices.tobytes(), _value_bytes(values)]), part)
    kind = f"ragged {dtype}"
    return Column(
        int(leaf.nrows()), kind, kind, lambda: _ragged_row(leaf), lambda a, b: [_ragged_row(row) for row in leaf[a:b]]
    )


def _ragged_row(row: Any) -> bytes:
    if not hasattr(row, "nested_row_splits"):
        array = np.asarray(row)
        return framed([str(array.shape).encode(), _value_bytes(array)])
    splits = [np.asarray(one).astype(np.int64).tobytes() for one in row.nested_row_splits]
    return framed([*splits, _value_bytes(np.asarray(row.flat_values))])


def _value_bytes(values: Array) -> bytes:
    return framed(map(bytes_of, values.ravel().tolist())) if values.dtype.kind in "OSU" else values.tobytes()


def _integer_words(values: Array) -> Array:
    words = np.empty((len(values), 2), np.uint64)
    words[:, 0] = INTEGER
    if values.dtype.kind == "u" and values.dtype.itemsize == 8:
        words[values >= np.uint64(1 << 63), 0] = LARGE_INTEGER
        words[:, 1] = values
    else:
        words[:, 1] = values.astype(np.int64).view(np.uint64)
    return words


def digests(rows: Iterable[Any], kind: str) -> Array:
    """uint64 [rows, 2]: of each row's bytes, and of the kind of row."""
    person = blake2b(kind.encode(), digest_size=16).digest()
    joined = b"".join([blake2b(row, digest_size=16, person=person).digest() for row in rows])
    return np.frombuffer(joined, "<u8").astype(np.uint64, copy=False).reshape(-1, 2)


def framed(parts: Iterable[bytes]) -> bytes:
    """Some texts as one, which no others make."""
    return b"".join([piece for part in parts for piece in (len(part).to_bytes(8, "little"), part)])


def bytes_of(text: Union[str, bytes]) -> bytes:
    return text.encode(errors="surrogatepass") if isinstance(text, str) else text
