# SPDX-License-Identifier: Apache-2.0
"""The report of an epoch, made by all trainers together: every key goes to the one rank that counts it."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from .counting import ARRAYS, Axis, Counts, Found, count, integer_range, positions
from .exchange import Exchange
from .keys import integers, owners, shown
from .picture import Raster
from .record import Epoch
from .reference import Reference
from .report import Example, Report, Seen

Array = Any


def settle(exchange: Exchange, epoch: Epoch, reference: Reference, by_content: bool) -> Report:
    """Collective; the same report on every rank. Raises as Exchange does."""
    words = epoch.words()
    heads = exchange.allgather(
        {
            "steps": epoch.steps,
            "rows": epoch.rows,
            "range": integer_range(words),
            "kinds": _kinds(words),
            "reference": _kinds(reference.part.words) if reference.part else [],
            "error": epoch.error,
            "left": not epoch.whole,
        }
    )
    axis = _axis(heads, reference)
    found = count(exchange.alltoall(*by_owner(words, exchange.size)), reference.part, axis)
    found = _added(exchange, found)
    names = [reference.name_of(place) for _, _, place, _ in found.never] if exchange.rank == 0 else None
    said = exchange.allgather([_places(epoch, words, [*found.repeated, *found.unknown]), names])
    return _report(exchange, epoch.number, heads, found, said, reference, axis, by_content)


def by_owner(words: Array, ranks: int) -> tuple[Array, list[int]]:
    """The keys in the order of the ranks that count them, and how many each is to count."""
    if ranks == 1:
        return words, [len(words)]
    owner = owners(words, ranks)
    return words[np.argsort(owner, kind="stable")], np.bincount(owner, minlength=ranks).tolist()


def _axis(heads: list[dict[str, Any]], reference: Reference) -> Axis:
    ranges = [head["range"] for head in heads if head["rows"]]
    ranges += [reference.range] if reference.part is not None and reference.rows else []
    if ranges and None not in ranges:
        first, last = min(low for low, _ in ranges), max(high for _, high in ranges)
        if reference.part is None and reference.rows and 0 <= first and last < reference.rows:
            return Axis("number", 0, reference.rows - 1)  # numbers from 0 on: most likely all of them
        return Axis("number", first, last)
    return Axis("reference", 0, reference.rows - 1) if reference.part is not None and reference.rows else Axis("hash")


def _added(exchange: Exchange, mine: Counts) -> Counts:
    """What all ranks have counted, each its keys."""
    arrays = [getattr(mine, name) for name in ARRAYS]
    total = exchange.allsum(np.concatenate([array.ravel() for array in arrays]))
    cuts = np.cumsum([array.size for array in arrays])[:-1]
    sums = {name: part.reshape(array.shape) for name, part, array in zip(ARRAYS, np.split(total, cuts), arrays)}
    # The rest is little: each adds it up for itself, to a count without numbers.
    nothing = {name: np.zeros_like(array) for name, array in zip(ARRAYS, arrays)}
    found = Counts(**sums, times={}, strange={}, never=[], repeated=[], unknown=[])
    said = [sorted(mine.times.items()), sorted(mine.strange.items()), mine.never, mine.repeated, mine.unknown]
    for times, strange, *examples in exchange.allgather(said):
        never, repeated, unknown = ([(a, b, place, often) for a, b, place, often in some] for some in examples)
        found = found.plus(
            Counts(**nothing, times=dict(times), strange=dict(strange), never=never, repeated=repeated, unknown=unknown)
        )
    return found


def _places(epoch: Epoch, words: Array, examples: list[Found]) -> list[list[Any]]:
    """Where this rank saw each of them: [[step, row], ...] and its name if it is known here."""
    answers: list[list[Any]] = []
    for example in examples:
        found = positions(words, example[:2])
        name = next((name for name in map(epoch.name, found) if name is not None), None)
        text = name.decode(errors="replace") if name is not None else None
        answers.append([[list(epoch.place(index)) for index in found], text])
    return answers


def _kinds(words: Array) -> list[bool]:
    """True if some are whole numbers, False if some are not."""
    are = integers(words)
    return list({bool(are.any()), bool(are.all())}) if len(are) else []


def _hint(heads: list[dict[str, Any]], distinct: int, unknown: int, by_content: bool) -> str:
    """Why nothing that came is in the reference."""
    came, wanted = ({kind for head in heads for kind in head[which]} for which in ("kinds", "reference"))
    if not wanted or not distinct or unknown < distinct:
        return ""
    text = "Nothing that came is in the reference. "
    if by_content:
        return (
            f"{text}By their content rows are the same only in all bytes, and in dtype and shape. Rows that are vectors must be "
            "in batches on both sides: a vector by itself counts as a batch of numbers. With key= it is the key that must be the "
            "same"
        )
    if came.isdisjoint(wanted):
        names = ("whole numbers", "texts, floating-point numbers or other arrays")
        return (
            f"{text}The rows' keys are {names[0] if True in came else names[1]}, those of the reference "
            f"{names[0] if True in wanted else names[1]}: such are never the same. Give both in one kind"
        )
    if False not in came:
        return ""
    return f"{text}Keys are the same only in the same kind: texts, or numbers of the same dtype and shape"


def _report(
    exchange: Exchange,
    number: int,
    heads: list[dict[str, Any]],
    found: Counts,
    said: list[list[Any]],
    reference: Reference,
    axis: Axis,
    by_content: bool,
) -> Report:
    places, names_of_never = [one[0] for one in said], said[0][1]
    wanted, missing, repeats, distinct, unknown, _ = found.sums.tolist()
    rows_known = found.rows
    if reference.part is None and reference.rows is not None:
        wanted, missing, unknown = reference.rows, max(0, reference.rows - distinct), max(0, distinct - reference.rows)
        if axis == Axis("number", 0, reference.rows - 1):
            ends = -(-np.arange(axis.buckets + 1) * reference.rows // axis.buckets)
            rows_known = np.diff(ends)
    known = reference.rows is not None

    def seen_examples(examples: list[Found], offset: int) -> tuple[Example, ...]:
        made = []
        for i, example in enumerate(examples, offset):
            seen = tuple(Seen(rank, step, row) for rank, answers in enumerate(places) for step, row in answers[i][0])
            name: Optional[str] = next((answers[i][1] for answers in places if answers[i][1] is not None), None)
            made.append(Example(_named(example, name, by_content), example[3], seen))
        return tuple(made)

    return Report(
        name=exchange.label,
        epoch=number,
        steps=tuple(head["steps"] for head in heads),
        rows=tuple(head["rows"] for head in heads),
        distinct_by_rank=tuple(found.own.tolist()),
        distinct=distinct,
        never=missing if known else None,
        unknown=unknown if known else None,
        repeats=repeats,
        reference=wanted if known else None,
        times=found.times,
        times_unknown=found.strange,
        pairs={(int(a), int(b)): int(found.pairs[a, b]) for a, b in np.argwhere(np.triu(found.pairs))},
        by_content=by_content,
        hint=_hint(heads, distinct, unknown, by_content),
        left=tuple(rank for rank, head in enumerate(heads) if head["left"] and head["error"] is None),
        errors={rank: head["error"] for rank, head in enumerate(heads) if head["error"] is not None},
        never_seen=tuple(Example(_named(one, name, by_content), 0) for one, name in zip(found.never, names_of_never)),
        seen_again=seen_examples(found.repeated, 0),
        not_in_reference=seen_examples(found.unknown, len(found.repeated)) if known else (),
        raster=Raster(exchange.size, found.deliveries, rows_known, found.seen, axis.kind, axis.first, axis.last),
    )


def _named(example: Found, name: Optional[str], by_content: bool) -> Any:
    known = shown(*example[:2])
    if isinstance(known, int):
        return known
    return name if name is not None else f"{'content' if by_content else 'key'} {known}"
