# SPDX-License-Identifier: Apache-2.0
"""What an audit knows a row by: 16 bytes, as two uint64. Pure, but for the look at TensorFlow's ragged and sparse tensors.

Whole numbers that the user gives as keys stand in them as they are, so two of them are never taken for one. Everything else
is a BLAKE2b digest of 128 bits: among 10^12 different rows the odds of one such mistake are below 10^-14.
"""

from __future__ import annotations

import dataclasses
import operator
import sys
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Callable, Iterable, NamedTuple, Optional, Sequence, Union

import numpy as np

from ..errors import explain

# The first word of a whole number's key; a digest begins with one of them in 1 of 2^63 cases.
INTEGER, LARGE_INTEGER = 1, 2

Key = Union[None, str, int, tuple[Union[str, int], ...], Callable[[Any], Any]]
_SINGLE = (str, bytes, int, float, np.generic)
Array = Any  # an ndarray: Python 3.9's mypy and numpy's types don't agree on much more


class Keys(NamedTuple):
    """The keys of some rows: uint64 [rows, 2]; and what they were made of, where that is text, or a number that has no 64 bits:
    [rows] of bytes."""

    words: Array
    names: Optional[Sequence[bytes]] = None


@dataclasses.dataclass
class _Column:
    """One component of an element, as bytes.

    `rows`: along its axis 0; None: it has none. `fixed`: uint8 [rows or 1, bytes of a row]. `parts`: where rows differ in
    length, each in a form of which no other row has the beginning. `whole`: all of it as one row, in the same form.
    """

    rows: Optional[int]
    kind: str  # dtype and shape of a row
    whole_kind: str  # and of the whole
    whole: Callable[[], bytes]
    fixed: Array = None
    parts: Sequence[bytes] = ()


def keys_of(element: Any, key: Key) -> Keys:
    """The keys of an element's rows.

    Args:
      element: a nest (tuples, lists, mappings) of arrays, tensors of TensorFlow, PyTorch or JAX, numbers and texts.
      key: as audit() takes it.

    Raises:
      TypeError: something in the element, or what the key function returned, is no array.
      ValueError: the key function returned more or fewer keys than the element has rows.
      KeyError, IndexError: the element has no such component.
    """
    if key is None:
        return Keys(content_keys(element))
    if not callable(key):
        return given_keys(component_of(element, key))
    value = key(element)
    made = given_keys(value)
    if not _single(value) and (rows := _other_rows(element, len(made.words))) is not None:
        raise ValueError(explain(f"the function returned {len(made.words)} keys for an element of {rows} rows",
                                 "Let it return one for each row; or a single one, not in an array, if the element is one row"))
    return made


def _single(value: Any) -> bool:
    return isinstance(value, _SINGLE) or getattr(value, "shape", None) == ()


def _other_rows(element: Any, keys: int) -> Optional[int]:
    """The rows of an element, if they are known and can't be as many as its keys. An element may be a list of rows, and rows may
    stand along axis 1."""
    if isinstance(element, (list, tuple)) and len(element) == keys:
        return None
    shapes = []
    try:
        for _, leaf in _leaves(element):
            shape = tuple((len(leaf),) if isinstance(leaf, list) else leaf.shape)
            if not shape or shape[0] is None:
                return None
            shapes.append(shape)
    except Exception:  # the function knows more of such an element than we do
        return None
    if len({shape[0] for shape in shapes}) != 1 or shapes[0][0] == keys:
        return None
    return None if all(shape[1:2] == (keys,) for shape in shapes) else int(shapes[0][0])


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
    columns = [_column(leaf, path) for path, leaf in _leaves(element)]
    counts = {column.rows for column in columns}
    if len(counts) == 1 and None not in counts:
        rows, kinds = columns[0].rows or 0, [column.kind for column in columns]
        if all(column.fixed is not None for column in columns):
            table = columns[0].fixed if len(columns) == 1 else np.concatenate([column.fixed for column in columns], axis=1)
            view, width = np.ascontiguousarray(table).reshape(-1).data, table.shape[1]
            parts: Iterable[Any] = (view[i * width:(i + 1) * width] for i in range(rows))
        else:
            each = [column.parts or [row.tobytes() for row in column.fixed] for column in columns]
            parts = map(_framed, zip(*each)) if rows else ()
    else:
        # One row: its key is that of the same row in a batch of one, where no component's rows differ in length.
        kinds = [column.whole_kind for column in columns]
        fixed = all(column.fixed is not None for column in columns)
        parts = [(b"".join if fixed else _framed)([column.whole() for column in columns])]
    return _digests(parts, ";".join(kinds))


