# SPDX-License-Identifier: Apache-2.0
"""Timelines in files: of horovod_data, of Horovod, and of the processes of a killed job.

Merges their events into one list.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any, Iterator, Optional, Sequence

from ..errors import explain
from . import parts
from .parts import FORMAT, START, Part

_MOST = 1e18  # microseconds: 30,000 years
_ROWS = 1_000_000  # each further file begins its rows at the next multiple of this number

Event = dict[str, Any]


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
    with open(path, "rb") as file:
        data = file.read()
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if error.end < len(data) or not data.lstrip().startswith(b"["):
            raise ValueError(_no_timeline(path, f"byte {error.start} is no text")) from None
        text = data[: error.start].decode()  # the file ends within a letter
    del data
    if not text.strip():
        raise ValueError(
            _no_timeline(path, "it is empty: the job was killed, or runs on; merge what its processes left")
        )
    events: list[Event] = []
    broken_off = True
    for event in _events(path, text):
        if event is None:
            broken_off = False
        else:
            events.append(event)
    heads = _metadata(events, "horovod_data")
    if not heads:
        return _horovods(path, events, broken_off)
    if heads[0]["args"].get("timeline") != FORMAT:
        said = _short(heads[0]["args"].get("timeline"))
        raise ValueError(_no_timeline(path, f"its format is {said}, of another version than this one"))
    return _ours(path, events, broken_off)


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
            raise ValueError(_no_timeline(path, str(error))) from None
        (jobs.setdefault(part.zero, []) if part.clock else unknown).append(part)
    if not jobs:
        raise ValueError(
            _no_timeline(", ".join(paths[:4]), "no process knew the time of reader 0 before the job was killed")
        )
    next(iter(jobs.values())).extend(unknown)
    timelines = []
    for ours in jobs.values():
        events = [json.loads(line) for line in parts.lines(ours)]
        more = f" and {len(ours) - 1} more" if len(ours) > 1 else ""
        timelines.append(_ours(ours[0].path + more, events, not all(part.ended for part in ours)))
    return timelines


def merge(timelines: Sequence[Timeline]) -> list[Event]:
    """Merges the events of all timelines. The time 0 of the timeline that began first is the time 0 of the result.

    Each timeline has its own rows, and the rows of horovod_data come first. Changes the events in place.

    Raises:
      ValueError: there is no timeline.
    """
    if not timelines:
        raise ValueError(explain("There is no timeline to merge"))
    ordered = sorted(timelines, key=lambda one: not one.ours)
    zero = min(one.began for one in ordered)  # Perfetto leaves out events before time 0
    return [moved for number, one in enumerate(ordered) for moved in _moved(one, one.began - zero, number)]


def _moved(timeline: Timeline, later: float, number: int) -> Iterator[Event]:
    """The events of the timeline, `later` microseconds later, in rows that no timeline with another number has."""
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


def _ours(path: str, events: list[Event], broken_off: bool) -> Timeline:
    clocks = _metadata(events, "horovod_data clock")
    clocks.sort(key=lambda event: event.get("pid") != 0)  # rank 0's clock is that of Horovod's timeline
    if not clocks or not _is_number(clocks[0]["args"].get(START)):
        raise ValueError(_no_timeline(path, "it doesn't say when it began"))
    if ends := _metadata(events, "horovod_data end"):
        left_out = int(ends[-1]["args"].get("left_out", 0))
    else:
        left_out = sum(int(event["args"].get("left_out", 0)) for event in events if event.get("cat") == "left out")
    return Timeline(path, True, clocks[0]["args"][START], events, broken_off, left_out)


def _horovods(path: str, events: list[Event], broken_off: bool) -> Timeline:
    starts = [event["args"][START] for event in events if event["ph"] == "M" and START in event.get("args", {})]
    if not starts or not _is_number(starts[0]):
        raise ValueError(
            _no_timeline(path, "it doesn't say when it began, as horovod_data's do, and those of Horovod 0.21 or later")
        )
    return Timeline(path, False, starts[0], events, broken_off)


def _events(path: str, text: str) -> Iterator[Optional[Event]]:
    """Yields each whole event. Yields None last if the file is complete."""
    decoder = json.JSONDecoder()
    at = _skip(text, 0)
    if text[at] != "[":
        raise ValueError(_no_timeline(path, "it doesn't begin with a list of events"))
    at = _skip(text, at + 1)
    while at < len(text):
        if text[at] == "]":
            if _skip(text, at + 1) < len(text):
                raise ValueError(_no_timeline(path, f"something stands behind its end (character {at + 1})"))
            yield None
            return
        try:
            event, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            if text[at] == "{" and "}," not in text[getattr(error, "pos", at) :]:
                return  # the file is cut off here
            raise ValueError(_no_timeline(path, f"what stands at character {at} is no event ({error})")) from None
        if (
            not isinstance(event, dict)
            or not isinstance(event.get("ph"), str)
            or not isinstance(event.get("args", {}), dict)
        ):
            raise ValueError(_no_timeline(path, f"{_short(event)} is no event"))
        if event["ph"] == "M" or event.get("cat") == "left out":
            args = event.setdefault("args", {})
            if not isinstance(args.get("left_out", 0), int):
                raise ValueError(_no_timeline(path, f"{_short(event)} has no number of events"))
            if event.get("name") == "process_sort_index" and not _is_number(args.get("sort_index", 0)):
                raise ValueError(_no_timeline(path, f"the place of a process is {_short(args['sort_index'])}"))
        if not _is_number(event.get("ts", 0)):
            raise ValueError(_no_timeline(path, f"an event's time is {_short(event['ts'])}"))
        yield event
        at = _skip(text, at)
        if at < len(text) and text[at] == ",":
            at = _skip(text, at + 1)
        elif at < len(text) and text[at] != "]":
            raise ValueError(_no_timeline(path, f"between events there is {_short(text[at])} (character {at})"))


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _is_number(value: Any) -> bool:
    """Says whether this is a number that can be added to other times."""
    return isinstance(value, (int, float)) and abs(value) < _MOST


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _no_timeline(path: str, why: str) -> str:
    return explain(
        f"{path} is no timeline: {why}",
        "Name files that HOROVOD_DATA_TIMELINE=... (or horovod-data-run --timeline-filename ...) and "
        "HOROVOD_TIMELINE=... have written; of a job that was killed, the files of all its processes",
        where="",
    )
