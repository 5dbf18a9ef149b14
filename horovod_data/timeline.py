# SPDX-License-Identifier: Apache-2.0
"""Puts timelines into one: python -m horovod_data.timeline merge OURS HOROVODS -o OUT

OURS is what HOROVOD_DATA_TIMELINE or `horovod-data-run --timeline-filename` names, HOROVODS what HOROVOD_TIMELINE does
(docs/timeline.md). Both are in Chrome's JSON trace format, and count microseconds from a moment of their own: the two are brought
together by the clock of rank 0's host, on which both say when that was. Neither TensorFlow nor MPI is needed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from typing import Any, Iterator, Optional, Sequence

from .errors import explain, show_any_text

_FORMAT = 1
_START = "start_time_since_epoch_in_micros"
_MOST = 1e18  # microseconds: 30,000 years
_ROWS = 1_000_000  # rows of each further file begin with a multiple of it

Event = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Timeline:
    """The events of a file, and when its time 0 was: microseconds since 1970, by the clock of rank 0's host."""

    path: str
    ours: bool
    began: float
    events: list[Event]
    broken_off: bool  # the job was killed: what it wrote last is not all there
    left_out: int = 0  # events that found no room


def read(path: str) -> Timeline:
    """The timeline in a file, one that a killed job has left as well.

    Raises:
      OSError: the file can't be read.
      ValueError: it is no timeline of horovod_data's or Horovod's, or is damaged; says where.
    """
    with open(path, "rb") as file:
        data = file.read()
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if error.end < len(data) or not data.lstrip().startswith(b"["):
            raise ValueError(_no_timeline(path, f"byte {error.start} is no text")) from None
        text = data[: error.start].decode()  # broken off within a letter
    del data
    if not text.strip():
        raise ValueError(_no_timeline(path, "it is empty: the job ended before it wrote anything, or runs on"))
    events: list[Event] = []
    broken_off = True
    for event in _events(path, text):
        if event is None:
            broken_off = False
        else:
            events.append(event)
    heads = [event for event in events if event["ph"] == "M" and event.get("name") == "horovod_data"]
    if not heads:
        return _horovods(path, events, broken_off)
    if heads[0]["args"].get("timeline") != _FORMAT:
        said = _short(heads[0]["args"].get("timeline"))
        raise ValueError(_no_timeline(path, f"its format is {said}, of another version than this one"))
    clocks = [event for event in events if event["ph"] == "M" and event.get("name") == "horovod_data clock"]
    rank0 = [event["args"].get(_START) for event in clocks if event.get("pid") == 0]
    if not rank0 or not _is_number(rank0[0]):
        raise ValueError(_no_timeline(path, "rank 0 has written nothing to it before the job was killed"))
    ends = [event for event in events if event["ph"] == "M" and event.get("name") == "horovod_data end"]
    if ends:
        left_out = int(ends[-1]["args"].get("left_out", 0))
    else:
        left_out = sum(int(event["args"].get("left_out", 0)) for event in events if event.get("cat") == "left out")
    return Timeline(path, True, rank0[0], events, broken_off, left_out)


def merge(timelines: Sequence[Timeline]) -> list[Event]:
    """The events of all, in the time of the one that began first and with rows of their own; those of ours come first. It is the
    events themselves that are changed.

    Raises:
      ValueError: there is none.
    """
    if not timelines:
        raise ValueError(explain("There is no timeline to merge"))
    ordered = sorted(timelines, key=lambda one: not one.ours)
    zero = min(one.began for one in ordered)  # Perfetto leaves out what was before time 0
    return [moved for number, one in enumerate(ordered) for moved in _moved(one, one.began - zero, number)]


def _moved(timeline: Timeline, later: float, number: int) -> Iterator[Event]:
    """Its events, so many microseconds later, in rows that no timeline with another number has."""
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


def _horovods(path: str, events: list[Event], broken_off: bool) -> Timeline:
    starts = [event["args"][_START] for event in events if event["ph"] == "M" and _START in event.get("args", {})]
    if not starts or not _is_number(starts[0]):
        raise ValueError(
            _no_timeline(path, "it doesn't say when it began, as horovod_data's do, and those of Horovod 0.21 or later")
        )
    return Timeline(path, False, starts[0], events, broken_off)


def _events(path: str, text: str) -> Iterator[Optional[Event]]:
    """Each whole event; None behind the last one of a file that has its end."""
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
                return  # broken off here
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
    """That can be added to others."""
    return isinstance(value, (int, float)) and abs(value) < _MOST


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _no_timeline(path: str, why: str) -> str:
    return explain(
        f"{path} is no timeline: {why}",
        "Name files that HOROVOD_DATA_TIMELINE=... (or horovod-data-run --timeline-filename ...) and "
        "HOROVOD_TIMELINE=... have written",
        where="",
    )


def _write(path: str, events: Sequence[Event]) -> None:
    try:
        with open(path, "w", encoding="utf-8") as out:
            for number, event in enumerate(events):
                out.write((",\n" if number else "[\n") + json.dumps(event, separators=(",", ":")))
            out.write("\n]\n")
    except OSError as error:
        error.filename = error.filename or path
        raise


def _describe(timeline: Timeline) -> str:
    told = f"{timeline.path}: {len(timeline.events):,} events of {'horovod_data' if timeline.ours else 'Horovod'}"
    if timeline.broken_off:
        told += "; the job was killed, or runs on"
    return told + (f"; {timeline.left_out:,} were left out" if timeline.left_out else "")


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command line. Its exit status: 0, or 2 where something is wrong with files or arguments."""
    parser = argparse.ArgumentParser("python -m horovod_data.timeline", description="Puts timelines of a job into one.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    merging = commands.add_parser(
        "merge",
        help="several timelines of one job into one file",
        description=(
            "Puts horovod_data's timeline of a job and Horovod's into one file, in the time of the one that began first, for Perfetto "
            "(https://ui.perfetto.dev) or chrome://tracing. Timelines that a killed job has left are taken, too."
        ),
    )
    merging.add_argument(
        "files", nargs="+", metavar="FILE", help="timelines of horovod_data and of Horovod, in any order"
    )
    merging.add_argument("-o", "--output", required=True, metavar="OUT", help="the file to write")
    args = parser.parse_args(argv)
    show_any_text()
    try:
        if any(os.path.exists(args.output) and os.path.samefile(file, args.output) for file in args.files):
            raise ValueError(
                explain(f"{args.output} is one of the files to be merged", "Give -o another name", where="")
            )
        timelines = [read(file) for file in args.files]
        if not any(one.ours for one in timelines):
            raise ValueError(
                explain(
                    "None of these timelines is horovod_data's",
                    "Name the one that HOROVOD_DATA_TIMELINE=... has written, too",
                    where="",
                )
            )
        events = merge(timelines)
        _write(args.output, events)
    except OSError as error:
        print(f"horovod_data.timeline: error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"horovod_data.timeline: error: {error}", file=sys.stderr)
        return 2
    for one in timelines:
        print(_describe(one))
    print(f"{args.output}: {len(events):,} events")
    return 0


if __name__ == "__main__":
    sys.exit(main())
