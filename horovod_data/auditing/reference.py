# SPDX-License-Identifier: Apache-2.0
"""The expected rows: a number, keys, or elements. Rank 0 reads them, and sends each key to the rank that counts it."""

from __future__ import annotations

from typing import Any, Iterable, Iterator, NamedTuple, Optional, Union

import numpy as np
import tensorflow as tf

from ..channel.agreement import check_errors
from ..ending import signals
from ..errors import explain_again, explained, message_of, whole, words_of
from ..job import state
from .exchange import Exchange
from .keys import Key, Keys, given_keys, in_parts, keys_of
from .record import Names

Array = Any

_CHUNK = 1 << 18  # rows that rank 0 holds at a time


class Reference(NamedTuple):
    """The reference of an audit.

    `rows`: the number of its rows. None: there is no reference. `part`: the keys that this rank counts, in the form
    that count() takes. None: only the number is known. `names`: on rank 0, the names of keys that are text.
    """

    rows: Optional[int] = None
    part: Optional[Array] = None
    names: Names = Names()

    def name_of(self, place: int) -> str:
        """On rank 0: a name for the row at this place."""
        name = self.names.get(place)
        return name if name is not None else f"row {place} of the reference"


def make_reference(job: state.Job, exchange: Exchange, given: Any, key: Key, ctrl_c: signals.Held) -> Reference:
    """Makes the reference. Collective. Only rank 0 reads `given`. Ctrl-C is deferred, except while rank 0 reads.

    If reading fails, all ranks raise the error.
    """
    chunks = _chunks(given, key) if exchange.rank == 0 else iter(())
    tables = [np.empty((0, 3), np.uint64)]
    names, rows = Names(), 0
    while True:
        chunk = _next(chunks, ctrl_c) if exchange.rank == 0 else None
        failure = chunk if isinstance(chunk, BaseException) else None
        counted = isinstance(chunk, int)
        keys = chunk if isinstance(chunk, Keys) else Keys(tables[0][:, :2])
        said: dict[str, Any] = {"rows": chunk if counted else rows, "more": chunk is keys, "counted": counted}
        if failure is not None:
            said["error"] = words_of(failure)
        said = exchange.allgather(said)[0]
        try:
            check_errors(job, "audit(), reading the reference", [((job.layout.trainers[0],), said)], failure)
        finally:
            del chunk, failure  # an error would keep itself and the program's frames alive
        if not said["more"]:
            part = np.concatenate(tables)
            return Reference(said["rows"], None if said["counted"] else part[in_parts(part, 1)[0]], names)
        names.add(keys.names, rows)
        table = np.column_stack([keys.words, np.arange(rows, rows + len(keys.words), dtype=np.uint64)])
        rows += len(table)
        order, parts = in_parts(keys.words, exchange.size)
        tables.append(exchange.alltoall(table[order], parts)[0])


def _next(chunks: Iterator[Any], ctrl_c: signals.Held) -> Union[Keys, int, None, BaseException]:
    """The next chunk, or None at the end. Returns errors, also Ctrl-C, because the other ranks wait for the chunk."""
    try:
        try:
            ctrl_c.open()
            return next(chunks, None)
        finally:
            ctrl_c.close()
    except BaseException as error:
        ctrl_c.close()  # another Ctrl-C may have come meanwhile
        return error


def _chunks(given: Any, key: Key) -> Iterator[Union[Keys, int]]:
    """Yields keys, about _CHUNK rows at a time. Or yields only a number of rows."""
    if _kind(given) == "function":
        given = given()
        if given is None or _kind(given) == "function":
            what = f"the function passed as reference= returned {given!r}"
            raise explained(TypeError, what, "Let it return a number of rows, keys, or an iterable of elements")
        check_reference(given, key)
    if _kind(given) == "number":
        yield whole(given) or 0
    elif _kind(given) == "keys":
        keys = sorted(given, key=str) if isinstance(given, (set, frozenset)) else given
        for begin in range(0, len(keys), _CHUNK):
            yield given_keys(keys[begin : begin + _CHUNK], "a key in reference=")
    else:
        yield from _chunks_of_elements(given, key)


def _chunks_of_elements(given: Any, key: Key) -> Iterator[Keys]:
    elements: Iterable[Any] = [given] if hasattr(given, "__array__") else given
    if _is_map(given):
        elements = (given[index] for index in range(len(given)))
    words: list[Array] = []
    names: list[Any] = []
    for element in elements:
        try:
            keys = keys_of(element, key)
        except TypeError as error:
            what = f"no keys can be made of an element of reference=: {message_of(error)}"
            to_do = "To pass keys in place of elements, use a set, or a list or array of whole numbers or texts"
            explain_again(error, what, to_do)
            raise
        words.append(keys.words)
        names += keys.names if keys.names is not None else [None] * len(keys.words)
        if len(names) >= _CHUNK:
            yield Keys(np.concatenate(words), names)
            words, names = [], []
    if words:
        yield Keys(np.concatenate(words), names)


# ---- The kinds of references.


def check_reference(given: Any, key: Key) -> None:
    """Raises TypeError or ValueError if `given` is no reference."""
    kind = _kind(given)
    if kind == "number" and (whole(given) or 0) < 0:
        raise explained(ValueError, f"reference={given!r} is less than 0", "Pass the number of expected rows")
    if kind == "keys" and key is None:
        what = "reference= has keys, but audit() has no key=: rows are identified by their content"
        to_do = "Pass key=, a component or a function with a row's key; or pass the elements themselves as reference="
        raise explained(ValueError, what, to_do)
    if isinstance(given, tf.data.Dataset) and int(given.cardinality()) == tf.data.INFINITE_CARDINALITY:
        what = "reference= is a dataset without an end, which would be read for ever"
        raise explained(ValueError, what, "Pass it without repeat(), or with take()")
    if not kind and given is not None:
        to_do = "Pass a number of rows, a set or array of keys, a dataset or another iterable of elements"
        raise explained(TypeError, f"reference={given!r} is no reference", f"{to_do}, or a function that returns these")


def _kind(given: Any) -> str:
    """Says whether this is a "number", a collection of "keys" or of "elements", or a "function".

    Empty: none of them.
    """
    if whole(given) is not None and not np.ndim(given):
        return "number"
    keys = isinstance(given, (range, set, frozenset))
    if isinstance(given, (list, tuple)):
        keys = all(isinstance(one, (int, str, bytes, np.integer)) and not isinstance(one, bool) for one in given)
    elif hasattr(given, "__array__"):
        keys = np.ndim(given) == 1 and not hasattr(given, "__next__")
    if keys:
        return "keys"
    if hasattr(given, "__iter__") or _is_map(given):
        return "elements" if not isinstance(given, (str, bytes)) else ""
    return "function" if callable(given) else ""


def _is_map(given: Any) -> bool:
    """Says whether `given` has numbered elements and no `__iter__`, like datasets of PyTorch and Keras 3.

    Some of these raise no IndexError at their end.
    """
    found = hasattr(given, "__getitem__") and hasattr(given, "__len__") and not hasattr(given, "__iter__")
    return found and not isinstance(given, type)
