# SPDX-License-Identifier: Apache-2.0
"""The key that identifies a row for an audit: 16 bytes, as two uint64. Pure.

If the user gives a whole number of up to 64 bits as a key, the key contains the number. So different numbers always
have different keys. Every other key is a BLAKE2b digest of 128 bits. Among 10^12 different rows, the probability that
two rows have the same digest is below 10^-14.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Sequence, Union

import numpy as np

from ..errors import explained
from .rows import SINGLE, Array, NoArray, array_of, bytes_of, digests, leaves, row_digests, rows_of

Key = Union[None, str, int, tuple[Union[str, int], ...], Callable[[Any], Any]]

# The first word of a whole number's key. A digest begins with one of these words in 1 of 2^63 cases.
INTEGER, LARGE_INTEGER = 1, 2

PARTS = 1 << 16  # the number of parts of all keys, see part_of()


class Keys(NamedTuple):
    """The keys of some rows: uint64 [rows, 2]. `names`: the texts from which the keys were made, or None."""

    words: Array
    names: Optional[Sequence[bytes]] = None


def keys_of(element: Any, key: Key) -> Keys:
    """The keys of an element's rows. `key` is in the form that audit() takes.

    Raises TypeError, ValueError, KeyError or IndexError if the element or its key is wrong.
    """
    if key is None:
        return Keys(row_digests(element))
    value = key(element) if callable(key) else component_of(element, key)
    if isinstance(value, tuple) and not (all(map(_is_single, value)) and len(value) == _known_rows(element)):
        to_do = "Make one text of several values that are a key together; let the keys of several rows be a list or an array"
        raise explained(TypeError, "the key is a tuple", to_do)
    made = given_keys(value)
    if callable(key) and not _is_single(value):
        _check_number(element, len(made.words))
    return made


def component_of(element: Any, key: Any) -> Any:
    """`element["id"]` for the key "id", `element[0]["id"]` for (0, "id"). A name may also be a field of a namedtuple.

    Raises KeyError, IndexError or TypeError if the element has no such component.
    """
    for step in key if isinstance(key, tuple) else (key,):
        if isinstance(step, str) and hasattr(element, "_fields"):
            if step not in element._fields:
                raise KeyError(step)
            element = getattr(element, step)
        else:
            element = element[step]
    return element


def given_keys(value: Any, what: str = "the key") -> Keys:
    """The keys that a user gives: a number or a text for one row, or an array (list, tensor) whose axis 0 is the rows.

    Raises TypeError if the value is not an array. `what`: its name in the error.
    """
    kind = type(value).__name__
    if isinstance(value, (tuple, set, frozenset, range)):
        value = list(value)
    try:
        array, dtype = array_of(value)
    except NoArray as error:
        what = f"{what} is a {kind}, not an array of one kind{error}"
        to_do = "Let it be a whole number, a text, or an array (a list) with one of these for each row; join several"
        raise explained(TypeError, what, f"{to_do} values of one key into one text") from None
    if array.ndim > 1 or (dtype != "string" and array.dtype.kind not in "iub"):
        return Keys(row_digests(array))
    values = np.atleast_1d(array)
    if dtype == "string":
        names = [bytes_of(text) for text in values.tolist()]
        return Keys(digests(names), names)
    words = np.full((len(values), 2), INTEGER, np.uint64)
    if values.dtype == np.uint64:
        words[values >= np.uint64(1 << 63), 0] = LARGE_INTEGER
        words[:, 1] = values
    else:
        words[:, 1] = values.astype(np.int64).view(np.uint64)
    return Keys(words)


# ---- The number of keys.


def _is_single(value: Any) -> bool:
    return value is None or isinstance(value, SINGLE) or getattr(value, "shape", None) == ()


def _known_rows(element: Any) -> Optional[int]:
    try:
        return rows_of(element)
    except Exception:  # a key function may know more about an element than this module
        return None


def _check_number(element: Any, keys: int) -> None:
    """Raises ValueError if an element can't have `keys` rows. It may be a list of rows, or have them along axis 1."""
    rows = _known_rows(element)
    if rows in (None, keys) or (isinstance(element, (list, tuple)) and len(element) == keys):
        return
    if any(tuple(getattr(leaf, "shape", ()))[1:2] != (keys,) for _, leaf in leaves(element)):
        to_do = "Let it return one for each row; or a single one, not in an array, if the element is one row"
        raise explained(ValueError, f"the function returned {keys} keys for an element of {rows} rows", to_do)


# ---- The content of keys.


def shown(word0: int, word1: int) -> Union[int, str]:
    """The number in a key, or the first 8 digits of a digest."""
    word0, word1 = int(word0), int(word1)  # NumPy 2 refuses to subtract 1 << 64 from its own numbers
    if word0 == INTEGER:
        return word1 - (1 << 64) if word1 >= 1 << 63 else word1
    return word1 if word0 == LARGE_INTEGER else f"{word0:016x}"[:8]


# ---- The parts of all keys.


def part_of(words: Array) -> Array:
    """uint16 [rows]: the number of the part to which each key belongs. There are PARTS parts of about equal size.

    Each rank counts the keys of some parts.
    """
    mixed = words[:, 1] ^ (words[:, 0] * np.uint64(0x9E3779B97F4A7C15))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)  # the end of splitmix64
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(48)).astype(np.uint16)


def in_parts(words: Array, ranks: int) -> tuple[Array, list[int]]:
    """The order of the keys by their parts, and how many of the keys each rank counts."""
    parts = part_of(words)
    order = np.argsort(parts, kind="stable")
    first = np.arange(1, ranks) * PARTS // ranks  # part of each rank
    ends = np.searchsorted(parts[order], first.astype(np.uint16))
    return order, np.diff([0, *ends, len(words)]).tolist()
