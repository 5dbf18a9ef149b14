# SPDX-License-Identifier: Apache-2.0
"""Makes the report of an epoch. All trainers make it together: every key goes to the rank that counts it."""

from __future__ import annotations

import collections
from typing import Any, Optional, Sequence, Union

import numpy as np

from .counting import ARRAYS, Counts, count, positions, total
from .exchange import Exchange
from .keys import in_parts, shown
from .record import Epoch
from .reference import Reference
from .report import Example, Report, Seen


def settle(exchange: Exchange, epoch: Epoch, reference: Reference, by_content: bool) -> Report:
    """Returns the report, the same on every rank. Collective. Raises the errors of Exchange."""
    words = epoch.words()
    heads = exchange.allgather(
        {
            "steps": epoch.steps,
            "rows": epoch.rows,
            "error": epoch.error,
            "left": not epoch.whole,
        }
    )
    order, rows = in_parts(words, exchange.size)
    sorted_words = words[order]
    del order  # frees 8 bytes for each row
    found = _of_all_ranks(exchange, count(exchange.alltoall(sorted_words, rows), reference.part))

    never, repeated, strange = (each.tolist() for each in (found.never, found.repeated, found.unknown))
    # For each example, the places where this rank saw it, and the text of its key. Rank 0 has the reference's texts.
    mine = [[[], reference.name_of(place)] for _, _, place, _ in never]
    mine += [_places(epoch, words, key) for *key, _, _ in repeated + strange]
    told = zip(never + repeated + strange, zip(*exchange.allgather(mine)))
    examples = [_example(one, by_rank, by_content) for one, by_rank in told]
    seen = examples[len(never) :]
    distinct, unknown = sum(found.times.values()), sum(found.strange.values())
    missing, repeats = found.sums.tolist()
    if reference.part is None and reference.rows is not None:
        missing, unknown = max(0, reference.rows - distinct), max(0, distinct - reference.rows)
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
        never_seen=tuple(examples[: len(never)]),
        seen_again=tuple(seen[: len(repeated)]),
        not_in_reference=tuple(seen[len(repeated) :]) if known else (),
    )


def _of_all_ranks(exchange: Exchange, mine: Counts) -> Counts:
    """The sum of the counts of all ranks. Each rank has counted different keys."""
    arrays, (times, strange, *examples) = mine[:ARRAYS], mine[ARRAYS:]
    summed = exchange.allsum(np.concatenate([array.ravel() for array in arrays]))
    parts = np.split(summed, np.cumsum([array.size for array in arrays])[:-1])
    summed = [part.reshape(array.shape) for part, array in zip(parts, arrays)]
    said = exchange.allgather([list(times.items()), list(strange.items()), *(each.tolist() for each in examples)])
    counters = [[collections.Counter(dict(one)) for one in each[:2]] for each in said]
    tables = [[np.array(one, np.uint64).reshape(-1, 4) for one in each[2:]] for each in said]
    found = total(Counts(*[0] * ARRAYS, *both, *each) for both, each in zip(counters, tables))
    return Counts(*summed, *found[ARRAYS:])


def _places(epoch: Epoch, words: Any, key: Sequence[int]) -> list[Any]:
    """[[[step, row], ...], name]: the places where this rank saw a row, and its key's text, or None."""
    found = positions(words, key)
    return [[epoch.place(index) for index in found], epoch.names.get(found[0]) if found else None]


def _example(found: Sequence[int], by_rank: Sequence[Any], by_content: bool) -> Example:
    """`by_rank`: what _places() returned on each rank."""
    word0, word1, _, times = found
    seen = tuple(Seen(rank, step, row) for rank, (places, _) in enumerate(by_rank) for step, row in places)
    key: Union[int, str] = shown(word0, word1)
    if isinstance(key, str):
        name: Optional[str] = next((name for _, name in by_rank if name is not None), None)
        key = name if name is not None else f"{'content' if by_content else 'key'} {key}"
    return Example(key, times, seen)
