# SPDX-License-Identifier: Apache-2.0
"""The first exchange between all processes of a job, in init().

They compare versions, settings, and what Horovod counts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import threading
import time
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

from .._version import __version__
from ..errors import explained, place, placed, say, start_thread
from . import launch_checks
from .layout import Layout
from .settings import Settings

# A wait in slices lets signal handlers run between two slices, for example for Ctrl-C.
_SLICE_SECONDS = 0.1
_LOOK_SECONDS = 0.5  # between two looks at the clock
_GRACE_SECONDS = 0.5


@dataclasses.dataclass(frozen=True)
class Introduction:
    """The message that every process sends to all processes."""

    host: str
    version: str
    readers: int
    readers_per_node: Optional[int]
    embedded: bool
    payload: str
    timeline: str
    audit: bool
    horovod: bool  # Horovod can be imported
    horovod_rank: Optional[int]  # None: Horovod has not been initialised
    horovod_size: Optional[int]

    @classmethod
    def of(cls, host: str, settings: Settings, horovod: bool, horovod_here: Optional[tuple[int, int]]) -> Introduction:
        """The introduction of this process. `horovod_here`: hvd.rank() and hvd.size() if they are known."""
        rank, size = horovod_here or (None, None)
        return cls(
            host,
            __version__,
            settings.readers,
            settings.readers_per_node,
            settings.embedded,
            settings.payload,
            settings.timeline,
            settings.audit,
            horovod,
            rank,
            size,
        )


def meet(
    mine: Introduction,
    rank: int,
    size: int,
    exchange: Callable[[bytes], list[bytes]],
    settings: Settings,
    between: Callable[[], object] = lambda: None,
) -> list[Introduction]:
    """The introductions of all ranks, in rank order. Collective.

    Args:
      exchange: the collective. It takes this rank's bytes, and returns the bytes of all ranks. It blocks until all
        ranks have called it.
      between: called now and then during the wait. If it raises, the wait ends. A second call of meet() continues the
        exchange.

    Raises:
      RuntimeError: the ranks disagree. The text has both sides' values and is the same on all ranks.
      TimeoutError: a rank did not call it in time.
    """
    encoded = _in_time(
        json.dumps(dataclasses.asdict(mine)).encode(), exchange, place(rank, mine.host), size, settings, between
    )
    said = [json.loads(one) for one in encoded]
    for field, name in (
        ("version", "the version of horovod_data"),  # first, because another version may have other fields
        ("readers", "readers"),
        ("readers_per_node", "readers_per_node"),
        ("embedded", "embedded"),
        ("payload", "HOROVOD_DATA_PAYLOAD"),
        ("timeline", "HOROVOD_DATA_TIMELINE"),
        ("audit", "HOROVOD_DATA_AUDIT"),
    ):
        values = [one.get(field) for one in said]
        if len(set(values)) > 1:
            raise explained(
                RuntimeError,
                f"The ranks disagree about {name}: {by_value(values, [one['host'] for one in said])}",
                "Install the same version on all hosts"
                if field == "version"
                else "Call horovod_data.init() with the same arguments on all ranks, and set HOROVOD_DATA_* alike",
                place(rank, mine.host),
            )
    return [Introduction(**one) for one in said]


def check_horovod(everybody: Sequence[Introduction], layout: Layout, where: str) -> None:
    """Checks that all trainers have Horovod, or none. If Horovod was initialised, checks that it counts the trainers
    alone.

    Raises:
      RuntimeError: a check failed. Every rank raises it.
    """
    hosts = [one.host for one in everybody]
    trainers = layout.trainers
    states = [
        "not installed" if not one.horovod else "not initialised" if one.horovod_rank is None else "initialised"
        for one in everybody
    ]
    if len({states[rank] for rank in trainers}) > 1:
        raise explained(
            RuntimeError,
            f"The ranks disagree about Horovod: {by_value(states, hosts)}",
            "Install it on all hosts, and call horovod_data.init() instead of hvd.init()",
            where,
        )
    counted = [rank for rank, one in enumerate(everybody) if one.horovod_rank is not None]
    for rank in counted:
        if layout.trainer_index[rank] < 0:
            raise explained(
                RuntimeError,
                f"{layout.name(rank, hosts[rank])} is a dedicated reader, but Horovod counts it: hvd.init() was called first",
                "Call horovod_data.init() instead of hvd.init(): it initialises Horovod on the trainers alone",
                where,
            )
    for rank in counted:
        theirs = everybody[rank].horovod_rank, everybody[rank].horovod_size
        ours = layout.trainer_index[rank], len(trainers)
        if theirs != ours:
            raise explained(
                RuntimeError,
                f"Horovod was initialised for other processes: on {layout.name(rank, hosts[rank])} hvd.rank() is "
                f"{theirs[0]} of {theirs[1]}, but it is trainer {ours[0]} of {ours[1]}",
                "Call horovod_data.init() instead of hvd.init(), or give init(comm=...) the communicator that Horovod "
                "has",
                where,
            )


def by_value(values: Sequence[Any], hosts: Sequence[str]) -> str:
    """Says which ranks have which value: `0 on ranks 0, 2 (host a, b); 1 on rank 1 (host a)`."""
    parts = []
    for value in dict.fromkeys(values):
        ranks = [rank for rank, other in enumerate(values) if other == value]
        shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
        places = list(dict.fromkeys(hosts[rank] for rank in ranks))
        parts.append(
            f"{value} on rank{'' if len(ranks) == 1 else 's'} {shown} "
            f"(host {', '.join(places[:4])}{', ...' if len(places) > 4 else ''})"
        )
    return "; ".join(parts)


def watched(environ: Mapping[str, str], settings: Settings) -> contextlib.AbstractContextManager[None]:
    """Watches MPI_Init, which can't be interrupted, and which waits without limit for a process that never calls it.

    Logs the stall line. At the time limit it ends this process with an error, and the job with it.
    """
    launcher = launch_checks.find_launcher(environ)
    if launcher is None:
        return contextlib.nullcontext()
    return _ends_at(_Wait(launch_checks.place_before_mpi(environ), launcher.size, settings))


def watched_start(where: str, size: int, settings: Settings) -> contextlib.AbstractContextManager[None]:
    """The same as watched(), for the part of init() after its `size` processes have met."""
    return _ends_at(_Wait(where, size, settings, met=True))


@contextlib.contextmanager
def _ends_at(wait: _Wait) -> Iterator[None]:
    """Watches a wait on a thread, and ends this process when the wait becomes an error."""
    if wait.size == 1:
        yield
        return
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

    start_thread(threading.Thread(target=watch, name="horovod_data init watch", daemon=True), wait.where)
    try:
        yield
    finally:
        over.set()


class _Exchange:
    """A collective on its own thread, because it can't be interrupted. It continues after an interrupt of init()."""

    under_way: Optional[_Exchange] = None

    def __init__(self, mine: bytes, exchange: Callable[[bytes], list[bytes]], where: str, size: int) -> None:
        self.of = mine, where, size
        self._mine = mine
        self.results: list[list[bytes]] = []
        self.failures: list[BaseException] = []
        self.done = threading.Event()  # after an interrupted join(), is_alive() may be False although the thread runs
        self._exchange = exchange
        self._thread = threading.Thread(target=self._run, name="horovod_data init", daemon=True)

    def begin(self) -> None:
        """Starts the thread, unless it has been started."""
        if self._thread.ident is None and not self.done.is_set():
            start_thread(self._thread, self.of[1])

    def _run(self) -> None:
        try:
            self.results.append(self._exchange(self._mine))
        except BaseException as error:
            self.failures.append(error)
        self.done.set()


