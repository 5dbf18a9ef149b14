# SPDX-License-Identifier: Apache-2.0
"""How often each row was seen, and by whom: what one rank counts of the keys that are its to count. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional, Sequence

import numpy as np

from .columns import INTEGER
from .keys import shown, slices

Array = Any

BUCKETS = 256  # of rows in the picture
LINES = 64  # of ranks in the picture; of more ranks several share a line
EXAMPLES = 4  # of each sort
_CELLS = 1 << 22  # of the matrices that pairs are counted by, at a time
_SLICE = 1 << 19  # rows that are counted at a time


@dataclasses.dataclass(frozen=True)
class Axis:
    """Where a row stands in the picture: "number" (by its key, from `first` to `last`), "reference" (by its place there, of
    `last` + 1 rows), or "hash"."""

    kind: str
    first: int = 0
    last: int = 0

    @property
    def buckets(self) -> int:
        return BUCKETS if self.kind == "hash" else max(1, min(BUCKETS, self.last - self.first + 1))


@dataclasses.dataclass
class Part:
    """The reference's rows whose keys one rank counts: uint64 [rows, 2], and their places in the reference, int64 [rows]."""

    words: Array
    places: Array


Found = tuple[int, int, int, int]  # a key, its place in the reference, and how often it was seen
ARRAYS = ("sums", "own", "pairs", "deliveries", "rows", "seen")


@dataclasses.dataclass
class Counts:
    """What can be added up over ranks, and the examples.

    `sums`: rows of the reference; those of them that never came; deliveries beyond what the reference has (without one:
    beyond the first); different rows seen; of them those that the reference hasn't; different rows of the reference. `own`:
    int64 [ranks], different rows that each rank saw. `pairs`: int64 [ranks, ranks], rows that both saw; on the diagonal
    those that this rank saw more than once. `deliveries`: int64 [lines, buckets], `rows`: int64 [buckets], different rows
    known, and `seen`, those of them that the job saw. `times`: {times seen: different rows}; `strange`: of them those that the
    reference hasn't.
    `never`, `repeated`, `unknown`: (word, word, place, times), the first of each.
    """

    sums: Array
    own: Array
    pairs: Array
    deliveries: Array
    rows: Array
    seen: Array
    times: dict[int, int]
    strange: dict[int, int]
    never: list[Found]
    repeated: list[Found]
    unknown: list[Found]

    def plus(self, other: Counts) -> Counts:
        """Of other keys."""
        added = {name: getattr(self, name) + getattr(other, name) for name in ARRAYS}
        return Counts(
            **added,
            times=_sum(self.times, other.times),
            strange=_sum(self.strange, other.strange),
            never=first_of([*self.never, *other.never]),
            repeated=first_of([*self.repeated, *other.repeated]),
            unknown=first_of([*self.unknown, *other.unknown]),
        )


def _sum(one: dict[int, int], other: dict[int, int]) -> dict[int, int]:
    return {times: one.get(times, 0) + other.get(times, 0) for times in sorted({*one, *other})}


def count(received: list[Array], reference: Optional[Part], axis: Axis) -> Counts:
    """Counts the keys that each rank has sent: `received[r]` is uint64 [rows, 2], with as many of a key as rank r saw. The
    list is empty afterwards.

    What counting takes beside the keys is many times as large as they are. So it is done slice by slice, and a slice has all
    rows of its keys.
    """
    rows = sum(map(len, received)) + (len(reference.words) if reference is not None else 0)
    number = 1 + rows // _SLICE
    if number == 1:
        return _count([received.pop(0) for _ in range(len(received))], reference, axis)
    cut = []
    while received:
        words = received.pop(0)
        where = slices(words, number)
        cut.append((words[np.argsort(where, kind="stable")], np.cumsum([0, *np.bincount(where, minlength=number)])))
        del words
    order, ends = np.zeros(0, np.int64), np.zeros(number + 1, np.int64)
    if reference is not None:
        where = slices(reference.words, number)
        order, ends = np.argsort(where, kind="stable"), np.cumsum([0, *np.bincount(where, minlength=number)])
    total: Optional[Counts] = None
    for i in range(number):
        at = order[ends[i] : ends[i + 1]]
        part = Part(reference.words[at], reference.places[at]) if reference is not None else None
        one = _count([words[its[i] : its[i + 1]] for words, its in cut], part, axis)
        total = one if total is None else total.plus(one)
    assert total is not None
    return total


