# SPDX-License-Identifier: Apache-2.0
"""Makes the report of an epoch. All trainers make it together: every key goes to the rank that counts it."""

from __future__ import annotations

import collections
from typing import Any, Iterable, Optional, Union

import numpy as np

from .counting import ARRAYS, Axis, Counts, Found, count, positions, total
from .exchange import Exchange
from .keys import in_parts, integer_range, shown
from .picture import Raster
from .record import Epoch
from .reference import Reference
from .report import Example, Report, Seen


def settle(exchange: Exchange, epoch: Epoch, reference: Reference, by_content: bool) -> Report:
    """Returns the report, the same on every rank. Collective. Raises the errors of Exchange."""
    words = epoch.words()
    tables = [words] if reference.part is None else [words, reference.part]
    heads = exchange.allgather(
        {
            "steps": epoch.steps,
            "rows": epoch.rows,
            "ranges": [integer_range(table) for table in tables if len(table)],
            "error": epoch.error,
            "left": not epoch.whole,
        }
    )
    axis = _axis([one for head in heads for one in head["ranges"]], reference)
    order, rows = in_parts(words, exchange.size)
    sorted_words = words[order]
    del order  # frees 8 bytes for each row
    found = _of_all_ranks(exchange, count(exchange.alltoall(sorted_words, rows), reference.part, axis))

    seen = [*found.repeated, *found.unknown]
    told = exchange.allgather(
        {
            "places": [_places(epoch, words, example) for example in seen],
            "never": [reference.name_of(place) for _, _, place, _ in found.never],  # rank 0 has the names
        }
    )
    examples = [_example(one, [rank["places"][i] for rank in told], by_content) for i, one in enumerate(seen)]
    never = [Example(_shown(one, name, by_content), 0) for one, name in zip(found.never, told[0]["never"])]
    distinct, unknown = sum(found.times.values()), sum(found.strange.values())
    missing, repeats = found.sums.tolist()
    if reference.part is None and reference.rows is not None:
        missing, unknown = max(0, reference.rows - distinct), max(0, distinct - reference.rows)
        if axis == Axis("number", 0, reference.rows - 1):
            ends = -(-np.arange(axis.buckets + 1) * reference.rows // axis.buckets)
            found = found._replace(rows=np.diff(ends))
    known = reference.rows is not None
    return Report(
        name=exchange.label,
        epoch=epoch.number,
        steps=tuple(head["steps"] for head in heads),
        rows=tuple(head["rows"] for head in heads),
        distinct_by_rank=tuple(found.own.tolist()),
        never=missing if known else None,
        unknown=unknown if known else None,
        repeats=repeats,
        reference=reference.rows,
        times=dict(sorted(found.times.items())),
        times_unknown=dict(sorted(found.strange.items())),
        pairs={(int(a), int(b)): int(found.pairs[a, b]) for a, b in np.argwhere(np.triu(found.pairs))},
        by_content=by_content,
        left=tuple(rank for rank, head in enumerate(heads) if head["left"] and head["error"] is None),
        errors={rank: head["error"] for rank, head in enumerate(heads) if head["error"] is not None},
        never_seen=tuple(never),
        seen_again=tuple(examples[: len(found.repeated)]),
        not_in_reference=tuple(examples[len(found.repeated) :]) if known else (),
        raster=Raster(exchange.size, found.deliveries, found.rows, found.seen, axis),
    )


def _axis(ranges: list[Any], reference: Reference) -> Axis:
    by_key = reference.part is not None
    if ranges and None not in ranges:
        first, last = min(low for low, _ in ranges), max(high for _, high in ranges)
        if not by_key and reference.rows and 0 <= first and last < reference.rows:
            return Axis("number", 0, reference.rows - 1)  # the keys are probably all numbers from 0 on
        return Axis("number", first, last)
    return Axis("reference", 0, reference.rows - 1) if by_key and reference.rows else Axis("hash")


def _of_all_ranks(exchange: Exchange, mine: Counts) -> Counts:
    """The sum of the counts of all ranks. Each rank has counted different keys."""
    arrays, (times, strange, *examples) = mine[:ARRAYS], mine[ARRAYS:]
    summed = exchange.allsum(np.concatenate([array.ravel() for array in arrays]))
    parts = np.split(summed, np.cumsum([array.size for array in arrays])[:-1])
    said = exchange.allgather([list(times.items()), list(strange.items()), *examples])
    found = total(
        Counts(*[0] * ARRAYS, *(collections.Counter(dict(one)) for one in each[:2]), *each[2:]) for each in said
    )
    return found._replace(
        **{name: part.reshape(array.shape) for name, part, array in zip(Counts._fields, parts, arrays)}
    )


def _places(epoch: Epoch, words: Any, example: Found) -> list[Any]:
    """[[[step, row], ...], name]: the places where this rank saw a row, and its key's text, or None."""
    found = positions(words, example[0], example[1])
    return [[epoch.place(index) for index in found], _first(map(epoch.names.get, found))]


def _example(example: Found, places: list[Any], by_content: bool) -> Example:
    """`places`: each rank's answer of _places()."""
    seen = tuple(Seen(rank, step, row) for rank, (found, _) in enumerate(places) for step, row in found)
    return Example(_shown(example, _first(name for _, name in places), by_content), example[3], seen)


def _first(names: Iterable[Optional[str]]) -> Optional[str]:
    return next((name for name in names if name is not None), None)


def _shown(example: Found, name: Optional[str], by_content: bool) -> Union[int, str]:
    key = shown(example[0], example[1])
    if isinstance(key, int):
        return key
    return name if name is not None else f"{'content' if by_content else 'key'} {key}"
