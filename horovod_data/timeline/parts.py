# SPDX-License-Identifier: Apache-2.0
"""The parts of a job's timeline. Each process writes one part, whose format is in csrc/timeline/file.h.

When the job ends, reader 0 makes one JSON file of all parts. For a killed job, `python -m horovod_data.timeline merge`
makes it.
"""

from __future__ import annotations

import glob
import json
import os
import socket
import struct
import time
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

from ..errors import explain, say

FORMAT = 1  # of the JSON file
START = "start_time_since_epoch_in_micros"
_PART_FORMAT = "1"
_BLOCK, _CLOCK, _LOST = struct.Struct("<4sI"), struct.Struct("<5q"), struct.Struct("<Qq")
_EVENT, _COUNT = struct.Struct("<qqQQIi14s??"), struct.Struct("<Q")
_END = _BLOCK.pack(b"ENDS", 8)
_KINDS = (b"HEAD", b"CLCK", b"CHAN", b"EVNT", b"LOST", b"ENDS")
_LINES_OF_A_ROW = 1000  # thread numbers of a process; Perfetto wants each number only once in the file
_PATIENCE_SECONDS = 5.0  # how long to wait for other readers to end their parts

Event = dict[str, Any]

_path = ""  # of the JSON file, on reader 0


class Clock(NamedTuple):
    """Reader 0's clock showed `there` when this process's clock showed `here`, in ns.

    The error is at most half of `round_trip`. Two clocks drift apart by less than 0.1 ms in a second, mostly by far
    less.
    """

    here: int
    there: int
    round_trip: int
    zero: int  # the timeline's time 0 by reader 0's clock: it identifies the job
    wall: int  # microseconds since 1970 by this host's clock


class Part:
    """The file of one process. Raises OSError, or ValueError if the file is not a part of a timeline."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.ended = False
        self.left_out = 0
        self.clock: Optional[Clock] = None  # the quickest answer; None: killed before reader 0 answered
        head: list[str] = []
        for kind, payload in _blocks(path):
            if kind == b"HEAD":
                head = payload.decode(errors="replace").split(" ", 5)
            elif kind == b"CLCK" and len(payload) == _CLOCK.size:
                clock = Clock(*_CLOCK.unpack(payload))
                if self.clock is None or clock.round_trip < self.clock.round_trip:
                    self.clock = clock
            elif kind == b"LOST" and len(payload) == _LOST.size:
                self.left_out += _LOST.unpack(payload)[0]
            elif kind == b"ENDS" and len(payload) == _COUNT.size:
                self.ended = True
                self.left_out = _COUNT.unpack(payload)[0]  # also counts events for whose LOST line there was no room
        if len(head) < 6 or head[0] != _PART_FORMAT:
            raise ValueError(f"it begins with {' '.join(head)[:60]!r}, unlike all parts of this version")
        self.rank, self.reader, self.ranks, self.readers = map(int, head[1:5])
        self.row = self.rank if self.rank >= 0 else self.ranks + self.reader
        self.name = f"rank {self.rank} on {head[5]}" if self.rank >= 0 else f"reader {self.reader} on {head[5]}"
        if self.rank >= 0 and self.reader >= 0:
            self.name += f", reader {self.reader}"

    def events(self) -> Iterator[Event]:
        """The events of this part, in times of reader 0's clock."""
        line = _line(self.row, 0, False)
        yield _meta("process_name", self.row, line, {"name": self.name})
        yield _meta("process_sort_index", self.row, line, {"sort_index": self.row})
        if self.clock is None:
            return
        clock = {
            START: self.clock.wall - (self.clock.there - self.clock.zero) // 1000,
            "offset_in_micros": (self.clock.there - self.clock.here) / 1000,
            "round_trip_in_micros": self.clock.round_trip / 1000,
        }
        yield _meta("horovod_data clock", self.row, line, clock)
        channels: dict[int, str] = {}  # by number: the channel's name
        named: set[int] = set()  # the lines that have a name
        for kind, payload in _blocks(self.path):
            if kind == b"CHAN":
                channels[int.from_bytes(payload[:4], "little")] = payload[4:].decode(errors="replace")
            elif kind == b"LOST" and len(payload) == _LOST.size:
                count, now = _LOST.unpack(payload)
                lost = {"ph": "i", "s": "p", "name": f"{count} events left out", "cat": "left out", "pid": self.row}
                yield {**lost, "tid": line, "ts": self._micros(now), "args": {"left_out": count}}
            elif kind == b"EVNT":
                # the process may have been killed while it wrote an event
                whole = len(payload) // _EVENT.size * _EVENT.size
                for begin, end, epoch, step, channel, whom, name, reads, moment in _EVENT.iter_unpack(payload[:whole]):
                    row, whose = _line(self.row, channel, reads), channels.get(channel, "")
                    role = "reader" if reads else "trainer"
                    if row not in named:
                        named.add(row)
                        yield _meta("thread_name", self.row, row, {"name": f"{whose} ({role})"})
                        yield _meta("thread_sort_index", self.row, row, {"sort_index": row})
                    args = {"channel": whose, **({"reader": self.reader} if reads and self.reader >= 0 else {})}
                    if whom >= 0:
                        args["rank" if reads else "reader"] = whom
                    ts = self._micros(begin)
                    yield {
                        **({"ph": "i", "s": "t"} if moment else {"ph": "X", "dur": round(self._micros(end) - ts, 3)}),
                        "name": name.rstrip(b"\0").decode(errors="replace"),
                        "cat": role,
                        "pid": self.row,
                        "tid": row,
                        "ts": ts,
                        "args": {**args, "epoch": epoch, "step": step},
                    }

    def _micros(self, here: int) -> float:
        assert self.clock is not None
        return round((here - self.clock.here + self.clock.there - self.clock.zero) / 1000, 3)


