# SPDX-License-Identifier: Apache-2.0
"""Typed calls of the C functions in csrc/engine/c_api.cc and c_api_exchange.cc."""

from __future__ import annotations

import ctypes as c
import enum
import json
import os
import threading
from ctypes import byref, c_char_p, c_int, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, NamedTuple, NoReturn, Optional, Sequence

from ..errors import forked
from . import calls, loader


class State(enum.IntEnum):
    """The state of this process's engine, from hvdata_state()."""

    NEVER_STARTED = 0
    RUNNING = 1
    SHUT_DOWN = 2
    BROKEN = 3
    FORKED = 4


class ThreadLevel(enum.IntEnum):
    """MPI's thread levels. NONE while MPI is not initialised."""

    NONE = -1
    SINGLE = 0
    FUNNELED = 1
    SERIALIZED = 2
    MULTIPLE = 3


class MpiState(NamedTuple):
    """Says whether MPI runs, and how many threads may call it."""

    initialized: bool
    finalized: bool
    thread_level: ThreadLevel

    @property
    def usable(self) -> bool:
        """Says whether MPI has been initialised and not yet finalised."""
        return self.initialized and not self.finalized


def build_info() -> dict[str, Any]:
    """What the libraries were built with: version, build, cxx11_abi, mpi, and tensorflow (None: without it)."""
    built, mpi = calls.text("build_info").split("\n", 1)
    ops = loader.built_ops()
    return {**json.loads(built), "tensorflow": ops.tensorflow if ops else None, "mpi": mpi}


# ---- MPI, before the engine runs. `comm` is the address of an MPI_Comm; None is MPI_COMM_WORLD.


def mpi_query() -> MpiState:
    """Says whether MPI has been initialised, by this library or by another."""
    initialized, finalized, level = c_int(), c_int(), c_int()
    calls.check("mpi_query", byref(initialized), byref(finalized), byref(level))
    return MpiState(bool(initialized.value), bool(finalized.value), ThreadLevel(level.value))


# Calls MPI_Init_thread(MPI_THREAD_MULTIPLE). Collective over the launched job.
mpi_init = calls.checked("mpi_init")


def comm_info(comm: Optional[int]) -> tuple[int, int]:
    """(rank, size) in `comm`."""
    rank, size = c_int(), c_int()
    calls.check("comm_info", comm, byref(rank), byref(size))
    return rank.value, size.value


def comm_exchange(comm: Optional[int], mine: bytes) -> list[bytes]:
    """Returns the lines of all ranks, in rank order. `mine` has no newline and no NUL. Collective on `comm`. Blocks."""
    lines = c_char_p()
    calls.check("comm_exchange", comm, mine, byref(lines))
    return calls.lines(lines)


# ---- The engine.


def start(
    comm: Optional[int],
    hosts: Sequence[str],
    reader_index: Sequence[int],
    trainer_index: Sequence[int],
    group: Sequence[int],
    files: Sequence[str],
    **settings: Any,
) -> None:
    """Starts the engine: the duplicate communicator and the communication thread. Collective on `comm`.

    Args:
      hosts, reader_index, trainer_index, group: the values of each rank, as in job/layout.py.
      files: the job's timeline, and its file of certificates. Empty: there is none.
      settings: the numbers in EngineSettings in C++. With `finalize_waits`, a thread that calls MPI_Finalize waits
        there until stop() has been called.
    """
    n = len(hosts)
    calls.check(
        "start",
        comm,
        (c_int * n)(*reader_index),
        (c_int * n)(*trainer_index),
        (c_int * n)(*group),
        (c_char_p * n)(*[host.encode() for host in hosts]),
        *calls.numbers(settings),
        *[os.fsencode(os.path.abspath(file) if file else "") for file in files],
    )


def state() -> State:
    """The state of this process's engine. Never fails."""
    return State(calls.call("state"))


# Closes this trainer's lanes, so that other ranks need not wait for it.
leave_channels = calls.checked("leave_channels")
# Closes this trainer's lanes, and sends that it is done. May be repeated.
bye = calls.checked("bye")
# Ends all sources and leaves the transport. Call it after bye() and, on a reader, after wait_all_bye().
stop = calls.checked("stop")


def wait_all_bye(seconds: Optional[float] = None) -> bool:
    """Waits until every trainer has called bye(), at most for `seconds`. Returns whether all have called it."""
    if seconds is not None:
        return calls.over("wait_all_bye", seconds)
    calls.wait("wait_all_bye", calls.SLICE_MS)
    return True


def serves() -> str:
    """The names of the trainers that wait_all_bye() waits for."""
    return calls.text("serves")


def refuse_agreements(why: str) -> None:
    """From now on this process refuses agreements. Ranks that begin an agreement get the error `why`."""
    calls.check("refuse_agreements", why.encode())


def wait_left(seconds: float) -> bool:
    """After stop(): waits at most `seconds` until every process has stopped and the communication thread has ended.

    Returns whether they have.
    """
    return calls.over("wait_left", seconds)


def hush(on: bool) -> None:
    """After stop(): keeps the communication thread from calling MPI until MPI_Finalize begins, at most for some
    seconds."""
    calls.call("hush", int(on))


# If the program calls MPI_Finalize, that call first calls the C function at this address.
on_finalize = calls.checked("on_finalize")


def call_beside(function: int) -> bool:
    """Calls the C function at this address on a thread of C++, which may outlive Python. False: no thread started."""
    return bool(calls.call("call_beside", function) == 0)


def join_beside() -> None:
    """Waits until the function of call_beside() has returned."""
    calls.wait("join_beside", calls.SLICE_MS)