def given_keys(value: Any, what: str = "the key") -> Keys:
    """The keys of what a user gives as keys: a number or a text for one row, or an array (list, tensor) whose axis 0 is
    rows. `what`: for errors.

    Raises:
      TypeError: it is no array.
    """
    if isinstance(value, (str, bytes)):
        names = [_bytes_of(value)]
        return Keys(_digests(names, "string"), names)
    given = value
    if isinstance(value, range) and value and -1 << 63 <= min(value[0], value[-1]) <= max(value[0], value[-1]) < 1 << 63:
        value = value[0] + value.step * np.arange(len(value), dtype=np.int64)
    elif isinstance(value, (list, tuple, set, frozenset, range)):
        value = list(value)
    numbers = _numbers_that_no_dtype_holds(value)
    if numbers is not None:
        texts = [str(number).encode() for number in numbers] if any(map(_is_long, numbers)) else None
        return Keys(_number_words(numbers), texts)
    try:
        column = _column(value, what, keep_integers=True)
    except TypeError as error:
        raise TypeError(explain(
            f"{what} is {_described(given, error.__cause__)}, and no array of one kind",
            "Let it be a whole number or a text, or an array (a list) of one for each row; make one text of several values that "
            "are a key together")) from None
    if column.kind == "string":
        names = [part[8:] for part in column.parts]  # without their lengths
        return Keys(_digests(names, "string"), names)
    if column.kind == "integer":
        return Keys(column.fixed)
    if column.rows is None:
        return Keys(_digests([column.whole()], column.whole_kind))
    parts = column.parts if column.fixed is None else [row.tobytes() for row in column.fixed]
    return Keys(_digests(parts, column.kind))


def _numbers_that_no_dtype_holds(value: Any) -> Optional[list[int]]:
    """Whole numbers that numpy has no one integer dtype for: it would make floats or objects of them, and different numbers may
    be the same float. None: it is anything else."""
    if isinstance(value, int):
        return [value] if not -1 << 63 <= value < 1 << 64 else None
    if isinstance(value, list):
        try:
            dtype, dims = (array := _listed(value)).dtype, array.ndim
        except Exception:  # _column() says it
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
            words[i] = _digests([str(number).encode()], "whole number")[0]
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
    return (bits * np.uint64(over) >> np.uint64(32)).astype(np.int16 if over < 1 << 15 else np.int64)  # short ones sort fast


def _mixed(words: Array) -> Array:
    mixed = words[:, 1] ^ (words[:, 0] * np.uint64(0x9E3779B97F4A7C15))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)  # splitmix64's end
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _leaves(element: Any, path: str = "") -> list[tuple[str, Any]]:
    """The components and their paths, dicts in the order of their keys. None is no component. A list of numbers or texts is
    one component; a tuple of them is several."""
    if element is None:
        return []
    if isinstance(element, Mapping):
        names = sorted(element, key=lambda name: (str(type(name)), name))
        return [leaf for name in names for leaf in _leaves(element[name], f"{path}[{name!r}]")]
    if isinstance(element, list) and element and all(isinstance(part, _SINGLE) for part in element):
        return [(path, element)]
    if isinstance(element, (list, tuple)):
        return [leaf for i, part in enumerate(element) for leaf in _leaves(part, f"{path}[{i}]")]
    return [(path, element)]


def _column(leaf: Any, path: str, keep_integers: bool = False) -> _Column:
    if hasattr(leaf, "nested_row_splits") or hasattr(leaf, "dense_shape"):
        return _composite(leaf)
    array, dtype = _array(leaf, path)
    rows = array.shape[0] if array.ndim else None
    if keep_integers and array.dtype.kind in "iub" and array.ndim <= 1:
        words = _integer_words(np.atleast_1d(array))
        return _Column(rows, "integer", "integer", words.tobytes, words)
    inner = "" if array.ndim <= 1 else "x".join(map(str, array.shape[1:]))
    outer = "x".join(map(str, array.shape))
    if array.dtype.kind in "OSU":
        table = array.reshape(1 if rows is None else rows, int(np.prod(array.shape[1:], dtype=np.int64)))
        parts = [_framed(map(_bytes_of, row)) for row in table.tolist()]
        return _Column(rows, "string" + inner, "string" + outer, lambda: b"".join(parts), parts=parts)
    width = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    table = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(1 if rows is None else rows, width)
    return _Column(rows, dtype + inner, dtype + outer, table.tobytes, table)


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
        array = _listed(leaf) if isinstance(leaf, list) else np.asarray(leaf, object if isinstance(leaf, (str, bytes)) else None)
    except Exception as error:  # whatever the object's own conversion raises
        raise TypeError(_no_array(leaf, path, str(error))) from error
    if isinstance(leaf, (list, tuple)) and array.dtype.kind == "f" and _all_whole(leaf):
        # Beside others they might fit: a row's content would depend on its batch.
        raise TypeError(_no_array(leaf, path, "whole numbers that no one dtype of numpy's holds"))
    if array.dtype.kind == "O" and not all(isinstance(one, (str, bytes)) for one in array.ravel()):
        raise TypeError(_no_array(leaf, path))
    return array, array.dtype.name


