# SPDX-License-Identifier: Apache-2.0
"""Timelines in files: of horovod_data, of Horovod, and of the processes of a killed job.

Merges their events into one list.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any, Iterator, Sequence

from ..errors import explained
from . import parts
from .parts import FORMAT, START, Event, Part

_MOST = 1e18  # microseconds: 30,000 years
_ROWS = 1_000_000  # each further file begins its rows at the next multiple of this number


@dataclasses.dataclass(frozen=True)
class Timeline:
    """The events of one job. Its time 0 was `began` microseconds after 1970, by the clock of rank 0's host."""

    path: str
    ours: bool
    began: float
    events: list[Event]
    broken_off: bool  # True: the job was killed or is still running, so its last events are missing
    left_out: int = 0  # events that found no room in the process's buffer


def read(path: str) -> Timeline:
    """The timeline in a JSON file, complete or broken off.

    Raises:
      OSError: the file can't be read.
      ValueError: the file is not a timeline of horovod_data or Horovod, or is damaged. The text says where.
    """
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read().strip()
    if not text:
        raise _no_timeline(path, "it is empty: the job was killed, or runs on; merge the files of its processes")
    if not text.startswith("["):
        raise _no_timeline(path, "it doesn't begin with a list of events")
    broken_off = not text.endswith("]")
    events = _whole_events(path, text) if broken_off else _events(path, text)
    heads = _metadata(events, "horovod_data")
    if heads and (said := heads[0]["args"].get("timeline")) != FORMAT:
        raise _no_timeline(path, f"its format is {said!r:.60}, of another version of horovod_data")
    return _timeline(path, bool(heads), events, broken_off)


def _whole_events(path: str, text: str) -> list[Event]:
    """The events of a file that is cut off in an event."""
    at = len(text)
    for _ in range(4):  # the last "}," may be within the last event
        at = max(text.rfind("},", 0, at), 0)
        try:
            return _events(path, f"{text[: at + 1]}]")
        except ValueError as error:
            why = error
    raise why


def _events(path: str, text: str) -> list[Event]:
    """The events in a whole JSON list. Their times and numbers are checked, because any program may have written it."""
    try:
        events: list[Event] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _no_timeline(path, f"its events can't be read ({error})") from None
    for event in events:
        if not _is_event(event):
            raise _no_timeline(path, f"{event!r:.60} is no event")
        if event["ph"] == "M":
            event.setdefault("args", {})
    return events


def _is_event(event: Any) -> bool:
    if not isinstance(event, dict) or not isinstance(event.get("ph"), str) or not _is_number(event.get("ts", 0)):
        return False
    args = event.get("args", {})
    return isinstance(args, dict) and all(_is_number(args.get(name, 0)) for name in ("left_out", "sort_index"))


def _is_number(value: Any) -> bool:
    """Says whether this is a number that can be added to other times."""
    return isinstance(value, (int, float)) and abs(value) < _MOST


def read_parts(paths: Sequence[str]) -> list[Timeline]:
    """The timelines of jobs, made from the parts of their processes. The parts may come in any order.

    Raises:
      OSError: a file can't be read.
      ValueError: a file is not a part. Or the job was killed before any of its processes knew the time.
    """
    jobs: dict[int, list[Part]] = {}  # by the time 0 of reader 0, which identifies a job
    unknown: list[Part] = []
    for path in dict.fromkeys(paths):
        try:
            part = Part(path)
        except ValueError as error:
            raise _no_timeline(path, str(error)) from None
        (jobs.setdefault(part.clock.zero, []) if part.clock else unknown).append(part)
    if not jobs:
        raise _no_timeline(", ".join(paths[:4]), "no process knew the time of reader 0 before the job was killed")
    next(iter(jobs.values())).extend(unknown)
    timelines = []
    for ours in jobs.values():
        events = list(parts.events_of(ours))
        more = f" and {len(ours) - 1} more" if len(ours) > 1 else ""
        timelines.append(_timeline(ours[0].path + more, True, events, not all(part.ended for part in ours)))
    return timelines


def merge(timelines: Sequence[Timeline]) -> list[Event]:
    """Merges the events of all timelines. The time 0 of the timeline that began first is the time 0 of the result.

    Each timeline has its own rows, and the rows of horovod_data come first. Changes the events in place.
    """
    ordered = sorted(timelines, key=lambda one: not one.ours)
    zero = min(one.began for one in ordered)  # Perfetto leaves out events before time 0
    return [moved for number, one in enumerate(ordered) for moved in _moved(one, one.began - zero, number)]


def _moved(timeline: Timeline, later: float, number: int) -> Iterator[Event]:
    """The events of the timeline, with `later` microseconds added to their times.

    Their rows are different from those of timelines with another `number`.
    """
    for event in timeline.events:
        if "ts" in event:
            event["ts"] = round(event["ts"] + later, 3)
        if number:
            for row in ("pid", "tid"):
                if isinstance(event.get(row), int):
                    event[row] += number * _ROWS
            if event["ph"] == "M" and event.get("name") == "process_sort_index":
                event["args"] = {"sort_index": number * _ROWS + event["args"].get("sort_index", 0)}
            elif event["ph"] == "M" and event.get("name") == "process_name":
                name = event["args"].get("name")
                source = os.path.basename(timeline.path) if timeline.ours else "Horovod"
                event["args"] = {**event["args"], "name": f"{source}: {name}" if name else source}
        yield event


def _metadata(events: Sequence[Event], name: str) -> list[Event]:
    return [event for event in events if event["ph"] == "M" and event.get("name") == name]


def _timeline(path: str, ours: bool, events: list[Event], broken_off: bool) -> Timeline:
    starts = [event for event in events if event["ph"] == "M" and START in event.get("args", {})]
    starts.sort(key=lambda event: event.get("pid") != 0)  # rank 0's clock is that of Horovod's timeline
    if not starts or not _is_number(starts[0]["args"][START]):
        raise _no_timeline(path, "it has no start time, as timelines of horovod_data and of Horovod 0.21 or later have")
    # The event "horovod_data end" has the number of all events that were left out.
    lost = _metadata(events, "horovod_data end")[-1:] or [one for one in events if one.get("cat") == "left out"]
    left_out = sum(int(event.get("args", {}).get("left_out", 0)) for event in lost)
    return Timeline(path, ours, starts[0]["args"][START], events, broken_off, left_out)


def _no_timeline(path: str, why: str) -> ValueError:
    return explained(
        ValueError,
        f"{path} is no timeline: {why}",
        "Name files that HOROVOD_DATA_TIMELINE=... (or horovod-data-run --timeline-filename ...) and "
        "HOROVOD_TIMELINE=... have written; of a job that was killed, the files of all its processes",
        where="",
    )
