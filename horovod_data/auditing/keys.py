# SPDX-License-Identifier: Apache-2.0
"""What an audit knows a row by: 16 bytes, as two uint64. Pure.

Whole numbers that the user gives as keys stand in them as they are, so two of them are never taken for one. Everything else
is a BLAKE2b digest of 128 bits: among 10^12 different rows the odds of one such mistake are below 10^-14.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple, Optional, Sequence, Union

import numpy as np

from ..errors import explain
from .columns import INTEGER, LARGE_INTEGER, Array, bytes_of, column_of, digests, framed, listed, row_digests
from .nests import SINGLE, is_table, leaves, rows_in_lists

Key = Union[None, str, int, tuple[Union[str, int], ...], Callable[[Any], Any]]


class Keys(NamedTuple):
    """The keys of some rows: uint64 [rows, 2]; and what they were made of, where that is text, or a number that has no 64 bits:
    [rows] of bytes."""

    words: Array
    names: Optional[Sequence[bytes]] = None


def keys_of(element: Any, key: Key) -> Keys:
    """The keys of an element's rows.

    Args:
      element: a nest (tuples, lists, mappings) of arrays, tensors of TensorFlow, PyTorch or JAX, numbers and texts.
      key: as audit() takes it.

    Raises:
      TypeError: something in the element, or what the key function returned, is no array; or the key is a tuple of single values, and
        not one for each row.
      ValueError: the key function returned more or fewer keys than the element has rows.
      KeyError, IndexError: the element has no such component.
    """
    if key is None:
        return Keys(content_keys(element))
    value = key(element) if callable(key) else component_of(element, key)
    made = _keys_of_tuple(value, element) if isinstance(value, tuple) else given_keys(value)
    if callable(key) and not _single(value) and (rows := _other_rows(element, len(made.words))) is not None:
        raise ValueError(
            explain(
                f"the function returned {len(made.words)} keys for an element of {rows} rows",
                "Let it return one for each row; or a single one, not in an array, if the element is one row",
            )
        )
    return made


def _keys_of_tuple(value: tuple[Any, ...], element: Any) -> Keys:
    """Of arrays: each row's key is made of its entries in all of them. Of single values: the keys of that many rows."""
    parts = _parts(value)
    if not any(isinstance(part, list) or len(getattr(part, "shape", ())) for part in parts):
        if len(parts) > 1 and len(parts) != _rows_of(element):
            raise TypeError(
                explain(
                    f"the key is {_described(value, None)}: are they one key together, or the keys of {len(parts)} rows?",
                    "Make one text of several values that are a key together; let the keys of several rows be a list or an array",
                )
            )
        return given_keys(value)
    if len(parts) == 1:
        return given_keys(parts[0])
    columns = []
    for i, part in enumerate(parts):
        try:
            columns.append(column_of(part, "", keep_integers=True))
        except TypeError as error:
            raise TypeError(
                explain(
                    f"part {i} of the key is {_described(part, error.__cause__)}, and no array of one kind",
                    "Let each part of a key be an array (a list) with one entry for each row",
                )
            ) from None
    counts = [column.rows for column in columns]
    if len(set(counts)) > 1:
        told = ", ".join("a single value" if rows is None else f"{rows} rows" for rows in counts)
        raise ValueError(
            explain(
                f"the key is a tuple of parts of different lengths: {told}",
                "Let each part of a key have one entry for each row",
            )
        )
    return Keys(row_digests(columns, counts[0] or 0, "together " + ";".join(column.kind for column in columns)))


def _parts(value: tuple[Any, ...]) -> list[Any]:
    """Tuples within it are several parts, but for one of texts, as PyTorch collates those of a batch's rows."""
    parts: list[Any] = []
    for part in value:
        if isinstance(part, tuple):
            parts += [list(part)] if all(isinstance(one, (str, bytes)) for one in part) else _parts(part)
        else:
            parts.append(part)
    return parts


def _single(value: Any) -> bool:
    return isinstance(value, SINGLE) or getattr(value, "shape", None) == ()


