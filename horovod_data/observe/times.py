# SPDX-License-Identifier: Apache-2.0
"""The measured times of a channel on every process, in seconds. The C++ core measures them (csrc/channel/times.h)."""

from __future__ import annotations

import dataclasses
from typing import Any, Iterable, Mapping, Optional, Sequence

from ..native import bindings

_NS = 1e-9

# The fields of each line, in the order of csrc/engine/engine_times.cc, which documents them. Times are nanoseconds.
_OPTIONS = ("batch", "schedule", "prefetch", "number")
_TALLY = ("epoch", "rows", "steps", "dropped")
_TRAINER = ("wait", "receive", "step", "steps", "rows", "waits", "queued", "epochs", "window", "first")
_READER = ("pipeline", "deal", "room", "serve", "elements", "steps", "untaken")
_CACHE = ("bytes", "limit", "units", "steps", "elements", "loaded", "freed")
_TIMES = ("wait", "receive", "step", "first", "pipeline", "deal", "room", "serve")
# Fields that do not grow: they say what something is, or they are values of this moment.
_KEPT = ("rank", "host", "reader", "trains", "untaken", "window")

# The values that stats() has for each channel on every process.
_NAMES = {
    "trainer": ("wait", "receive", "step", "waits", "window"),
    "reader": ("pipeline", "deal", "room", "serve", "untaken"),
}

_CACHE_NAMES = ("bytes", "limit", "units", "loaded")  # with cache="job"

# What read() makes of the lines of one process. For each of its channels it has the options, the tally, and a Trainer
# or a Reader or both.
Process = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Cache:
    """What the hosts keep of a channel with cache="job"."""

    bytes: int  # on all hosts
    limit: int  # bytes of memory that the hosts may take; the rest is in files
    units: int  # loaded rows (batch="per_rank": elements) of the whole job
    steps: int  # loaded elements
    elements: int  # of the pipeline; -2: unknown
    loaded: bool  # all rows are loaded
    failed: bool = False  # the load has failed on some host
    freed: int = 0  # bytes that hosts kept until the channel ended, or until a failed load was dropped

    @property
    def loading(self) -> str:
        """How far the load is: "loading: 34 %". Empty if it has not begun, or is over."""
        if self.loaded or self.failed or not self.steps:
            return ""
        if self.elements <= 0:
            return f"loading: {self.units:,} rows"
        return f"loading: {min(99, 100 * self.steps // self.elements)} %"


@dataclasses.dataclass(frozen=True)
class Trainer:
    """The times of one rank over its epochs. An epoch lasts from its first `next()` to its end. Seconds."""

    rank: int
    host: str
    steps: int
    rows: int
    wait: float  # waiting for batches, inside next()
    receive: float  # making tensors of batches, inside next()
    step: float  # the program's own work, between two calls of next()
    waits: int  # steps whose batch had not arrived
    queued: int  # sum over the steps: batches that had arrived when the program asked for one
    waited_for: Mapping[int, float]  # the part of `wait` for each reader
    epochs: int = 1
    first: float = 0.0  # the part of `wait` for the first batch of each epoch
    window: int = 0  # steps that may be on their way, now

    @property
    def total(self) -> float:
        return self.wait + self.receive + self.step

    @property
    def later_share(self) -> float:
        """The part of its time that it waits for batches, without the first batch of each epoch."""
        return max(0.0, self.wait - self.first) / (self.total - self.first) if self.total > self.first else 0.0

    @property
    def wait_share(self) -> float:
        return self.wait / self.total if self.total else 0.0

    @property
    def seconds_per_step(self) -> float:
        return self.total / self.steps if self.steps else 0.0

    @property
    def name(self) -> str:
        return f"rank {self.rank} on {self.host}"


@dataclasses.dataclass(frozen=True)
class Reader:
    """The times of one reader over its epochs.

    An epoch lasts from its begin until all ranks have taken what was dealt. Seconds.
    """

    reader: int
    host: str
    trains: bool
    elements: int
    steps: int
    pipeline: float  # the user's dataset works
    deal: float  # cutting, copying, sending
    room: float  # the window of some rank is full
    serve: float  # everything is dealt, and not all ranks have taken it
    room_of: Mapping[int, float]  # the part of `room` for each rank whose credit ended the wait
    room_times_of: Mapping[int, int]
    untaken: int = 0  # steps (dynamic: elements) that are dealt and not yet taken by all ranks, now

    @property
    def total(self) -> float:
        return self.pipeline + self.deal + self.room + self.serve

    @property
    def name(self) -> str:
        return f"reader {self.reader} on {self.host}" if self.reader >= 0 else f"keeper on {self.host}"


