# SPDX-License-Identifier: Apache-2.0
"""Where the time of a channel goes, on every process: what the C++ core has measured (csrc/channel/times.h), in seconds."""

from __future__ import annotations

import dataclasses
from typing import Any, Iterable, Mapping

_NS = 1e-9


@dataclasses.dataclass(frozen=True)
class Trainer:
    """Of one rank, over its epochs: from the first `next()` of each to its end."""

    rank: int
    host: str
    steps: int
    rows: int
    wait: float  # for batches, inside next()
    receive: float  # making tensors of them, inside next()
    step: float  # the program's own, between one next() and the next
    waits: int  # steps whose batch was not there
    queued: int  # sum over the steps: batches that were there when one was asked for
    waited_for: Mapping[int, float]  # by reader
    epochs: int = 1
    first: float = 0.0  # of `wait`: for the first batch of each epoch
    window: int = 0  # steps that may be on their way, now

    @property
    def total(self) -> float:
        """Seconds of its epochs."""
        return self.wait + self.receive + self.step

    @property
    def later_share(self) -> float:
        """The part of its time that it waits for batches that are not an epoch's first."""
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
    """Of one reader, over its epochs: from the begin of each until all ranks have what was dealt."""

    reader: int
    host: str
    trains: bool
    elements: int
    steps: int
    pipeline: float  # the user's dataset works
    deal: float  # cutting, copying, sending
    room: float  # some rank's window is full
    serve: float  # everything is dealt, and the ranks have yet to take it
    room_of: Mapping[int, float]  # by the rank that was the last to have room
    room_times_of: Mapping[int, int]
    untaken: int = 0  # of the steps (dynamic: elements) that were dealt, now: some rank has yet to take its share

    @property
    def total(self) -> float:
        """Seconds of its epochs."""
        return self.pipeline + self.deal + self.room + self.serve

    @property
    def name(self) -> str:
        return f"reader {self.reader} on {self.host}"


@dataclasses.dataclass(frozen=True)
class Channel:
    """All processes' times of one channel, by their numbers."""

    name: str
    dynamic: bool
    prefetch: int
    trainers: tuple[Trainer, ...]
    readers: tuple[Reader, ...]

    @property
    def grouped(self) -> bool:
        """Whether each reader serves the ranks of its own host (readers_per_node), and no others."""
        return len({tuple(one.waited_for) for one in self.trainers}) > 1


def _trainer(process: Mapping[str, Any], ns: Mapping[str, Any]) -> Trainer:
    return Trainer(
        process["rank"],
        process["host"],
        ns["steps"],
        ns["rows"],
        ns["wait"] * _NS,
        ns["receive"] * _NS,
        ns["step"] * _NS,
        ns["waits"],
        ns["queued"],
        {reader: spent * _NS for reader, spent in zip(process["sources"], ns["waited_for"])},
        ns["epochs"],
        ns["first"] * _NS,
        ns["window"],
    )


def _reader(process: Mapping[str, Any], ns: Mapping[str, Any]) -> Reader:
    return Reader(
        process["reader"],
        process["host"],
        process["rank"] >= 0,
        ns["elements"],
        ns["steps"],
        ns["pipeline"] * _NS,
        ns["deal"] * _NS,
        ns["room"] * _NS,
        ns["serve"] * _NS,
        {rank: spent * _NS for rank, spent in zip(process["audience"], ns["room_of"])},
        dict(zip(process["audience"], ns["room_times_of"])),
        ns["untaken"],
    )


def channels(processes: Iterable[Mapping[str, Any]]) -> list[Channel]:
    """The channels that have delivered something, of what core.all_times() says."""
    processes = list(processes)
    names = dict.fromkeys(name for process in processes for name in process["channels"])
    found = []
    for name in names:
        having = [(process, process["channels"][name]) for process in processes if name in process["channels"]]
        trainers = [_trainer(process, one["trainer"]) for process, one in having if "trainer" in one]
        readers = [_reader(process, one["reader"]) for process, one in having if "reader" in one]
        options = having[0][1]["options"]
        if any(one.steps for one in trainers):
            found.append(
                Channel(
                    name,
                    options["schedule"] == 1,
                    options["prefetch"] or max(one.window for one in trainers),
                    tuple(sorted(trainers, key=lambda one: one.rank)),
                    tuple(sorted(readers, key=lambda one: one.reader)),
                )
            )
    return found