def _in_time(
    mine: bytes,
    exchange: Callable[[bytes], list[bytes]],
    where: str,
    size: int,
    settings: Settings,
    between: Callable[[], object],
) -> list[bytes]:
    """Waits for a collective that can't be interrupted. Logs the stall line, and ends at the time limit."""
    wait = _Wait(where, size, settings)
    under_way = _Exchange.under_way or _Exchange(mine, exchange, where, size)
    if under_way.of != (mine, where, size):
        raise explained(
            RuntimeError,
            "init() was interrupted while it waited for the others, and is called again with other arguments or "
            "another environment, or for another communicator: what was said of this rank stays said",
            "Call it as before",
            where,
        )
    _Exchange.under_way = under_way  # before begin(), because Ctrl-C may interrupt begin()
    under_way.begin()
    while not under_way.done.wait(_SLICE_SECONDS):
        wait.look()
        between()
    _Exchange.under_way = None
    if under_way.failures:
        raise under_way.failures[0]
    return under_way.results[0]


def under_way() -> bool:
    """Says whether init() was interrupted in a collective, which goes on."""
    return _Exchange.under_way is not None


class _Wait:
    """A wait for all processes: when to log it, and when it becomes an error."""

    def __init__(self, where: str, size: int, settings: Settings, met: bool = False) -> None:
        self.where, self.size = where, size
        self._settings, self._met = settings, met
        self._missing = (
            f"not all of the {size} processes have {'come through' if met else 'called'} horovod_data.init()"
        )
        self._began = time.monotonic()
        self._reported = False

    def look(self) -> None:
        """Logs the stall line, once. Raises TimeoutError at the limit."""
        waited = time.monotonic() - self._began
        if waited > self._settings.stall_seconds and not self._reported:
            self._reported = True
            say(placed(self.where, f"waiting in init() for {waited:.0f} s: {self._missing}"))
        if self._settings.timeout_seconds and waited > self._settings.timeout_seconds:
            raise explained(
                TimeoutError,
                f"After {waited:.0f} s {self._missing}",
                "Look at what the others wait for" if self._met else "Call it on every rank",
                self.where,
            )
