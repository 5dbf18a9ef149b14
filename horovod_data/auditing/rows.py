# SPDX-License-Identifier: Apache-2.0
"""The rows of an element, and their digests. Pure.

A loader yields nests (tuples, lists, mappings) of components. Most components are arrays whose axis 0 is the rows. The
digest of a row is made of its kind (dtype and shape) and its bytes in all components.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from hashlib import blake2b
from itertools import chain
from typing import Any, Iterable, Iterator, Optional, Union

import numpy as np

from ..errors import explained

SINGLE = (str, bytes, int, float, np.generic)

Array = Any  # an ndarray


class NoArray(TypeError):
    """A component that is not an array. Its text is the reason in parentheses, or empty."""


def row_digests(element: Any) -> Array:
    """uint64 [rows, 2]: the digests of an element's rows. Raises TypeError if a component is not an array."""
    rows = rows_of(element)
    if rows is None:
        return digests([_row(element)])
    components = [_rows_of_array(*_array(leaf, path)) for path, leaf in leaves(element) if not _is_empty(leaf)]
    return digests(map(b"".join, zip(*components)))


def digests(rows: Iterable[bytes]) -> Array:
    """uint64 [rows, 2]: the BLAKE2b digest of each row."""
    joined = b"".join([blake2b(row, digest_size=16).digest() for row in rows])
    return np.frombuffer(joined, "<u8").astype(np.uint64, copy=False).reshape(-1, 2)


def rows_of(element: Any) -> Optional[int]:
    """The number of rows along axis 0, if all components have an axis 0 of this length. Otherwise None."""
    found = leaves(element)
    components = [leaf for _, leaf in found if not _is_empty(leaf)]
    counts = {length(leaf) for leaf in components} if components else {0} if found else {None}
    return counts.pop() if len(counts) == 1 else None


def _framed(parts: Iterable[bytes]) -> bytes:
    """Joins several texts into one. Other texts give another result."""
    return b"".join([piece for part in parts for piece in (len(part).to_bytes(8, "little"), part)])


def bytes_of(text: Union[str, bytes]) -> bytes:
    return text.encode(errors="surrogatepass") if isinstance(text, str) else text


# ---- The nest of an element.


def leaves(element: Any, path: str = "", of_row: bool = False) -> list[tuple[str, Any]]:
    """The components of an element, and their paths. A None is not a component.

    Components of a mapping are in the order of its keys. These are one component:

    - a list of numbers, or of texts, or of such lists if all are equally deep. All lists of one depth must have one
      length;
    - a tuple of texts inside of an element, because PyTorch collates texts into tuples;
    - an empty list.

    `of_row`: the element is one row. Then each text of a tuple is a component.
    """
    if element is None:
        return []
    if isinstance(element, Mapping):
        names = sorted(element, key=lambda name: (str(type(name)), name))
        parts = [(f"{path}[{name!r}]", element[name]) for name in names]
    elif _is_empty(element) or (isinstance(element, list) and _is_component(element)):
        return [(path, element)]
    elif isinstance(element, tuple) and element and path and not of_row and all(map(_is_text, element)):
        return [(path, list(element))]
    elif isinstance(element, (list, tuple)):
        parts = [(f"{path}[{i}]", part) for i, part in enumerate(element)]
    else:
        return [(path, element)]
    return [leaf for where, part in parts for leaf in leaves(part, where, of_row)]


def _is_component(values: list[Any]) -> bool:
    """Says whether a list has only numbers or only texts, all at one depth: [1, 2], [["a"], ["b"]]."""
    kinds = {(depth if isinstance(one, SINGLE) else 0, _is_text(one)) for depth, one in _entries(values)}
    return len(kinds) == 1 and kinds.pop()[0] > 0


def _entries(value: Any, depth: int = 0) -> Iterator[tuple[int, Any]]:
    """The entries of a list of lists, each with its depth."""
    if isinstance(value, list):
        for one in value:
            yield from _entries(one, depth + 1)
    else:
        yield depth, value


