# SPDX-License-Identifier: Apache-2.0
"""The first exchange between all processes of a job, in init().

They compare versions, settings, and Horovod's ranks and sizes.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

from .._version import __version__
from ..errors import explained, place, placed, say, start_thread
from .layout import Layout
from .settings import Settings

_LOOK_SECONDS = 0.5  # between two looks at the clock
_GRACE_SECONDS = 0.5

# The fields that must be equal on all processes, with their names in error texts. The version comes first, because
# another version may have other fields.
_ALIKE = {
    "version": "the version of horovod_data",
    "readers": "readers",
    "readers_per_node": "readers_per_node",
    "embedded": "embedded",
    "payload": "HOROVOD_DATA_PAYLOAD",
    "timeline": "HOROVOD_DATA_TIMELINE",
    "audit": "HOROVOD_DATA_AUDIT",
}

Introduction = Mapping[str, Any]  # the message that every process sends to all processes


def introduction(
    host: str, world_rank: int, settings: Settings, horovod: Optional[str], horovod_here: Optional[tuple[int, int]]
) -> dict[str, Any]:
    """Returns the introduction of this process.

    Args:
      horovod: the name of Horovod's module, or "" if it can't be imported. None: the program has imported neither
        Horovod nor TensorFlow.
      horovod_here: hvd.rank() and hvd.size(). None: Horovod is not initialised.
    """
    alike = {name: getattr(settings, name) for name in _ALIKE if name != "version"}
    of_horovod = {"horovod": horovod, "horovod_here": horovod_here}
    return {"host": host, "world_rank": world_rank, "version": __version__, **alike, **of_horovod}


def meet(mine: Introduction, rank: int, exchange: Callable[[bytes], list[bytes]]) -> list[Introduction]:
    """The introductions of all ranks, in rank order. Collective.

    `exchange` takes this rank's bytes, and returns the bytes of all ranks. It blocks until all ranks have called it.

    Raises:
      RuntimeError: the ranks disagree. The text has both sides' values and is the same on all ranks.
    """
    everybody: list[Introduction] = [json.loads(one) for one in exchange(json.dumps(mine).encode())]
    for field, name in _ALIKE.items():
        values = [one.get(field) for one in everybody]
        if len(set(values)) > 1:
            raise explained(
                RuntimeError,
                f"The ranks disagree about {name}: {by_value(values, [one['host'] for one in everybody])}",
                "Install the same version on all hosts"
                if field == "version"
                else "Call horovod_data.init() with the same arguments on all ranks, and set HOROVOD_DATA_* alike",
                place(rank, mine["host"]),
            )
    return everybody


def check_horovod(everybody: Sequence[Introduction], layout: Layout, where: str) -> None:
    """Raises RuntimeError on every rank if the trainers disagree about Horovod, or Horovod counts other processes.

    The trainers agree if none of them has Horovod, or if all have the same module, initialised on all or on none.
    """
    hosts = [one["host"] for one in everybody]
    trainers = layout.trainers
    absent = {None: "not imported", "": "not installed"}
    states = [
        absent.get(one["horovod"]) or f"{one['horovod']} {'' if one['horovod_here'] else 'not '}initialised"
        for one in everybody
    ]
    if len({"" if states[rank] in absent.values() else states[rank] for rank in trainers}) > 1:
        to_do = (
            "Install it on all hosts, import the same module before init() on all ranks that train, and call "
            "horovod_data.init() instead of hvd.init()"
        )
        raise explained(RuntimeError, f"The ranks disagree about Horovod: {by_value(states, hosts)}", to_do, where)
    counted = [rank for rank, one in enumerate(everybody) if one["horovod_here"]]
    for rank in counted:
        if layout.trainer_index[rank] < 0:
            raise explained(
                RuntimeError,
                f"{layout.name(rank, hosts[rank])} is a dedicated reader, but Horovod counts it: hvd.init() was called first",
                "Call horovod_data.init() instead of hvd.init(): it initialises Horovod on the trainers alone",
                where,
            )
    for rank in counted:
        theirs, ours = everybody[rank]["horovod_here"], [layout.trainer_index[rank], len(trainers)]
        if theirs != ours:
            raise explained(
                RuntimeError,
                f"Horovod was initialised for other processes: on {layout.name(rank, hosts[rank])} hvd.rank() is "
                f"{theirs[0]} of {theirs[1]}, but it is trainer {ours[0]} of {ours[1]}",
                "Call horovod_data.init() instead of hvd.init(), or give init(comm=...) the communicator that Horovod has",
                where,
            )


def by_value(values: Sequence[Any], hosts: Sequence[str]) -> str:
    """Says which ranks have which value: `0 on ranks 0, 2 (host a, b); 1 on rank 1 (host a)`."""
    parts = []
    for value in dict.fromkeys(values):
        ranks = [rank for rank, other in enumerate(values) if other == value]
        shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
        places = list(dict.fromkeys(hosts[rank] for rank in ranks))
        some = ", ".join(places[:4]) + ", ..." * (len(places) > 4)
        parts.append(f"{value} on rank{'s' * (len(ranks) > 1)} {shown} (host {some})")
    return "; ".join(parts)


@contextlib.contextmanager
def watched(where: str, size: int, settings: Settings, did: str = "called") -> Iterator[None]:
    """A context that waits for all `size` processes. A thread watches it, because a call of MPI can't be interrupted.

    The thread logs the stall line. At the time limit it logs an error and ends this process, which ends the job. `did`
    is the verb for init() in these texts: "not all of the 4 processes have called horovod_data.init()".
    """
    if size == 1:
        yield
        return
    wait = Wait(where, size, settings, did)
    over = threading.Event()

    def watch() -> None:
        try:
            while not over.wait(_LOOK_SECONDS):
                wait.look()
        except TimeoutError as error:
            say(str(error))
            time.sleep(_GRACE_SECONDS)  # the other ranks have the same error, and need time to print it
            if not over.is_set():
                with contextlib.suppress(Exception):  # stdout is closed, None, or an object of the program's own
                    sys.stdout.flush()
                os._exit(1)

    start_thread(threading.Thread(target=watch, name="horovod_data init watch", daemon=True), where)
    try:
        yield
    finally:
        over.set()


class Wait:
    """A wait for all processes: when to log it, and when it becomes an error."""

    def __init__(self, where: str, size: int, settings: Settings, did: str = "called") -> None:
        self._where, self._settings = where, settings
        self._missing = f"not all of the {size} processes have {did} horovod_data.init()"
        self._to_do = "Call it on every rank" if did == "called" else "Find out what the other processes wait for"
        self._began = time.monotonic()
        self._reported = False

    def look(self) -> None:
        """Logs the stall line, once. Raises TimeoutError at the limit."""
        waited = time.monotonic() - self._began
        if waited > self._settings.stall_seconds and not self._reported:
            self._reported = True
            say(placed(self._where, f"waiting in init() for {waited:.0f} s: {self._missing}"))
        if self._settings.timeout_seconds and waited > self._settings.timeout_seconds:
            raise explained(TimeoutError, f"After {waited:.0f} s {self._missing}", self._to_do, self._where)
