# SPDX-License-Identifier: Apache-2.0
"""report(): shows where the time of every channel goes, as a table and one sentence."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from statistics import fmean
from typing import Iterable, Mapping, Sequence

from ...errors import aligned, counted, explain, explained, say, show, text_of
from ...job import state
from ...native import bindings
from .. import times
from . import verdict

_PATIENCE_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class TimesReport:
    """The times of the channels on all processes that have answered. report() prints str() of it."""

    channels: Mapping[str, times.Channel]
    verdicts: Mapping[str, verdict.Verdict]
    attempt: int = 1  # the number of this start of the job

    def __str__(self) -> str:
        if not self.channels:
            return "horovod_data report: no batch has been delivered yet, or none since stats(reset=True)"
        again = [] if self.attempt == 1 else [f"horovod_data report: attempt {self.attempt}"]
        tables = [line for name, channel in self.channels.items() for line in _table(channel, self.verdicts[name])]
        return "\n".join([*again, *tables])


def report() -> TimesReport:
    """Prints where the time of every channel goes, on all ranks: a table, and one sentence (the verdict).

    Not collective: any process may call it at any time. The other processes answer in the background. The report leaves
    out a process that does not answer within five seconds. Times count from the creation of the channel, or from
    `stats(reset=True)` on the process.

    docs/report.md explains the table and the verdict.

    Returns:
      The printed report with its numbers: `.channels["train"].trainers[0].wait` (seconds),
      `.verdicts["train"].bound_by` ("trainer", "reader", "link" or "rank"), `.gain`.

    Raises:
      RuntimeError: before init(), after shutdown(), or in a forked child.
    """
    state.known("report()")
    if bindings.state() is bindings.State.SHUT_DOWN:  # processes no longer answer
        to_do = "Call it before, or start the job with HOROVOD_DATA_REPORT=1, which prints it at the end"
        raise explained(RuntimeError, "report() was called after horovod_data.shutdown()", to_do)
    made = make(times.of_all(_PATIENCE_SECONDS))
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"  # it may lack letters of a channel's name
    with contextlib.suppress(OSError, ValueError):  # stdout is closed, or is a pipe without a reader
        print(str(made).encode(encoding, "backslashreplace").decode(encoding), flush=True)
    return made


def make(processes: Iterable[Mapping[str, object]]) -> TimesReport:
    """Makes the report from the processes that times.of_all() returns."""
    channels = {channel.name: channel for channel in times.channels(processes)}
    job = state.joined()
    verdicts = {name: verdict.judge(channel) for name, channel in channels.items()}
    return TimesReport(channels, verdicts, 1 if job is None else job.settings.attempt)


def at_end() -> None:
    """Prints the report on stderr. With HOROVOD_DATA_REPORT=1, reader 0 calls it when all ranks are done."""
    try:
        show(str(make(times.of_all(_PATIENCE_SECONDS))))
    except Exception as error:  # a failed report does not fail the process, because the job has ended well
        say(explain(f"there is no report: {type(error).__name__}: {text_of(error)}"))


def _table(channel: times.Channel, judged: verdict.Verdict) -> list[str]:
    ranks, readers = channel.trainers, channel.readers
    steps = sum(one.steps for one in ranks)
    lines = [
        f"horovod_data report: channel {channel.name}: {counted(len(ranks), 'rank')}, "
        f"{counted(len(readers), 'reader')}, {steps:,} batches, {fmean(one.total for one in ranks):.1f} s"
    ]
    rows: list[Sequence[str]] = [("", "steps", "a step", "waits", "receives", "own", "queue")]
    for one in _shown(ranks):
        parts = _parts(one.total, one.wait, one.receive, one.step)
        queue = f"{one.queued / one.steps:.1f}" if one.steps else "-"
        rows.append((one.name, f"{one.steps:,}", _time(one.seconds_per_step), *parts, queue))
    lines += aligned(rows)
    if len(ranks) > len(rows) - 1:
        lines.append(f"  ... and {len(ranks) - len(rows) + 1} more ranks between these")
    rows = [("", "elements", "pipeline", "deals", "no room", "of rank", "at the end")]
    for reader in readers:
        pipeline, deals, room, serve = _parts(reader.total, reader.pipeline, reader.deal, reader.room, reader.serve)
        rows.append((reader.name, f"{reader.elements:,}", pipeline, deals, room, _fullest(reader), serve))
    kept = [] if channel.cache is None else [_kept(channel.cache)]
    return [*lines, *(aligned(rows) if readers else ()), *kept, f"  {judged.text}"]


def _kept(cache: times.Cache) -> str:
    """What the hosts keep in memory."""
    state = "the load has failed" if cache.failed else "loaded" if cache.loaded else cache.loading or "not loaded yet"
    size, state = (cache.bytes, state) if cache.bytes else (cache.freed, state + ("; freed" if cache.freed else ""))
    return f"  the memory of the job: {size / 2**30:,.2f} GiB of {cache.limit / 2**30:,.2f} GiB, {state}"


def _fullest(reader: times.Reader) -> str:
    """The rank for whose credit the reader waited longest, with its part of all waits for credit and how often."""
    most = max(reader.room_of, key=lambda rank: reader.room_of[rank], default=None)
    if most is None or not reader.room_of[most]:
        return "-"
    return f"{most} ({_percent(reader.room_of[most], reader.room)}, {reader.room_times_of[most]:,}x)"


def _shown(ranks: Sequence[times.Trainer]) -> Sequence[times.Trainer]:
    """All ranks. If there are more than 16: the ranks that waited most and least."""
    most = 16
    if len(ranks) <= most:
        return ranks
    ordered = sorted(ranks, key=lambda one: one.wait_share)
    return sorted([*ordered[: most // 2], *ordered[-most // 2 :]], key=lambda one: one.rank)


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _parts(whole: float, *parts: float) -> list[str]:
    return [_percent(part, whole) for part in parts]


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.3f} ms"