def is_part(path: str) -> bool:
    """Says whether a file is a part; otherwise it is a JSON file. Raises OSError."""
    with open(path, "rb") as file:
        return file.read(4) == b"HEAD"


def events_of(parts: Sequence[Part], attempt: int = 1) -> Iterator[Event]:
    """The events of a job, made from its parts. `attempt`: the number of this start of the job. 1 is not shown."""
    ordered = sorted(parts, key=lambda one: one.row)
    first = next((one for one in ordered if one.reader == 0), ordered[0])
    line = _line(first.row, 0, False)
    head = {"timeline": FORMAT, "ranks": first.ranks, "readers": first.readers}
    if attempt > 1:
        head["attempt"] = attempt
    yield _meta("horovod_data", first.row, line, head)
    for part in ordered:
        yield from part.events()
    if all(part.ended for part in parts):
        left_out = {"left_out": sum(part.left_out for part in parts)}
        yield _meta("horovod_data end", first.row, line, left_out)


def _blocks(path: str) -> Iterator[tuple[bytes, bytes]]:
    with open(path, "rb") as file:
        while len(head := file.read(_BLOCK.size)) == _BLOCK.size:
            kind, size = _BLOCK.unpack(head)
            if kind not in _KINDS:
                raise ValueError(f"a block of unknown kind {kind!r} ends at byte {file.tell()}")
            yield kind, file.read(size)


def _line(row: int, channel: int, reads: bool) -> int:
    return (row + 1) * _LINES_OF_A_ROW + channel % (_LINES_OF_A_ROW // 2) * 2 + reads


def _meta(name: str, row: int, line: int, args: Mapping[str, Any]) -> Event:
    return {"ph": "M", "name": name, "pid": row, "tid": line, "args": args}


# ---- On reader 0, in a job.


def part_of(path: str, trainer: int, reader: int) -> str:
    """The file of a process, beside the file of its job. csrc/timeline/timeline.cc makes the same name."""
    return f"{path}.rank{trainer}" if trainer >= 0 else f"{path}.reader{reader}"


def begin(path: str) -> None:
    """Empties the file of the job, and removes the parts of an earlier job. Raises OSError or ValueError."""
    global _path
    _path = os.path.abspath(path)
    with open(_path, "wb"):
        pass
    for kind in ("rank", "reader"):
        for old in glob.glob(f"{glob.escape(_path)}.{kind}*"):
            if old.rpartition(kind)[2].isdigit():
                os.unlink(old)


def finish(processes: Mapping[tuple[int, int], str], attempt: int = 1) -> None:
    """Merges the parts of these processes, and removes the parts.

    `processes`: the name of each process, by its trainer number and its reader number; -1: it has none.

    Parts on hosts that do not share this file system are missing. Then a log line says so, and all parts stay for a
    later merge.
    """
    files = {part_of(_path, *numbers): name for numbers, name in processes.items()}
    try:
        found = [path for path in files if os.path.exists(path)]
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not all(map(_has_ended, found)) and time.monotonic() < deadline:
            time.sleep(0.05)
        parts = [Part(path) for path in found]
        if parts:
            write(_path, events_of(parts, attempt))
    except (OSError, ValueError) as error:
        _say(f"The timeline {_path} can't be made: {error}")
        return
    missing = [name for path, name in files.items() if path not in found]
    missing += [f"the end of {files[part.path]}" for part in parts if not part.ended]
    if not missing:
        for path in found:
            os.unlink(path)
        return
    more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
    why = f"each process writes a file beside it, and not all are on {socket.gethostname()}"
    _say(f"The timeline {_path} lacks {', '.join(missing[:4])}{more}: {why}")


def _say(trouble: str) -> None:
    to_do = (
        f"Name a file on a file system that all hosts share, or copy the files {_path}.* of all hosts to one folder, "
        "and merge them: python -m horovod_data.timeline merge FILE... -o OUT"
    )
    say(explain(trouble, to_do, where=""))


def _has_ended(path: str) -> bool:
    with open(path, "rb") as file:
        file.seek(-min(16, os.path.getsize(path)), os.SEEK_END)
        return file.read().startswith(_END)


def write(path: str, events: Iterable[Event]) -> None:
    """Writes a JSON file of events, one a line. Raises OSError, which has the file's name."""
    encoder = json.JSONEncoder(separators=(",", ":"))
    try:
        with open(path, "w", encoding="utf-8") as out:
            for number, event in enumerate(events):
                out.write((",\n" if number else "[\n") + encoder.encode(event))
            out.write("\n]\n")
    except OSError as error:
        error.filename = error.filename or path
        raise