def _is_text(value: Any) -> bool:
    return isinstance(value, (str, bytes))


def _is_empty(leaf: Any) -> bool:
    return isinstance(leaf, list) and not leaf


def length(leaf: Any) -> Optional[int]:
    """The length of a component along axis 0. None: the component is a single value."""
    if isinstance(leaf, list):
        return len(leaf)
    shape = leaf.shape if hasattr(leaf, "shape") else np.shape(leaf)
    return int(shape[0]) if len(shape) else None


# ---- The bytes of rows.


def _row(row: Any) -> bytes:
    """The bytes of an element that is one row. The same row in a batch has the same bytes."""
    arrays = [_array(leaf, path) for path, leaf in leaves(row, of_row=True) if not _is_empty(leaf)]
    return b"".join(chain.from_iterable(_rows_of_array(array[None], dtype) for array, dtype in arrays))


def _rows_of_array(array: Array, dtype: str) -> Iterator[bytes]:
    """The bytes of each row, one row at a time, because an element may be a whole data set."""
    kind = f"{dtype}{array.shape[1:]}".encode()
    if dtype != "string":
        return (kind + row.tobytes() for row in array)
    texts = (array[i : i + 1].ravel().tolist() for i in range(len(array)))
    return (kind + _framed(map(bytes_of, row)) for row in texts)


def _array(leaf: Any, path: str) -> tuple[Array, str]:
    try:
        return array_of(leaf)
    except NoArray as error:
        where = f"component {path} of the element" if path else "the element"
        what = f"{where} is of type {type(leaf).__name__}, of which audit() can't make an array{error}"
        to_do = "Pass key=, a function that returns one key for each row of an element"
        raise explained(TypeError, what, to_do) from None


def array_of(leaf: Any) -> tuple[Array, str]:
    """The leaf as an array, and the name of its dtype: "string" for texts. Raises NoArray."""
    if hasattr(leaf, "nested_row_splits") or hasattr(leaf, "dense_shape"):  # a ragged or sparse tensor
        raise NoArray
    if type(leaf).__module__.partition(".")[0] == "torch":
        leaf = leaf.detach().cpu() if hasattr(leaf, "detach") else leaf
        if str(getattr(leaf, "dtype", "")) == "torch.bfloat16":  # numpy has no bfloat16
            return leaf.view(sys.modules["torch"].int16).numpy(), "bfloat16"
    try:
        if hasattr(leaf, "numpy") and getattr(leaf, "shape", None) == ():
            leaf = leaf.numpy()  # np.asarray() refuses a single bfloat16 of TensorFlow
        if isinstance(leaf, list) and not leaf:
            return np.empty(0, np.int64), "int64"
        # An array of numpy's own texts loses NULs at their ends, and makes each text as long as the longest.
        texts = any(_is_text(one) for _, one in _entries(leaf))
        array = np.array(leaf, object) if texts else np.asarray(leaf)
    except Exception as error:  # the object's own conversion may raise any error
        raise NoArray(f" ({error})" if str(error) else "") from error
    if array.dtype.kind in "OSU":
        if array.dtype.kind == "O" and not all(map(_is_text, array.ravel().tolist())):
            raise NoArray
        return array, "string"
    if array.dtype.kind == "V" and array.dtype.names:
        raise NoArray(" (a record, whose bytes may differ although its fields are equal)")
    if array.dtype.kind == "f" and isinstance(leaf, list) and all(_is_integer(one) for _, one in _entries(leaf)):
        # As floats, different whole numbers could be equal.
        raise NoArray(" (whole numbers that no dtype of numpy can hold together)")
    # in one byte order, so that the same numbers have the same bytes
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return array, array.dtype.name


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) or getattr(getattr(value, "dtype", None), "kind", "") in ("i", "u")