@dataclasses.dataclass(frozen=True)
class Channel:
    """The times of one channel on all processes, in the order of their numbers."""

    name: str
    dynamic: bool
    trainers: tuple[Trainer, ...]
    readers: tuple[Reader, ...]
    cache: Optional[Cache] = None

    @property
    def grouped(self) -> bool:
        """Says whether each reader serves only the ranks of its own host (readers_per_node)."""
        return len({tuple(one.waited_for) for one in self.trainers}) > 1


def own(reset: bool = False) -> dict[str, Any]:
    """The times of this process. {} before init(). `reset`: the times start again from 0."""
    processes = read(bindings.own_times(reset))
    return processes[0] if processes else {}


def of_all(seconds: float) -> list[dict[str, Any]]:
    """The times of every process that answers within `seconds`. This process comes first."""
    return read(bindings.all_times(seconds))


def read(text: str) -> list[dict[str, Any]]:
    """The times of processes, from the text of the C++ core (csrc/engine/engine_times.cc)."""
    processes: list[dict[str, Any]] = []
    channel: dict[str, Any] = {}
    for line in text.splitlines():
        kind, *words = line.split(" ")
        if kind in ("process", "channel"):
            name = bytes.fromhex(words.pop(3 if kind == "process" else 0)).decode(errors="replace")
        numbers = [int(word) for word in words]
        if kind == "process":
            processes.append({**dict(zip(("rank", "reader", "ranks"), numbers)), "host": name, "channels": {}})
        elif kind == "channel":
            tally = numbers[len(_OPTIONS) :]
            channel = {"options": dict(zip(_OPTIONS, numbers)), "tally": dict(zip(_TALLY, tally))}
            processes[-1]["channels"][name] = channel
        elif kind == "trainer":
            channel[kind] = _trainer(processes[-1], numbers)
        elif kind == "reader":
            channel[kind] = _reader(processes[-1], numbers)
        elif kind == "cache":
            channel[kind] = dict(zip(_CACHE, numbers))
        else:  # "sources", "serves"
            processes[-1][kind] = numbers
    return processes


def _values(names: Sequence[str], numbers: Sequence[int]) -> dict[str, Any]:
    return {name: number * _NS if name in _TIMES else number for name, number in zip(names, numbers)}


def _trainer(process: Process, numbers: Sequence[int]) -> Trainer:
    waited_for = {reader: ns * _NS for reader, ns in zip(process["sources"], numbers[len(_TRAINER) :])}
    return Trainer(process["rank"], process["host"], **_values(_TRAINER, numbers), waited_for=waited_for)


def _reader(process: Process, numbers: Sequence[int]) -> Reader:
    serves, of = process["serves"], numbers[len(_READER) :]
    room_of = {rank: ns * _NS for rank, ns in zip(serves, of)}
    values = {**_values(_READER, numbers), "room_of": room_of, "room_times_of": dict(zip(serves, of[len(serves) :]))}
    return Reader(process["reader"], process["host"], process["rank"] >= 0, **values)


def trainers(process: Process) -> dict[str, Trainer]:
    """The times of one process as a rank, by channel."""
    return {name: one["trainer"] for name, one in process["channels"].items() if "trainer" in one}


def readers(process: Process) -> dict[str, Reader]:
    """The times of one process as a reader, by channel."""
    return {name: one["reader"] for name, one in process["channels"].items() if "reader" in one}