def _shapes(element: Any) -> list[tuple[Any, ...]]:
    """Of its components; empty: not all have one."""
    try:
        shapes = [tuple((len(leaf),) if isinstance(leaf, list) else leaf.shape) for _, leaf in leaves(element)]
    except Exception:  # a key function knows more of such an element than we do
        return []
    return shapes if all(shape and shape[0] is not None for shape in shapes) else []


def _rows_of(element: Any) -> Optional[int]:
    """The rows of an element; None: its components don't say."""
    try:
        if (in_lists := rows_in_lists(element)) is not None:
            return len(in_lists)
    except Exception:  # as in _shapes()
        return None
    rows = {int(shape[0]) for shape in _shapes(element)}
    return rows.pop() if len(rows) == 1 else None


def _other_rows(element: Any, keys: int) -> Optional[int]:
    """The rows of an element, if they are known and can't be as many as its keys. An element may be a list of rows, and rows may
    stand along axis 1."""
    rows = _rows_of(element)
    if rows in (None, keys) or (isinstance(element, (list, tuple)) and len(element) == keys):
        return None
    return None if all(shape[1:2] == (keys,) for shape in _shapes(element)) else rows


def component_of(element: Any, key: Any) -> Any:
    """`element["id"]` for the key "id", `element[0]["id"]` for the key (0, "id"); fields of namedtuples by their names.

    Raises:
      KeyError, IndexError, TypeError: it has no such component.
    """
    for step in key if isinstance(key, tuple) else (key,):
        if isinstance(step, str) and hasattr(element, "_fields"):
            if step not in element._fields:
                raise KeyError(step)
            element = getattr(element, step)
        else:
            element = element[step]
    return element


def content_keys(element: Any) -> Array:
    """uint64 [rows, 2]: a digest of each row's dtypes, shapes and bytes. Rows are counted along an axis 0 that all
    components have in common; without one the element as a whole is one row."""
    if (rows := rows_in_lists(element)) is not None:
        return np.concatenate([_key_of_row(row) for row in rows])
    columns = [column_of(leaf, path) for path, leaf in leaves(element)]
    if not columns and _has_an_empty_list(element):
        return np.empty((0, 2), np.uint64)
    counts = {column.rows for column in columns}
    if len(counts) == 1 and None not in counts:
        return row_digests(columns, columns[0].rows or 0, ";".join(column.kind for column in columns))
    return _key_of_row(element)


def _key_of_row(row: Any) -> Array:
    """uint64 [1, 2]: that of the same row in a batch of one, where no component's rows differ in length, and each text of a tuple is a
    component by itself."""
    columns = [column_of(leaf, path) for path, leaf in leaves(row, texts_of_rows=False, is_component=is_table)]
    join = framed if any(column.width is None for column in columns) else b"".join
    return digests([join([column.whole() for column in columns])], ";".join(column.whole_kind for column in columns))


def given_keys(value: Any, what: str = "the key") -> Keys:
    """The keys of what a user gives as keys: a number or a text for one row, or an array (list, tensor) whose axis 0 is
    rows. `what`: for errors.

    Raises:
      TypeError: it is no array.
    """
    if isinstance(value, (str, bytes)):
        names = [bytes_of(value)]
        return Keys(digests(names, "string"), names)
    given = value
    if (
        isinstance(value, range)
        and value
        and -1 << 63 <= min(value[0], value[-1]) <= max(value[0], value[-1]) < 1 << 63
    ):
        value = value[0] + value.step * np.arange(len(value), dtype=np.int64)
    elif isinstance(value, (list, tuple, set, frozenset, range)):
        value = list(value)
    numbers = _numbers_that_no_dtype_holds(value)
    if numbers is not None:
        texts = [str(number).encode() for number in numbers] if any(map(_is_long, numbers)) else None
        return Keys(_number_words(numbers), texts)
    try:
        column = column_of(value, what, keep_integers=True)
    except TypeError as error:
        raise TypeError(
            explain(
                f"{what} is {_described(given, error.__cause__)}, and no array of one kind",
                "Let it be a whole number or a text, or an array (a list) of one for each row; make one text of several values that "
                "are a key together",
            )
        ) from None
    if column.kind == "string":
        names = [bytes_of(text) for text in column.texts.tolist()]
        return Keys(digests(names, "string"), names)
    if column.kind == "integer":
        return Keys(column.words)
    if column.rows is None:
        return Keys(digests([column.whole()], column.whole_kind))
    return Keys(row_digests([column], column.rows, column.kind, bare=True))


