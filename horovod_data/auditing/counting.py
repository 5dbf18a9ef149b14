# SPDX-License-Identifier: Apache-2.0
"""Counts how often each row was seen, and by which ranks. Each rank counts the keys that it was sent. Pure."""

from __future__ import annotations

import collections
import dataclasses
import functools
import operator
from typing import Any, Iterable, NamedTuple, Optional, Sequence

import numpy as np

from .keys import INTEGER, PARTS, part_of, shown

Array = Any

BUCKETS = 256  # of rows in the picture
LINES = 64  # of ranks in the picture; if there are more ranks, several share a line
EXAMPLES = 4  # of each sort
_CELLS = 1 << 22  # the most cells, at a time, of the matrices that count pairs
_SLICE = 1 << 19  # rows that are counted at a time


@dataclasses.dataclass(frozen=True)
class Axis:
    """The horizontal axis of the picture: where a row stands in it.

    "number": by its key, from `first` to `last`. "reference": by its place in the reference, which has `last` + 1 rows.
    "hash": by the digest that is its key.
    """

    kind: str
    first: int = 0
    last: int = 0

    @property
    def buckets(self) -> int:
        return BUCKETS if self.kind == "hash" else max(1, min(BUCKETS, self.last - self.first + 1))


Found = tuple[int, int, int, int]  # the two words of a key, its place in the reference, and how often it was seen


class Counts(NamedTuple):
    """The counts of some keys. total() adds counts of different keys, field by field."""

    # int64 [2]: expected deliveries that are missing; surplus deliveries (without a reference: after the first)
    sums: Array
    own: Array  # int64 [ranks]: different rows that each rank saw
    pairs: Array  # int64 [ranks, ranks]: rows that both saw; on the diagonal: rows that this rank saw more than once
    deliveries: Array  # int64 [lines, buckets]
    rows: Array  # int64 [buckets]: different rows that are known
    seen: Array  # int64 [buckets]: different known rows that the job saw
    times: Any  # Counter of how often seen: number of different rows
    strange: Any  # the same Counter, only for rows that the reference does not have
    never: Any  # list[Found]: the first examples of this kind, and of each kind below
    repeated: Any
    unknown: Any


ARRAYS = 6  # the first fields of Counts are arrays: this many


def total(counts: Iterable[Counts]) -> Counts:
    """The sum of the counts."""
    summed = Counts(*(functools.reduce(operator.add, each) for each in zip(*counts)))
    examples = {name: _first_of(getattr(summed, name)) for name in ("never", "repeated", "unknown")}
    return summed._replace(**examples)