def channels(processes: Iterable[Process]) -> list[Channel]:
    """The channels that have delivered something, with the times of all these processes."""
    processes = list(processes)
    options: dict[str, Mapping[str, int]] = {}
    for process in processes:
        for name, channel in process["channels"].items():
            options.setdefault(name, channel["options"])
    as_trainers, as_readers = list(map(trainers, processes)), list(map(readers, processes))
    made = []
    for name, option in options.items():
        ranks = sorted((one[name] for one in as_trainers if name in one), key=lambda one: one.rank)
        reading = sorted((one[name] for one in as_readers if name in one), key=lambda one: one.reader)
        if any(one.steps for one in ranks):
            cache = cache_of([one["channels"].get(name, {}) for one in processes])
            if cache is not None:
                reading = [dataclasses.replace(one, reader=-1) for one in reading]
            made.append(Channel(name, option["schedule"] == 1, tuple(ranks), tuple(reading), cache))
    return made


def cache_of(of_processes: Sequence[Mapping[str, Any]]) -> Optional[Cache]:
    """What the hosts keep, from a channel's times on all processes. None: it has no cache."""
    caches = [one["cache"] for one in of_processes if "cache" in one]
    if not caches:
        return None
    total = {what: sum(one[what] for one in caches) for what in ("bytes", "freed", "limit")}
    most = max(caches, key=lambda one: (one["steps"], one["loaded"]))
    failed = any(one["loaded"] < 0 for one in caches)
    known = {what: most[what] for what in ("units", "steps", "elements")}
    return Cache(**total, **known, loaded=most["loaded"] == 1 and not failed, failed=failed)


def who(process: Process) -> tuple[int, int]:
    """Identifies a process of the job by its numbers among trainers and readers."""
    return process["rank"], process["reader"]


def since(processes: Iterable[Process], before: Mapping[Any, Process]) -> list[dict[str, Any]]:
    """The growth of each process's times since `before`, which has earlier times of the same processes, by who().

    The times of a process that were reset since then (stats(reset=True)) count from the reset.
    """
    return [_since(process, before.get(who(process), {"channels": {}})) for process in processes]


def _since(process: Process, before: Process) -> dict[str, Any]:
    later: dict[str, Any] = {}
    for name, channel in process["channels"].items():
        earlier = before["channels"].get(name, {})
        if earlier and earlier["options"]["number"] != channel["options"]["number"]:  # a new channel of the same name
            earlier = {}
        roles = {role: _grown(channel[role], earlier.get(role)) for role in _NAMES if role in channel}
        kept = {"cache": channel["cache"]} if "cache" in channel else {}
        later[name] = {"options": channel["options"], **roles, **kept}
    return {**process, "channels": later}


def _grown(now: Any, then: Any) -> Any:
    """The growth of a Trainer or Reader since `then`, which may be None."""
    grown: dict[str, Any] = {}
    for name, value in vars(now).items() if then is not None else ():
        before = getattr(then, name)
        if isinstance(value, Mapping):
            grown[name] = {key: one - before.get(key, 0) for key, one in value.items()}
        elif name not in _KEPT:
            grown[name] = value - before
    was_reset = any(min(one.values(), default=0) < 0 if isinstance(one, dict) else one < 0 for one in grown.values())
    return now if was_reset else dataclasses.replace(now, **grown)


def flat(process: Process) -> dict[str, float]:
    """The numbers of one process with the names of stats(): `train/wait_seconds`.

    Names are the same on every process, but a process may have forgotten old channels without names. Values of a role
    that the process does not have are 0.
    """
    named: dict[str, float] = {}
    for name, channel in process.get("channels", {}).items():
        named |= {f"{name}/{what}": number for what, number in channel.get("tally", {}).items()}
        for role, values in _NAMES.items():
            for value in values:
                unit, none = ("_seconds", 0.0) if value in _TIMES else ("", 0)
                named[f"{name}/{value}{unit}"] = getattr(channel.get(role), value, none)
        cache = channel.get("cache", {})
        named |= {f"{name}/cache_{what}": cache[what] for what in _CACHE_NAMES if cache}
        trainer, reader = channel.get("trainer"), channel.get("reader")
        named[f"{name}/queue"] = trainer.queued / trainer.steps if trainer and trainer.steps else 0.0
        for rank in range(process["ranks"]):
            named[f"{name}/room_seconds/{rank}"] = reader.room_of.get(rank, 0.0) if reader else 0.0
            named[f"{name}/room_waits/{rank}"] = reader.room_times_of.get(rank, 0) if reader else 0
    return named