def abort(status: int, *, said: bool) -> NoReturn:
    """Ends the whole job at once with `status`.

    Unless `said`, logs which rank ended it, and how far the job had come.
    """
    calls.call("abort", status, said)
    raise AssertionError("hvdata_abort returned")


def end_together(status: int) -> None:
    """All ranks are about to end with this status. So this process does not abort the job when it exits with it."""
    calls.check("end_together", status)


def counters() -> dict[str, int]:
    """The counters of this process since init(), by the names of stats(). {} before init()."""
    return {name: int(number) for name, number in (line.split() for line in calls.text("stats").splitlines())}


def own_times(reset: bool) -> str:
    """The times of this process, in the form that observe/times.py reads. `reset`: the times start again from 0."""
    return calls.text("times", int(reset))


# One question at a time, because a second question discards the answers to the first. Reentrant, because the handler of
# a signal may ask while its thread asks.
_asking = threading.RLock()


def all_times(seconds: float) -> str:
    """The times of all processes that answer within `seconds`, in the form that observe/times.py reads.

    This process is first.
    """
    with _asking:
        return calls.text("all_times", int(seconds * 1000))


def certificates() -> dict[str, dict[str, Any]]:
    """On reader 0: the last record of each verified channel, by its name. On other processes {}."""
    if state() is State.FORKED:
        raise RuntimeError(forked("certificates()"))
    records: list[dict[str, Any]] = [json.loads(line) for line in calls.text("certificates").split("\n") if line]
    return {record["channel"]: record for record in records}


def session() -> int:
    """A number that is unique to this engine of this process."""
    return int(calls.call("session"))


# ---- Agreements.


def agree(mine: Any, what: str) -> tuple[int, list[tuple[tuple[int, ...], Any]]]:
    """Makes an agreement: returns its number, and each different contribution with the ranks that have made it.

    Collective on the engine's communicator. JSON must be able to represent `mine`. `what` names the call for ranks that
    wait for it: "distribute_dataset(name='train')".
    """
    number, lines = c_int64(), c_char_p()
    calls.check("agree_begin", json.dumps(mine, sort_keys=True).encode(), what.encode(), byref(number))
    calls.wait("agree_wait", number, calls.SLICE_MS, byref(lines))
    parts = [line.partition(b"\t") for line in calls.lines(lines)]
    return number.value, [(tuple(map(int, ranks.split())), json.loads(payload)) for ranks, _, payload in parts]


class Allgather:
    """Some bytes of every trainer, for every trainer. The constructor begins the exchange and does not wait.

    Collective among trainers: the k-th allgathers of one name belong together. End one before the next of its name.
    """

    def __init__(self, name: str, mine: bytes) -> None:
        """Raises RuntimeError on a dedicated reader, and if no engine runs."""
        self._number = c_int64()
        calls.check("allgather_begin", name.encode(), mine, len(mine), byref(self._number))

    def wait(self) -> list[bytes]:
        """The bytes of all trainers, in their order. They are there when the last trainer has begun. Call it once.

        Raises:
          RuntimeError: a trainer has departed, or a process was lost.
          TimeoutError: a trainer has not begun within HOROVOD_DATA_TIMEOUT seconds.
        """
        data, size = c_void_p(), c_size_t()
        calls.wait("allgather_wait", self._number, calls.SLICE_MS, byref(data), byref(size))
        all_parts, at, parts = c.string_at(data.value or 0, size.value), 0, []
        while at < len(all_parts):
            begin = at + 8
            at = begin + int.from_bytes(all_parts[at:begin], "little")
            parts.append(all_parts[begin:at])
        return parts


# ---- Channels.


def channel_create(name: str, cache_folder: str, components: Sequence[Any], **options: Any) -> None:
    """Creates the channel of an agreement in this process.

    `cache_folder`: as in ChannelConfig in C++. `components`: each a Component of elements/specs.py. `options`: the
    fields of ChannelOptions.
    """
    n = len(components)
    known = [-1 if size is None else size for part in components for size in part.static or ()]
    calls.check(
        "channel_create",
        *calls.numbers(options),
        name.encode(),
        os.fsencode(cache_folder),
        n,
        (c_char_p * n)(*[part.name.encode() for part in components]),
        (c_int * n)(*[part.rule for part in components]),
        (c_int * n)(*[part.number for part in components]),
        (c_int64 * n)(*[part.row_length for part in components]),
        (c_int * n)(*[-1 if part.static is None else len(part.static) for part in components]),
        (c_int64 * len(known))(*known),
    )


# Ends one use of a channel (a number). A channel without users is released.
channel_unuse = calls.checked("channel_unuse")


# Keeper: keep(kept, load, epoch, number) deals an epoch of the channel `kept` from this process's memory, which the
# channel `load` fills. It returns when all trainers have ended the epoch.
keep = calls.checked("keep")
# Keeper: frees the memory of a channel.
keep_end = calls.checked("keep_end")


def source_wait(channel: int) -> Optional[tuple[int, int]]:
    """Reader: waits for the channel's next epoch to deal. Returns (epoch, number), or None when the channel has ended.

    Both count from 1. After a restored epoch, `number` continues from that epoch's number.
    """
    epoch, number = c_uint64(), c_uint64()
    calls.wait("source_wait", channel, calls.SLICE_MS, byref(epoch), byref(number))
    return (epoch.value, number.value) if epoch.value else None


def source_fail(channel: int, epoch: int, code: int, message: str) -> None:
    """Reader: the epoch failed outside the deal op. Every trainer gets the error. `code` is an absl::StatusCode."""
    calls.check(
        "source_fail", channel, epoch, code, message.encode(errors="backslashreplace")
    )  # it may quote a file's name