def since(processes: Iterable[Mapping[str, Any]], before: Mapping[Any, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What has come since `before`, which has earlier words of the same processes by who(). One that has begun anew since,
    by stats(reset=True), counts from there."""
    return [_since(process, before.get(who(process), {"channels": {}})) for process in processes]


def who(process: Mapping[str, Any]) -> tuple[int, int]:
    """Which process of the job said that: its numbers among trainers and readers."""
    return process["rank"], process["reader"]


def _since(process: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    later = dict(process, channels={})
    for name, channel in process["channels"].items():
        earlier = before["channels"].get(name, {})
        if earlier and earlier["options"]["number"] != channel["options"]["number"]:  # a new channel of that name
            earlier = {}
        later["channels"][name] = {"options": channel["options"]} | {
            role: _less(channel[role], earlier.get(role, {})) for role in ("trainer", "reader") if role in channel
        }
    return later


_OF_NOW = ("untaken", "window")  # no sums


def _less(now: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
    less = {
        key: value
        if key in _OF_NOW
        else [a - b for a, b in zip(value, then.get(key, [0] * len(value)))]
        if isinstance(value, list)
        else value - then.get(key, 0)
        for key, value in now.items()
    }
    begun_anew = any(min(value, default=0) < 0 if isinstance(value, list) else value < 0 for value in less.values())
    return dict(now) if begun_anew else less


def numbers(process: Mapping[str, Any]) -> dict[str, int]:
    """Of one process, by channel: which channel of that name it is, as each has a number of its own."""
    return {name: one["options"]["number"] for name, one in process["channels"].items()}


def trainers(process: Mapping[str, Any]) -> dict[str, Trainer]:
    """Of one process, by channel."""
    return {name: _trainer(process, one["trainer"]) for name, one in process["channels"].items() if "trainer" in one}


def readers(process: Mapping[str, Any]) -> dict[str, Reader]:
    """Of one process, by channel."""
    return {name: _reader(process, one["reader"]) for name, one in process["channels"].items() if "reader" in one}


def flat(process: Mapping[str, Any]) -> dict[str, float]:
    """Those of one process as stats() names them: `train/wait_seconds`. On every process the same names (but for
    old channels without a name of which one alone has garbage), whatever its role: those of a role that it has not are 0."""
    named: dict[str, float] = {}
    of_trainers, of_readers = trainers(process), readers(process)
    for name in process["channels"]:
        one, other = of_trainers.get(name), of_readers.get(name)
        named |= {
            f"{name}/wait_seconds": one.wait if one else 0.0,
            f"{name}/receive_seconds": one.receive if one else 0.0,
            f"{name}/step_seconds": one.step if one else 0.0,
            f"{name}/waits": one.waits if one else 0,
            f"{name}/window": one.window if one else 0,
            f"{name}/queue": one.queued / one.steps if one and one.steps else 0.0,
            f"{name}/pipeline_seconds": other.pipeline if other else 0.0,
            f"{name}/deal_seconds": other.deal if other else 0.0,
            f"{name}/room_seconds": other.room if other else 0.0,
            f"{name}/serve_seconds": other.serve if other else 0.0,
            f"{name}/untaken": other.untaken if other else 0,
        }
        room, times = (other.room_of, other.room_times_of) if other else ({}, {})
        for rank in range(process["ranks"]):
            named[f"{name}/room_seconds/{rank}"], named[f"{name}/room_waits/{rank}"] = (
                room.get(rank, 0.0),
                times.get(rank, 0),
            )
    return named
