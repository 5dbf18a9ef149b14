# SPDX-License-Identifier: Apache-2.0
"""The report of an epoch: which rows the job saw, how often, and on which ranks. Pure."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Iterator, NamedTuple, Optional, Sequence, Union

from ..errors import aligned, counted

_MOST_TIMES = 5  # numbers of times up to this limit have a line of their own
_MOST_TOLD = 4  # ranks or pairs of ranks in a sentence


class Seen(NamedTuple):
    """A place where a row was seen: the rank; the step of the epoch, from 1; the row in its element, from 0."""

    rank: int
    step: int
    row: int

    def __str__(self) -> str:
        return f"rank {self.rank} in step {self.step}, row {self.row}"


class Example(NamedTuple):
    """A row that was not seen exactly once.

    `key`: the whole number or text that the user gave as its key, or a description. `times`: how often it was seen.
    `seen`: the places, at most three for each rank.
    """

    key: Union[int, str]
    times: int
    seen: tuple[Seen, ...] = ()

    def __str__(self) -> str:
        if not self.seen:
            return str(self.key)
        more = ["..."] * (self.times > len(self.seen[:3]))
        return f"{self.key} ({'; '.join([*map(str, self.seen[:3]), *more])})"


@dataclasses.dataclass(frozen=True)
class Report:
    """The rows that all ranks saw in an epoch. All ranks have the same report. `str()` gives its text.

    Rows are identified by their keys (see audit()). `distinct`, `once`, `times`, `pairs` and `distinct_by_rank` count
    different rows. `rows` and `repeats` count deliveries. Tuples have a number for each rank, in the order of the
    ranks.
    """

    name: str  # of the audit: "audit 1"
    epoch: int  # from 1
    steps: tuple[int, ...]  # elements
    rows: tuple[int, ...]  # a row counts as often as it came
    distinct_by_rank: tuple[int, ...]
    never: Optional[int]  # rows of the reference that were never seen; None: there is no reference
    unknown: Optional[int]  # different rows that are not in the reference; None: there is no reference
    repeats: int  # deliveries of a row beyond its number in the reference. Without a reference: beyond the first
    reference: Optional[int]  # rows of the reference
    times: dict[int, int]  # the number of different rows, by how often they were seen
    # (a, b): rows that both saw; (a, a): rows that a saw more than once; no value is 0
    pairs: dict[tuple[int, int], int]
    by_content: bool  # no key was given
    never_seen: tuple[Example, ...] = ()
    seen_again: tuple[Example, ...] = ()
    not_in_reference: tuple[Example, ...] = ()
    # the part of `times` for rows that are not in the reference's keys
    times_unknown: dict[int, int] = dataclasses.field(default_factory=dict)
    left: tuple[int, ...] = ()  # ranks whose epoch ended before their loader: by break, end_epoch() or report()
    errors: dict[int, str] = dataclasses.field(default_factory=dict)  # the error that ended the epoch, by rank

    @property
    def ranks(self) -> int:
        return len(self.steps)

    @property
    def distinct(self) -> int:  # different rows that the job saw
        return sum(self.times.values())

    @property
    def once(self) -> int:  # different rows that were seen once
        return self.times.get(1, 0)

    @property
    def ok(self) -> bool:
        """Says whether each row came once, as far as this is known, and no error ended the epoch."""
        return not self.never and not self.repeats and not self.unknown and not self.errors

    @property
    def verdict(self) -> str:
        """One sentence about the epoch, without its full stop."""
        if not self.errors:
            return self._rows_verdict()
        return f"an error ended the epoch on {self._named(sorted(self.errors))}; up to there {self._rows_verdict()}"

    def _named(self, ranks: Sequence[int]) -> str:
        if len(ranks) == 1:
            return f"rank {ranks[0]}"
        return "all ranks" if len(ranks) == self.ranks else f"{len(ranks)} ranks"

    def _rows_verdict(self) -> str:
        if not self.distinct and not self.never:
            return "no rank saw a row"
        if not self.never and not self.repeats and not self.unknown:
            unsure = "no row more than once (only reference= can show whether some are missing)"
            return unsure if self.never is None else "every row once"
        found = []
        if self.never:
            found.append(f"{share(self.never, self.reference or 0)} of the rows were never seen")
        again = sum(rows for times, rows in self._of_reference().items() if times > 1)
        if self.repeats and again:
            found.append(f"{share(again, self._whole())} of the rows were seen more than once")
        if self.unknown:
            strange = sum(rows for times, rows in self.times_unknown.items() if times > 1)
            came = (
                f"{counted(self.unknown, 'row')} that {'are' if self.unknown > 1 else 'is'} not in the reference came"
            )
            found.append(came + (f", {strange:,} of them more than once" if strange else ""))
        return "; ".join(found)

    def _of_reference(self) -> dict[int, int]:
        """`times` without the rows that are certainly not in the reference."""
        known = {times: rows - self.times_unknown.get(times, 0) for times, rows in self.times.items()}
        return {times: rows for times, rows in known.items() if rows}

    def _whole(self) -> int:
        """The number of rows that is 100 %: the larger one of the reference's rows and the rows that came."""
        return self.distinct if self.reference is None else max(self.reference, sum(self._of_reference().values()))

    def __str__(self) -> str:
        lines = [f"{self.name}, epoch {self.epoch}: {self.verdict}.", *self._table(), "", *self._by_rank()]
        lines += [sentence if sentence.endswith((".", "!", "?")) else f"{sentence}." for sentence in self._sentences()]
        return "\n".join(lines)

    def _table(self) -> list[str]:
        known = self._of_reference()
        counts = {"never": self.never} if self.never is not None else {}
        few = [times for times in sorted({*known, 1}) if times <= _MOST_TIMES]
        counts |= {"once" if times == 1 else f"{times} times": known.get(times, 0) for times in few}
        if more := {times: rows for times, rows in known.items() if times > _MOST_TIMES}:
            span = "" if max(more) == _MOST_TIMES + 1 else f"{_MOST_TIMES + 1} to "
            counts[f"{span}{max(more):,} times"] = sum(more.values())
        lines = [("seen", "rows", "share")]
        lines += [(name, f"{rows:,}", share(rows, self._whole())) for name, rows in counts.items()]
        if self.times_unknown:
            lines.append(("not in the reference", f"{self.unknown:,}", ""))
        return aligned(lines)

    def _by_rank(self) -> list[str]:
        lines = [("rank", "steps", "rows", "different")]
        by_rank = [*zip(self.steps, self.rows, self.distinct_by_rank)]
        # consecutive ranks with the same values share a line
        for (steps, rows, distinct), same in itertools.groupby(range(self.ranks), by_rank.__getitem__):
            first, *more = same
            name = f"{first} to {more[-1]}" if more else str(first)
            lines.append((name, f"{steps:,}", f"{rows:,}", f"{distinct:,}"))
        return aligned(lines)

    def _sentences(self) -> Iterator[str]:
        for rank in sorted(self.errors)[:_MOST_TOLD]:
            yield f"Rank {rank}'s epoch was ended after {counted(self.steps[rank], 'step')} by {self.errors[rank]}"
        if len(self.errors) > _MOST_TOLD:
            yield f"{counted(len(self.errors) - _MOST_TOLD, 'rank')} more had an error"
        yield from self._causes()
        pairs = sorted((-rows, a, b) for (a, b), rows in self.pairs.items())
        if shared := [f"{a} and {b} {counted(-rows, 'row')}" for rows, a, b in pairs if a != b]:
            yield f"Ranks that saw the same: {_first(shared, 'pair')}"
        if alone := [f"rank {a} saw {counted(-rows, 'row')} more than once itself" for rows, a, b in pairs if a == b]:
            yield _first(alone, "rank").capitalize()
        for title, examples, count in (
            ("Never seen", self.never_seen, self.never),
            ("Seen again", self.seen_again, 0),
            ("Not in the reference", self.not_in_reference, self.unknown),
        ):
            if examples:
                yield f"{title}: {', '.join(map(str, examples))}{', ...' if (count or 0) > len(examples) else ''}"
        if self.by_content and (self.repeats or self.never):
            yield "Rows were identified by their content: rows that are equal in all components count as one row"
            yield "With key= they count as different rows"

    def _causes(self) -> Iterator[str]:
        """Texts about the usual reasons for such numbers."""
        if self.never and self.unknown and self.unknown == self.distinct:
            yield "Nothing that came is in the reference"
            if self.by_content:
                yield "Rows have the same content only if all bytes, dtype and shape are the same"
                yield "Rows that are vectors must be in batches on both sides"
            else:
                yield "Keys can only be equal if they are of one kind: whole numbers, texts, or arrays of the same dtype and shape"
        several = self.ranks > 1 and self.distinct > 0
        if several and all(own == self.distinct for own in self.distinct_by_rank):
            yield "All ranks saw the same rows: nothing gives each rank its own part of them"
        if len(set(self.steps)) > 1:
            yield f"The ranks did not make the same number of steps: {min(self.steps)} to {max(self.steps)}"
            yield "A rank that ends first leaves the others waiting in their next collective call"
        if self.never and self.left and not self.errors:
            ended = "(a loop that was left, end_epoch(), report()): elements that the loader still had were not seen"
            yield f"On {self._named(self.left)} the epoch ended before the loader did {ended}"
        whole_epoch = not self.unknown and not self.errors and not self.left
        known = self.reference or 0
        nth = abs(self.distinct * self.ranks - known) <= 0.05 * known
        if several and whole_epoch and self.never and not self.repeats and nth:
            part = f"The {self.ranks} ranks together saw about 1/{self.ranks} of the rows, none twice"
            yield f"{part}: a loader that is sharded twice does this"


def share(part: int, whole: int) -> str:
    """A percentage, for example `36.0 %`. It is 0 only if `part` is 0, and 100 only if `part` is all of `whole`."""
    percent = 100 * part / whole if whole else 0.0
    if 0 < part < whole and not 0.05 <= percent < 99.95:
        return "< 0.1 %" if percent < 1 else "> 99.9 %"
    return f"{percent:.1f} %"


def _first(told: list[str], what: str) -> str:
    more = [f"and {counted(len(told) - _MOST_TOLD, what)} more"] if len(told) > _MOST_TOLD else []
    return "; ".join([*told[:_MOST_TOLD], *more])