def _numbers_that_no_dtype_holds(value: Any) -> Optional[list[int]]:
    """Whole numbers that numpy has no one integer dtype for: it would make floats or objects of them, and different numbers may
    be the same float. None: it is anything else."""
    if isinstance(value, int):
        return [value] if not -1 << 63 <= value < 1 << 64 else None
    if isinstance(value, list):
        try:
            dtype, dims = (array := listed(value)).dtype, array.ndim
        except Exception:  # column_of() says it
            return None
    elif isinstance(getattr(value, "dtype", None), np.dtype) and value.dtype.kind == "O":
        dtype, dims = value.dtype, np.ndim(value)
        value = np.asarray(value).ravel().tolist()
    else:
        return None
    if dims > 1 or dtype.kind not in "fO":
        return None
    numbers = []
    for one in value:
        try:
            numbers.append(operator.index(one))
        except TypeError:
            return None
    return numbers


def _is_long(number: int) -> bool:
    return not -1 << 63 <= number < 1 << 64


def _number_words(numbers: Sequence[int]) -> Array:
    """One by one; those of more than 64 bits are digests."""
    words = np.empty((len(numbers), 2), np.uint64)
    for i, number in enumerate(numbers):
        if _is_long(number):
            words[i] = digests([str(number).encode()], "whole number")[0]
        else:
            words[i] = LARGE_INTEGER if number >= 1 << 63 else INTEGER, number % (1 << 64)
    return words


def _described(value: Any, why: Optional[BaseException]) -> str:
    """For an error: what it is, and what is in it."""
    if isinstance(value, (list, tuple, set, frozenset)) or (isinstance(value, np.ndarray) and value.ndim):
        of = ", ".join(list(dict.fromkeys(type(one).__name__ for one in value))[:4])
        return f"a {type(value).__name__} of {of}"
    return f"a {type(value).__name__}" + (f" ({why})" if why is not None else "")


def integers(words: Array) -> Array:
    """bool [rows]: which keys are whole numbers of 64 bits."""
    return (words[:, 0] == INTEGER) | (words[:, 0] == LARGE_INTEGER)


def shown(word0: int, word1: int) -> Optional[Union[int, str]]:
    """The number that a key is, or a digest's first 8 digits."""
    if word0 == INTEGER:
        return word1 - (1 << 64) if word1 >= 1 << 63 else word1
    return word1 if word0 == LARGE_INTEGER else f"{word0:016x}"[:8]


def owners(words: Array, ranks: int) -> Array:
    """int16 or int64 [rows]: the rank that counts each key. Neighbours go to different ranks, about as many to each."""
    return _spread(_mixed(words) >> np.uint64(32), ranks)


def slices(words: Array, number: int) -> Array:
    """The same for parts of what one rank counts: whatever the number of ranks, about as many go to each."""
    return _spread(_mixed(words) & np.uint64(0xFFFFFFFF), number)


def _spread(bits: Array, over: int) -> Array:
    return (bits * np.uint64(over) >> np.uint64(32)).astype(
        np.int16 if over < 1 << 15 else np.int64
    )  # short ones sort fast


def _mixed(words: Array) -> Array:
    mixed = words[:, 1] ^ (words[:, 0] * np.uint64(0x9E3779B97F4A7C15))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)  # splitmix64's end
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _has_an_empty_list(element: Any) -> bool:
    """A batch of no rows, where nothing else is in it."""
    if isinstance(element, (list, tuple)):
        return element == [] or any(map(_has_an_empty_list, element))
    return isinstance(element, Mapping) and any(map(_has_an_empty_list, element.values()))
