# SPDX-License-Identifier: Apache-2.0
"""The worlds of a test and its time limit: the marks ranks, readers, per_node, ways, alone and limit."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from ranks.slowness import slowness

SIZES = (1, 2, 3, 4)


@dataclass(frozen=True, order=True)
class World:
    """`np` trainers and `readers` dedicated readers: np + readers processes. `way` is how batches travel.

    `per_node` is "dedicated" or "embedded" if each of two hosts has a reader.
    """

    np: int
    readers: int = 0
    way: str = "auto"
    per_node: str = ""

    @property
    def processes(self) -> int:
        return self.np + self.readers

    def __str__(self) -> str:
        readers = f"{self.per_node} per node" if self.per_node else f"readers={self.readers}" if self.readers else ""
        return ",".join([f"np={self.np}"] + [part for part in (readers, self.way) if part not in ("", "auto")])

    @property
    def environment(self) -> dict[str, str | None]:
        """All batches are verified, unless a test asks for something else or the caller sets HOROVOD_DATA_VERIFY=0."""
        return {"HOROVOD_DATA_VERIFY": os.environ.get("HOROVOD_DATA_VERIFY") or "1", **self._ways}

    @property
    def _ways(self) -> dict[str, str | None]:
        if self.per_node:
            return {
                "HVDATA_TEST_HOSTS": "2",
                "HOROVOD_DATA_READERS": None,
                "HOROVOD_DATA_READERS_PER_NODE": "1",
                "HOROVOD_DATA_EMBEDDED": "1" if self.per_node == "embedded" else None,
            }
        if self.way == "two hosts":
            return {"HVDATA_TEST_HOSTS": "2"}
        return {"HOROVOD_DATA_PAYLOAD": self.way} if self.way != "auto" else {}


# Root may give a process a host name of its own.
CAN_NAME_HOSTS = os.geteuid() == 0 and subprocess.run(["unshare", "--uts", "true"], capture_output=True).returncode == 0


def is_ranked(path: Path) -> bool:
    return path.parent.name == "mpi"


def world_of(item: pytest.Item) -> World:
    callspec = getattr(item, "callspec", None)
    world = callspec.params.get("world") if callspec and is_ranked(item.path) else None
    return world if isinstance(world, World) else World(0)


def ways_of(config: pytest.Config, size: int) -> tuple[str, ...]:
    """How batches travel between `size` ranks, by the ini option "ways": lines such as "2: arena, message"."""
    lines = [line.partition(":") for line in config.getini("ways")]
    return next((tuple(way.strip() for way in ways.split(",")) for np, _, ways in lines if int(np) == size), ("auto",))


def worlds_of(metafunc: pytest.Metafunc, only: Sequence[int] = (), all_ways: Sequence[str] = ()) -> list[World]:
    def wanted(marker: str, default: tuple[int, ...]) -> tuple[int, ...]:
        mark = metafunc.definition.get_closest_marker(marker)
        return mark.args if mark else default

    sizes = [size for size in wanted("ranks", SIZES) if not only or size in only]
    alone = metafunc.definition.get_closest_marker("alone")

    def ways(size: int) -> tuple[str, ...]:
        if alone and "HOROVOD_DATA_PAYLOAD" in alone.kwargs:
            return ("auto",)
        listed = all_ways or ways_of(metafunc.config, size)
        mark = metafunc.definition.get_closest_marker("ways")
        asked = tuple(way for way in listed if not mark or way in mark.args) or (mark.args[:1] if mark else ("auto",))
        return tuple(way for way in asked if way != "two hosts" or CAN_NAME_HOSTS) or ("auto",)

    # Sizes take the layouts in turn. So every size and every layout occurs, but not every combination.
    if per_node := metafunc.definition.get_closest_marker("per_node"):
        turns = zip(sizes, itertools.cycle(per_node.args)) if CAN_NAME_HOSTS else ()
        return [World(size, 2 if part == "dedicated" else 0, "two hosts", part) for size, part in turns]
    turns = zip(sizes, itertools.cycle(wanted("readers", (0,))))
    return [World(size, readers, way) for size, readers in turns for way in ways(size)]


def parametrize(metafunc: pytest.Metafunc, worlds: Sequence[World]) -> None:
    """Makes test_x[np=1] and so on from test_x. Tests may take the World as the argument `world`."""
    if "world" not in metafunc.fixturenames:
        metafunc.fixturenames.append("world")
    metafunc.parametrize("world", worlds, ids=str)


def limit_of(item: pytest.Item) -> float:
    """Seconds. HVDATA_TEST_LIMIT replaces the default of 60 and is the least limit of every test.

    The result is twice that, because another worker's tests run beside this one.
    """
    override = float(os.environ.get("HVDATA_TEST_LIMIT") or 0)
    mark = item.get_closest_marker("limit")
    return round(2 * slowness() * (max(float(mark.args[0]), override) if mark else override or 60.0), 1)


def environment_of(item: pytest.Item) -> tuple[tuple[str, str], ...] | None:
    """The environment of a test with a job of its own; None for other tests."""
    mark = item.get_closest_marker("alone")
    return tuple(sorted(mark.kwargs.items())) if mark else None