def _count(received: Sequence[Array], reference: Optional[Part], axis: Axis) -> Counts:
    ranks = len(received)
    arrays = [*received, reference.words] if reference is not None else list(received)
    words = np.concatenate(arrays) if arrays else np.empty((0, 2), np.uint64)
    # The reference counts as one rank more, so one sort brings everything together.
    source = np.repeat(np.arange(len(arrays), dtype=np.int32), [len(one) for one in arrays])
    order = np.lexsort((words[:, 1], words[:, 0]))  # stable: within a key the sources stand in their order
    words, source = words[order], source[order]
    new = np.ones(len(words), bool)
    new[1:] = (words[1:] != words[:-1]).any(axis=1)
    starts = np.flatnonzero(new)
    key = np.cumsum(new) - 1
    keys = words[starts]

    seen_rows = source < ranks
    seen = np.bincount(key[seen_rows], minlength=len(starts))
    wanted = np.bincount(key[~seen_rows], minlength=len(starts)) if reference is not None else np.minimum(seen, 1)
    places = np.zeros(len(starts), np.int64)
    if reference is not None:
        at = order[~seen_rows] - sum(map(len, received))
        places[key[~seen_rows][::-1]] = reference.places[at[::-1]]  # the first place of those that come several times
    unknown = wanted == 0

    run = new.copy()  # the first of a key and source
    run[1:] |= source[1:] != source[:-1]
    run_starts = np.flatnonzero(run)
    run_source, run_key = source[run_starts], key[run_starts]
    run_length = np.diff(np.append(run_starts, len(words)))
    by_rank = run_source < ranks
    run_source, run_key, run_length = run_source[by_rank], run_key[by_rank], run_length[by_rank]

    lines = min(ranks, LINES)
    bucket = _buckets(keys, places, axis)
    drawn = ~unknown | (axis.kind != "reference")  # what the reference hasn't has no place in it
    here = drawn[run_key]
    cell = (run_source * lines // ranks)[here].astype(np.int64) * axis.buckets + bucket[run_key][here]
    deliveries = np.bincount(cell, weights=run_length[here], minlength=lines * axis.buckets).astype(np.int64)
    return Counts(
        sums=np.array(
            [
                wanted.sum() if reference is not None else 0,
                np.maximum(wanted - seen, 0).sum(),
                np.maximum(seen - np.maximum(wanted, 1), 0).sum(),
                np.count_nonzero(seen),
                np.count_nonzero(unknown),
                np.count_nonzero(wanted) if reference is not None else 0,
            ],
            np.int64,
        ),
        own=np.bincount(run_source, minlength=ranks),
        pairs=_pairs(run_key, run_source, run_length, ranks),
        deliveries=deliveries.reshape(lines, axis.buckets),
        rows=np.bincount(bucket[drawn], minlength=axis.buckets),
        seen=np.bincount(bucket[drawn & (seen > 0)], minlength=axis.buckets),
        times=_times(seen[seen > 0]),
        strange=_times(seen[unknown]),
        never=_first(keys, places, seen, np.flatnonzero((seen == 0) & (wanted > 0))),
        repeated=_first(keys, places, seen, np.flatnonzero((seen > wanted) & ~unknown)),
        unknown=_first(keys, places, seen, np.flatnonzero(unknown)),
    )


def _times(seen: Array) -> dict[int, int]:
    times, rows = np.unique(seen, return_counts=True)
    return dict(zip(times.tolist(), rows.tolist()))


def _pairs(key: Array, source: Array, length: Array, ranks: int) -> Array:
    """int64 [ranks, ranks], of the runs of equal key and source."""
    pairs = np.zeros((ranks, ranks), np.int64)
    shared = np.bincount(key)[key] > 1 if len(key) else np.zeros(0, bool)  # keys that several ranks saw
    key_of_shared = np.unique(key[shared], return_inverse=True)[1]
    source_of_shared = source[shared]
    most = max(1, _CELLS // ranks)
    for begin in range(0, int(key_of_shared[-1]) + 1 if len(key_of_shared) else 0, most):
        a, b = np.searchsorted(key_of_shared, [begin, begin + most])
        who = np.zeros((most, ranks), np.float32)  # exact: a chunk has less than 2^24 keys
        who[key_of_shared[a:b] - begin, source_of_shared[a:b]] = 1
        pairs += (who.T @ who).astype(np.int64)
    np.fill_diagonal(pairs, np.bincount(source[length > 1], minlength=ranks))
    return pairs


def _buckets(keys: Array, places: Array, axis: Axis) -> Array:
    """int64 [keys]."""
    if axis.kind == "hash":
        return (keys[:, 0] >> np.uint64(56)).astype(np.int64)  # BUCKETS is 256
    if axis.kind == "reference":
        at, span = places, axis.last + 1
    else:
        at, span = (
            keys[:, 1] - np.uint64(axis.first % (1 << 64)),
            axis.last - axis.first + 1,
        )  # it wraps around as it should
    if span < 1 << 50:
        found = at.astype(np.int64) * axis.buckets // span
    else:
        found = (at.astype(np.float64) / span * axis.buckets).astype(np.int64)
    return np.clip(found, 0, axis.buckets - 1)


def first_of(found: list[Found]) -> list[Found]:
    """The first of some examples, in the order of _first()."""

    def order(one: Found) -> tuple[bool, int]:
        known = shown(one[0], one[1])
        return (False, known) if isinstance(known, int) else (True, one[2])

    return sorted(found, key=order)[:EXAMPLES]


def _first(keys: Array, places: Array, seen: Array, which: Array) -> list[Found]:
    """The first of those keys: numbers before digests, by number, or by their place in the reference."""
    if not len(which):
        return []
    numbers = keys[which, 0] == INTEGER
    by = np.where(numbers, keys[which, 1] ^ np.uint64(1 << 63), places[which].astype(np.uint64))
    first = which[np.lexsort((by, ~numbers))[:EXAMPLES]]
    return [(int(keys[i, 0]), int(keys[i, 1]), int(places[i]), int(seen[i])) for i in first]


def integer_range(words: Array) -> Optional[tuple[int, int]]:
    """The least and the largest of keys that are all whole numbers; None: not all are, or there are none."""
    if not len(words) or not (words[:, 0] == INTEGER).all():
        return None
    values = words[:, 1].view(np.int64)
    return int(values.min()), int(values.max())


def positions(words: Array, wanted: tuple[int, int], most: int = 3) -> list[int]:
    """Where a key stands among a rank's own, the first places of it."""
    same = (words[:, 0] == np.uint64(wanted[0])) & (words[:, 1] == np.uint64(wanted[1]))
    found: list[int] = np.flatnonzero(same)[:most].tolist()
    return found
