# SPDX-License-Identifier: Apache-2.0
"""The rows that there should be: a count, keys, or elements. Rank 0 reads them, once, and deals their keys to the ranks that
count them."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Iterable, Iterator, Optional

import numpy as np
import tensorflow as tf

from ..ending import signals
from ..errors import explain, whole, without_place
from .counting import Part, integer_range
from .exchange import Exchange
from .keys import Key, Keys, given_keys, keys_of, owners

Array = Any

_CHUNK = 1 << 18  # rows that rank 0 holds at a time
_MOST_NAMES = 16 << 20
_MORE, _LAST, _FAILED = 0, 1, 2


@dataclasses.dataclass
class Reference:
    """`rows` None: there is none. `part`: this rank's, None if only the count is known. `range`: of keys that are all whole
    numbers."""

    rows: Optional[int] = None
    part: Optional[Part] = None
    range: Optional[tuple[int, int]] = None
    names: dict[int, bytes] = dataclasses.field(default_factory=dict)  # on rank 0

    def name_of(self, place: int) -> str:
        """On rank 0: of the row at this place."""
        name = self.names.get(place)
        return name.decode(errors="replace") if name is not None else f"row {place} of the reference"


class ReferenceFailed(Exception):
    """On the ranks that don't read: rank 0's reading raised."""


def kind_of(given: Any, key: Key) -> str:
    """ "none", "count", "keys" or "elements"; "function" where only a call can tell.

    Raises:
      TypeError, ValueError: it can't be a reference.
    """
    if given is None:
        return "none"
    if (rows := whole(given)) is not None and not np.ndim(given):
        if rows < 0:
            raise ValueError(explain(f"reference={given!r} is less than 0", "It counts the rows that there are"))
        return "count"
    if _is_keys(given):
        if key is None:
            raise ValueError(
                explain(
                    "reference= has keys, but audit() has no key=: rows are told apart by their content",
                    "Pass key=, which says what a row's key is; or as reference= the elements themselves",
                )
            )
        return "keys"
    if _is_endless(given):
        raise ValueError(
            explain(
                "reference= is a dataset without an end, which would be read for ever",
                "Pass it without repeat(), or with take()",
            )
        )
    if _is_map(given):
        return "elements"
    if isinstance(given, (str, bytes, bool)) or not (hasattr(given, "__iter__") or callable(given)):
        raise TypeError(
            explain(
                f"reference={given!r} is no reference",
                "Pass a number of rows, a set or array of keys, a "
                "dataset or another iterable of elements, or a function that returns one of these",
            )
        )
    return "elements" if hasattr(given, "__iter__") else "function"


def make_reference(exchange: Exchange, given: Any, kind: str, key: Key, ctrl_c: signals.Held) -> Reference:
    """Collective; `given` counts on rank 0 alone, `kind` is that of rank 0. Ctrl-C is held but where what is given runs.

    Raises:
      ReferenceFailed: rank 0's function or iterable raised; on rank 0 what it raised, on the others this.
    """
    if kind == "none":
        return Reference()
    if kind == "count" and exchange.rank == 0:
        return Reference(exchange.allgather(whole(given))[0])
    if kind == "count":
        return Reference(exchange.allgather(None)[0])
    return _dealt(exchange, given, key, ctrl_c) if exchange.rank == 0 else _taken(exchange)


def _dealt(exchange: Exchange, given: Any, key: Key, ctrl_c: signals.Held) -> Reference:
    """On rank 0."""
    reference = Reference(0)
    taken: list[Array] = []
    ranges: list[Optional[tuple[int, int]]] = []
    failure: Optional[BaseException] = None
    chunks = _chunks(given, key)
    status, rows = _MORE, 0
    while status == _MORE:
        try:
            try:
                ctrl_c.open()
                keys = next(chunks, None)
                if isinstance(keys, int):  # a function may return a count as well
                    rows, keys = keys, None
                status = _MORE if keys is not None else _LAST
                words = np.empty((0, 2), np.uint64)
                if keys is not None:
                    words = keys.words
                    ranges += [integer_range(words)] if len(words) else []
                    _name(reference, keys, rows)
                parts = _by_owner(words, rows, exchange.size, status)
                rows += len(words)
            finally:
                ctrl_c.close()
        except BaseException as error:  # also Ctrl-C while a long reference is read: the others wait for the next part
            ctrl_c.close()  # another one may have come in between
            failure, status = error, _FAILED
            parts = [_head(status)] * exchange.size
        taken.append(exchange.deal(parts, _head(status)[:0])[1:])
    try:
        if failure is not None:
            raise failure
    finally:
        failure = None  # or it would keep itself, and the program's frames, by this one
    told = bool(ranges) and None not in ranges
    known = [one for one in ranges if one is not None]
    reference.range = (min(low for low, _ in known), max(high for _, high in known)) if told else None
    by_key = bool(ranges) or rows == 0
    exchange.allgather([rows, reference.range, by_key])
    return dataclasses.replace(reference, rows=rows, part=_part(taken) if by_key else None)


def _head(status: int) -> Array:
    return np.array([[status, 0, 0]], np.uint64)


def _by_owner(words: Array, first: int, ranks: int, status: int) -> list[Array]:
    """What each rank gets of these keys, of which the first is row `first`: behind a head, each with the number of its row."""
    table = np.concatenate([words, np.arange(first, first + len(words), dtype=np.uint64)[:, None]], axis=1)
    owner = owners(words, ranks)
    ends = np.cumsum(np.bincount(owner, minlength=ranks))
    return [
        np.concatenate([_head(status), part]) for part in np.split(table[np.argsort(owner, kind="stable")], ends[:-1])
    ]


def _taken(exchange: Exchange) -> Reference:
    taken: list[Array] = []
    while True:
        table = exchange.deal(None, np.empty((0, 3), np.uint64))
        taken.append(table[1:])
        if (status := int(table[0, 0])) == _FAILED:
            raise ReferenceFailed()
        if status == _LAST:
            rows, numbers, by_key = exchange.allgather(None)[0]
            return Reference(rows, _part(taken) if by_key else None, tuple(numbers) if numbers else None)


def _part(tables: list[Array]) -> Part:
    table = np.concatenate(tables)
    return Part(np.ascontiguousarray(table[:, :2]), table[:, 2].astype(np.int64))


def _chunks(given: Any, key: Key) -> Iterator[Any]:
    """Keys, at most about _CHUNK rows at a time; or one int."""
    if callable(given) and not hasattr(given, "__iter__") and not _is_map(given):
        given = given()
        kind = kind_of(given, key)
        if kind in ("none", "function"):
            raise TypeError(
                explain(
                    f"the function that reference= is returned {given!r}",
                    "Let it return a number of rows, keys, or an iterable of elements",
                )
            )
        if kind == "count":
            yield whole(given)
            return
    if _is_keys(given):
        yield from _key_chunks(given)
        return
    elements: Iterable[Any] = [given] if hasattr(given, "__array__") or hasattr(given, "dense_shape") else given
    if _is_map(given):
        elements = (given[index] for index in range(len(given)))
    words: list[Array] = []
    names: list[Any] = []
    for element in elements:
        try:
            keys = keys_of(element, key)
        except TypeError as error:
            error.args = (
                explain(
                    f"of an element of reference= no keys can be made: {without_place(str(error))}",
                    "As keys, not elements, it takes a set, or a list or array of whole numbers or texts",
                ),
            )
            raise
        words.append(keys.words)
        names += keys.names if keys.names is not None else [None] * len(keys.words)
        if sum(map(len, words)) >= _CHUNK:
            yield Keys(np.concatenate(words), names)
            words, names = [], []
    if words:
        yield Keys(np.concatenate(words), names)


def _key_chunks(given: Any) -> Iterator[Keys]:
    if isinstance(given, (set, frozenset)):
        try:
            given = sorted(given)
        except TypeError:  # numbers and texts together
            pass
    if isinstance(given, (range, list, tuple)) or hasattr(given, "__array__"):
        for begin in range(0, len(given), _CHUNK):
            yield given_keys(given[begin : begin + _CHUNK], "a key in reference=")
        return
    rest = iter(given)
    while chunk := list(itertools.islice(rest, _CHUNK)):
        yield given_keys(chunk, "a key in reference=")


def _name(reference: Reference, keys: Keys, place: int) -> None:
    if keys.names is not None and sum(map(len, reference.names.values())) < _MOST_NAMES:
        reference.names.update((at, name) for at, name in enumerate(keys.names, place) if name is not None)


def _is_endless(given: Any) -> bool:
    return isinstance(given, tf.data.Dataset) and int(given.cardinality()) == tf.data.INFINITE_CARDINALITY


def _is_map(given: Any) -> bool:
    """Whether its elements are had by their numbers alone, as those of PyTorch's datasets and Keras 3's are: not all of them raise
    an IndexError at their end, by which Python would know it."""
    names = ("__getitem__", "__len__")
    return (
        all(hasattr(given, name) for name in names) and not hasattr(given, "__iter__") and not isinstance(given, type)
    )


def _is_keys(given: Any) -> bool:
    """Whether it is a collection of keys, and not of elements."""
    if isinstance(given, (range, set, frozenset)):
        return True
    if isinstance(given, (list, tuple)):
        return all(isinstance(one, (int, str, bytes, np.integer)) and not isinstance(one, bool) for one in given)
    return hasattr(given, "__array__") and np.ndim(given) == 1 and not hasattr(given, "__next__")
