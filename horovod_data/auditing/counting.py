# SPDX-License-Identifier: Apache-2.0
"""Counts how often each row was seen, and by which ranks. Each rank counts the keys that it was sent. Pure."""

from __future__ import annotations

import collections
import functools
import operator
from typing import Any, Iterable, NamedTuple, Optional, Sequence

import numpy as np

from .keys import INTEGER, PARTS, part_of

Array = Any

_MOST_EXAMPLES = 4  # of each kind
_CELLS = 1 << 19  # the most rows x ranks that are counted at a time


class Counts(NamedTuple):
    """The counts of some keys. total() adds counts of different keys, field by field."""

    # int64 [2]: expected deliveries that are missing; surplus deliveries (without a reference: after the first)
    sums: Array
    own: Array  # int64 [ranks]: different rows that each rank saw
    pairs: Array  # int64 [ranks, ranks]: rows that both saw; on the diagonal: rows that this rank saw more than once
    times: Any  # a Counter: for each number of times that a row may be seen, how many different rows were seen so often
    strange: Any  # the same Counter, only for rows that the reference does not have
    # The first examples of three kinds, each uint64 [examples, 4]: the two words of a key, its place in the reference,
    # and how often it was seen.
    never: Array
    repeated: Array
    unknown: Array


ARRAYS, EXAMPLES = 3, 3  # of the fields of Counts: the first ARRAYS are added up, the last EXAMPLES are examples


def total(counts: Iterable[Counts]) -> Counts:
    """The sum of the counts."""

    def add(one: Counts, other: Counts) -> Counts:
        sums = map(operator.add, one[:-EXAMPLES], other[:-EXAMPLES])
        return Counts(*sums, *map(_first_of, zip(one[-EXAMPLES:], other[-EXAMPLES:])))

    return functools.reduce(add, counts)


def count(received: Sequence[Array], reference: Optional[Array]) -> Counts:
    """Counts the keys that each rank has sent. All keys are in the order of in_parts().

    Counting takes many times the memory of the keys, so it is done for a slice of the keys at a time.

    Args:
      received: for each rank r, uint64 [rows, 2]: the keys of the rows that rank r saw, each key as often as it saw it.
      reference: uint64 [rows, 3]: the expected keys, and their places in the reference.
    """
    tables, ranks = [*received, *([reference] if reference is not None else [])], len(received)
    slices_less_1 = sum(map(len, tables)) // max(1, _CELLS // ranks)
    edges = np.linspace(0, PARTS, 2 + slices_less_1).astype(np.int64)  # the first part of each slice
    cuts = list(zip(*(np.searchsorted(part_of(table), edges) for table in tables)))
    slices = ([table[a:b] for table, a, b in zip(tables, *ends)] for ends in zip(cuts, cuts[1:]))
    return total(_count(pieces[:ranks], pieces[ranks] if reference is not None else None) for pieces in slices)


def _count(received: Sequence[Array], reference: Optional[Array]) -> Counts:
    ranks = len(received)
    # The reference is treated as an additional rank, so one sort joins all keys.
    tables = [*received, *([reference[:, :2]] if reference is not None else [])]
    words = np.concatenate(tables)
    source = np.repeat(np.arange(len(tables), dtype=np.int32), [len(one) for one in tables])
    order = np.lexsort((words[:, 1], words[:, 0]))  # stable, so the sources of a key stay in their order
    words, source = words[order], source[order]
    new = np.ones(len(words), bool)
    new[1:] = (words[1:] != words[:-1]).any(axis=1)
    key = np.cumsum(new) - 1
    keys = words[new]

    table = np.bincount(key * len(tables) + source, minlength=len(keys) * len(tables)).reshape(-1, len(tables))
    by_rank = table[:, :ranks]
    seen = by_rank.sum(axis=1)
    wanted, places = np.minimum(seen, 1), np.zeros(len(keys), np.uint64)
    if reference is not None:
        wanted, at = table[:, ranks], order[source == ranks] - (len(words) - len(reference))
        # If a key comes several times, its first place counts.
        places[key[source == ranks][::-1]] = reference[at[::-1], 2]
    surplus, unknown = seen - np.maximum(wanted, 1), wanted == 0

    saw = by_rank > 0
    shared = saw[saw.sum(axis=1) > 1].astype(np.float32)  # exact, because a slice has less than 2^24 keys
    pairs = (shared.T @ shared).astype(np.int64)
    np.fill_diagonal(pairs, (by_rank > 1).sum(axis=0))

    rows = np.column_stack([keys, places, seen.astype(np.uint64)])
    return Counts(
        sums=np.array([np.maximum(wanted - seen, 0).sum(), np.maximum(surplus, 0).sum()], np.int64),
        own=saw.sum(axis=0),
        pairs=pairs,
        times=_times(seen[seen > 0]),
        strange=_times(seen[unknown]),
        never=_first_of([rows[(seen == 0) & (wanted > 0)]]),
        repeated=_first_of([rows[(seen > wanted) & ~unknown]]),
        unknown=_first_of([rows[unknown]]),
    )


def _times(seen: Array) -> collections.Counter[int]:
    times, rows = np.unique(seen, return_counts=True)
    return collections.Counter(dict(zip(times.tolist(), rows.tolist())))


def _first_of(tables: Sequence[Array]) -> Array:
    """The first of these examples. Numbers come first, by value, and then digests, by place in the reference."""
    found = np.concatenate(tables)
    numbers = found[:, 0] == INTEGER
    by = np.where(numbers, found[:, 1] ^ np.uint64(1 << 63), found[:, 2])
    return found[np.lexsort((by, ~numbers))[:_MOST_EXAMPLES]]


def positions(words: Array, key: Sequence[int]) -> list[int]:
    """The first three places of a key among a rank's own keys."""
    same = (words == np.array(key, np.uint64)).all(axis=1)
    found: list[int] = np.flatnonzero(same)[:3].tolist()
    return found