def count(received: Sequence[Array], reference: Optional[Array], axis: Axis) -> Counts:
    """Counts the keys that each rank has sent.

    Args:
      received: for each rank r, uint64 [rows, 2]: the keys of the rows that rank r saw, each key as often as it saw it.
      reference: uint64 [rows, 3]: the expected keys, and their places in the reference.
      axis: the axis of the picture.

    All keys are in the order of in_parts(). Counting takes many times the memory of the keys, so it is done for a slice
    of the keys at a time. A slice has all rows of its keys.
    """
    tables = [*received, *([reference] if reference is not None else [])]
    edges = np.linspace(0, PARTS, 2 + sum(map(len, tables)) // _SLICE).astype(np.int64)  # parts of the slices
    cuts = list(zip(*(np.searchsorted(part_of(table), edges) for table in tables)))
    slices = ([table[a:b] for table, a, b in zip(tables, *ends)] for ends in zip(cuts, cuts[1:]))
    ranks = len(received)
    return total(_count(pieces[:ranks], pieces[ranks] if reference is not None else None, axis) for pieces in slices)


def _count(received: Sequence[Array], reference: Optional[Array], axis: Axis) -> Counts:
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

    from_ranks = source < ranks
    seen = np.bincount(key[from_ranks], minlength=len(keys))
    wanted = np.bincount(key[~from_ranks], minlength=len(keys)) if reference is not None else np.minimum(seen, 1)
    places = np.zeros(len(keys), np.int64)
    if reference is not None:
        at = order[~from_ranks] - (len(words) - len(reference))
        places[key[~from_ranks][::-1]] = reference[at[::-1], 2]  # if a key comes several times, its first place counts
    unknown = wanted == 0

    new[1:] |= source[1:] != source[:-1]
    runs = np.flatnonzero(new)  # each run has one key and one source
    run_length = np.diff(np.append(runs, len(words)))[from_ranks[runs]]
    runs = runs[from_ranks[runs]]
    run_source, run_key = source[runs], key[runs]

    lines = min(ranks, LINES)
    bucket = _buckets(keys, places, axis)
    drawn = ~unknown | (axis.kind != "reference")  # unknown rows have no place in the reference
    here = drawn[run_key]
    cell = (run_source * lines // ranks)[here].astype(np.int64) * axis.buckets + bucket[run_key][here]
    deliveries = np.bincount(cell, weights=run_length[here], minlength=lines * axis.buckets).astype(np.int64)
    surplus = seen - np.maximum(wanted, 1)
    return Counts(
        sums=np.array([np.maximum(wanted - seen, 0).sum(), np.maximum(surplus, 0).sum()], np.int64),
        own=np.bincount(run_source, minlength=ranks),
        pairs=_pairs(run_key, run_source, run_length, ranks),
        deliveries=deliveries.reshape(lines, axis.buckets),
        rows=np.bincount(bucket[drawn], minlength=axis.buckets),
        seen=np.bincount(bucket[drawn & (seen > 0)], minlength=axis.buckets),
        times=_times(seen[seen > 0]),
        strange=_times(seen[unknown]),
        never=_first(keys, places, seen, (seen == 0) & (wanted > 0)),
        repeated=_first(keys, places, seen, (seen > wanted) & ~unknown),
        unknown=_first(keys, places, seen, unknown),
    )


def _times(seen: Array) -> collections.Counter[int]:
    times, rows = np.unique(seen, return_counts=True)
    return collections.Counter(dict(zip(times.tolist(), rows.tolist())))


def _pairs(key: Array, source: Array, length: Array, ranks: int) -> Array:
    """int64 [ranks, ranks]: the pairs (see Counts), from the runs of equal key and source."""
    pairs = np.zeros((ranks, ranks), np.int64)
    shared = np.bincount(key)[key] > 1 if len(key) else np.zeros(0, bool)  # keys that several ranks saw
    key_of_shared = np.unique(key[shared], return_inverse=True)[1]
    source_of_shared = source[shared]
    most = max(1, _CELLS // ranks)
    for begin in range(0, int(key_of_shared[-1]) + 1 if len(key_of_shared) else 0, most):
        a, b = np.searchsorted(key_of_shared, [begin, begin + most])
        saw = np.zeros((most, ranks), np.float32)  # exact, because a chunk has less than 2^24 keys
        saw[key_of_shared[a:b] - begin, source_of_shared[a:b]] = 1
        pairs += (saw.T @ saw).astype(np.int64)
    np.fill_diagonal(pairs, np.bincount(source[length > 1], minlength=ranks))
    return pairs


def _buckets(keys: Array, places: Array, axis: Axis) -> Array:
    """int64 [keys]: the bucket of each key."""
    if axis.kind == "hash":
        return (keys[:, 0] >> np.uint64(56)).astype(np.int64)  # BUCKETS is 256
    at, span = places, axis.last - axis.first + 1
    if axis.kind == "number":
        at = keys[:, 1] - np.uint64(axis.first % (1 << 64))  # wraps around below 0, which is right here
    if span < 1 << 50:
        found = at.astype(np.int64) * axis.buckets // span
    else:
        found = (at.astype(np.float64) / span * axis.buckets).astype(np.int64)
    return np.clip(found, 0, axis.buckets - 1)


def _first_of(found: list[Found]) -> list[Found]:
    """The first of some examples, in the order of _first()."""

    def order(one: Found) -> tuple[bool, int]:
        known = shown(one[0], one[1])
        return (False, known) if isinstance(known, int) else (True, one[2])

    return sorted(found, key=order)[:EXAMPLES]


def _first(keys: Array, places: Array, seen: Array, chosen: Array) -> list[Found]:
    """The first of the chosen keys.

    First numbers, by their value, and then digests, by their place in the reference.
    """
    which = np.flatnonzero(chosen)
    numbers = keys[which, 0] == INTEGER
    by = np.where(numbers, keys[which, 1] ^ np.uint64(1 << 63), places[which].astype(np.uint64))
    first = which[np.lexsort((by, ~numbers))[:EXAMPLES]]
    return [(int(keys[i, 0]), int(keys[i, 1]), int(places[i]), int(seen[i])) for i in first]


def positions(words: Array, word0: int, word1: int) -> list[int]:
    """The first three places of a key among a rank's own keys."""
    same = (words[:, 0] == np.uint64(word0)) & (words[:, 1] == np.uint64(word1))
    found: list[int] = np.flatnonzero(same)[:3].tolist()
    return found
