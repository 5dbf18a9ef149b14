# SPDX-License-Identifier: Apache-2.0
"""The expected rows: a number, keys, or elements.

Rank 0 reads them once, and sends each key to the rank that counts it.
"""

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
    """Makes the reference. Collective. Only rank 0 reads `given`. Ctrl-C waits, except while rank 0 reads.

    Raises:
      Errors of the reading: on rank 0 as they are. On other ranks an error of the same class that quotes them.
    """
    chunks = _chunks(given, key) if exchange.rank == 0 else iter(())
    tables: list[Array] = []
    names, rows = Names(), 0
    while True:
        came = _next(chunks, ctrl_c) if exchange.rank == 0 else None
        keys = came if isinstance(came, Keys) else Keys(np.empty((0, 2), np.uint64))
        names.add(keys.names, rows)
        places = np.arange(rows, rows + len(keys.words), dtype=np.uint64)
        table = np.concatenate([keys.words, places[:, None]], axis=1)
        rows = came if isinstance(came, int) else rows + len(table)
        failure = came if isinstance(came, BaseException) else None
        said: dict[str, Any] = {"rows": rows, "more": came is keys, "counted": isinstance(came, int)}
        if failure is not None:
            said["error"] = words_of(failure)
        said = exchange.allgather(said)[0]
        try:
            check_errors(job, "audit(), reading the reference", [((job.layout.trainers[0],), said)], failure)
        finally:
            del came, failure  # an error would keep itself and the program's frames alive
        if not said["more"]:
            part = np.concatenate([table, *tables])
            return Reference(said["rows"], None if said["counted"] else part[in_parts(part, 1)[0]], names)
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
    """Yields keys, about _CHUNK rows at a time. Or yields only a number of rows.

    Raises:
      TypeError: no keys can be made of `given`. Errors of `given` itself are raised as they are.
    """
    if _is_function(given):
        given = given()
        if given is None or _is_function(given):
            what = f"the function that reference= is returned {given!r}"
            raise explained(TypeError, what, "Let it return a number of rows, keys, or an iterable of elements")
        check_reference(given, key)
    if _is_number(given):
        yield whole(given) or 0
    elif _is_keys(given):
        keys = sorted(given, key=str) if isinstance(given, (set, frozenset)) else given
        for begin in range(0, len(keys), _CHUNK):
            yield given_keys(keys[begin : begin + _CHUNK], "a key in reference=")
    else:
        yield from _chunks_of_elements(given, key)


def _chunks_of_elements(given: Any, key: Key) -> Iterator[Keys]:
    elements: Iterable[Any] = [given] if hasattr(given, "__array__") or hasattr(given, "dense_shape") else given
    if _is_map(given):
        elements = (given[index] for index in range(len(given)))
    words: list[Array] = []
    names: list[Any] = []
    for element in elements:
        try:
            keys = keys_of(element, key)
        except TypeError as error:
            what = f"of an element of reference= no keys can be made: {message_of(error)}"
            to_do = "As keys, not elements, it takes a set, or a list or array of whole numbers or texts"
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
    if _is_number(given):
        if (whole(given) or 0) < 0:
            raise explained(ValueError, f"reference={given!r} is less than 0", "It counts the rows that there are")
    elif _is_keys(given):
        if key is None:
            what = "reference= has keys, but audit() has no key=: rows are told apart by their content"
            to_do = "Pass key=, which says what a row's key is; or as reference= the elements themselves"
            raise explained(ValueError, what, to_do)
    elif isinstance(given, tf.data.Dataset):
        if int(given.cardinality()) == tf.data.INFINITE_CARDINALITY:
            what = "reference= is a dataset without an end, which would be read for ever"
            raise explained(ValueError, what, "Pass it without repeat(), or with take()")
    elif isinstance(given, (str, bytes)) or not (given is None or _is_function(given) or _has_elements(given)):
        to_do = (
            "Pass a number of rows, a set or array of keys, a dataset or another iterable of elements, or a function"
        )
        raise explained(TypeError, f"reference={given!r} is no reference", f"{to_do} that returns one of these")


def _has_elements(given: Any) -> bool:
    return hasattr(given, "__iter__") or _is_map(given)


def _is_number(given: Any) -> bool:
    return whole(given) is not None and not np.ndim(given)


def _is_function(given: Any) -> bool:
    return callable(given) and not _has_elements(given)


def _is_map(given: Any) -> bool:
    """Says whether its elements have numbers but it has no `__iter__`, like PyTorch's datasets and Keras 3's.

    Some of these raise no IndexError at their end, so Python can't find the end.
    """
    found = hasattr(given, "__getitem__") and hasattr(given, "__len__") and not hasattr(given, "__iter__")
    return found and not isinstance(given, type)


def _is_keys(given: Any) -> bool:
    """Says whether it is a collection of keys. Otherwise it is a collection of elements."""
    if isinstance(given, (range, set, frozenset)):
        return True
    if isinstance(given, (list, tuple)):
        return all(isinstance(one, (int, str, bytes, np.integer)) and not isinstance(one, bool) for one in given)
    return hasattr(given, "__array__") and np.ndim(given) == 1 and not hasattr(given, "__next__")