def _no_array(leaf: Any, path: str, why: str = "") -> str:
    why = f" ({why})" if why else ""
    where = f"component {path} of the element" if path else "the element"
    return explain(f"{where} is of type {type(leaf).__name__}, of which audit() can't make an array{why}",
                   "Pass key=, a function that returns one key for each row of an element")


def _all_whole(values: Any) -> bool:
    """Of a list, or of lists in lists."""
    return all(_all_whole(one) if isinstance(one, (list, tuple)) else isinstance(one, (int, np.integer)) for one in values)


def _listed(values: list[Any]) -> Array:
    """A list as an array, its texts as objects: numpy's own would be as long as the longest, and lose NULs at their ends."""
    if any(isinstance(one, (str, bytes)) for one in values):
        array = np.empty(len(values), object)
        array[:] = values
        return array
    return np.asarray(values) if values else np.empty(0, np.int64)


def _composite(leaf: Any) -> _Column:
    """A ragged or a sparse tensor: the rows' values and where they stand."""
    dtype = leaf.dtype.name
    if hasattr(leaf, "dense_shape"):
        indices, values, shape = np.asarray(leaf.indices), np.asarray(leaf.values), np.asarray(leaf.dense_shape)
        inner, outer = (f"sparse {dtype}{'x'.join(map(str, dims))}" for dims in (shape[1:], shape))
        ends = np.searchsorted(indices[:, 0], np.arange(shape[0] + 1))
        parts = [_framed([indices[a:b, 1:].tobytes(), _value_bytes(values[a:b])]) for a, b in zip(ends, ends[1:])]
        return _Column(int(shape[0]), inner, outer, lambda: _framed([indices.tobytes(), _value_bytes(values)]), parts=parts)
    kind = f"ragged {dtype}"
    return _Column(int(leaf.nrows()), kind, kind, lambda: _ragged_row(leaf), parts=[_ragged_row(row) for row in leaf])


def _ragged_row(row: Any) -> bytes:
    if not hasattr(row, "nested_row_splits"):
        array = np.asarray(row)
        return _framed([str(array.shape).encode(), _value_bytes(array)])
    splits = [np.asarray(one).astype(np.int64).tobytes() for one in row.nested_row_splits]
    return _framed([*splits, _value_bytes(np.asarray(row.flat_values))])


def _value_bytes(values: Array) -> bytes:
    return _framed(map(_bytes_of, values.ravel().tolist())) if values.dtype.kind in "OSU" else values.tobytes()


def _integer_words(values: Array) -> Array:
    words = np.empty((len(values), 2), np.uint64)
    words[:, 0] = INTEGER
    if values.dtype.kind == "u" and values.dtype.itemsize == 8:
        words[values >= np.uint64(1 << 63), 0] = LARGE_INTEGER
        words[:, 1] = values
    else:
        words[:, 1] = values.astype(np.int64).view(np.uint64)
    return words


def _digests(rows: Iterable[Any], kind: str) -> Array:
    """uint64 [rows, 2]: of each row's bytes, and of the kind of row."""
    person = blake2b(kind.encode(), digest_size=16).digest()
    joined = b"".join([blake2b(row, digest_size=16, person=person).digest() for row in rows])
    return np.frombuffer(joined, "<u8").astype(np.uint64, copy=False).reshape(-1, 2)


def _framed(parts: Iterable[bytes]) -> bytes:
    """Some texts as one, which no others make."""
    return b"".join([piece for part in parts for piece in (len(part).to_bytes(8, "little"), part)])


def _bytes_of(text: Union[str, bytes]) -> bytes:
    return text.encode(errors="surrogatepass") if isinstance(text, str) else text
