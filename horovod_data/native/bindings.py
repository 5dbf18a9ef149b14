# SPDX-License-Identifier: Apache-2.0
"""The C functions of csrc/engine/c_api.cc, typed. Errors are raised; waits come up for Ctrl-C in every slice."""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import functools
import json
import struct
import threading
from ctypes import (
    POINTER,
    byref,
    c_bool,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import TYPE_CHECKING, Any, Callable, NoReturn, Optional, Sequence, Union

from ..errors import explain, forked
from ..job.layout import Layout
from ..job.settings import PAYLOADS, Settings
from ..observe.times import flat
from . import loader

if TYPE_CHECKING:
    from ..channel.elements import Component

# A signal's Python handler runs between two slices: short enough for a hand on Ctrl-C, long enough to cost nothing.
SLICE_MS = 100
_PENDING = -1
_RESOURCE_EXHAUSTED = 8

# absl::StatusCode to what Python calls it; anything else is a RuntimeError.
_EXCEPTIONS: dict[int, type[Exception]] = {3: ValueError, 4: TimeoutError}


class State(enum.IntEnum):
    """What hvdata_state() says of this process's engine."""

    NEVER_STARTED = 0
    RUNNING = 1
    SHUT_DOWN = 2
    BROKEN = 3
    FORKED = 4


class ThreadLevel(enum.IntEnum):
    """MPI's thread levels; NONE while MPI is not initialised."""

    NONE = -1
    SINGLE = 0
    FUNNELED = 1
    SERIALIZED = 2
    MULTIPLE = 3


@dataclasses.dataclass(frozen=True)
class MpiState:
    """Whether MPI is there, and how many threads may call it."""

    initialized: bool
    finalized: bool
    thread_level: ThreadLevel

    @property
    def usable(self) -> bool:
        """MPI has been initialised and not yet finalised."""
        return self.initialized and not self.finalized


@dataclasses.dataclass(frozen=True)
class Contribution:
    """What some ranks of the communicator, all of them alike, put into an agreement."""

    ranks: tuple[int, ...]
    payload: bytes


# The types that C++ names in hvdata_structures().
_FIELD_TYPES: dict[str, Any] = {
    "bool": c_bool,
    "double": c_double,
    "int32_t": c_int32,
    "uint32_t": c_uint32,
    "int64_t": c_int64,
    "uint64_t": c_uint64,
    "Payload": c_int32,
    "plan::Batch": c_uint8,
    "plan::Schedule": c_uint8,
    "plan::Remainder": c_uint8,
}


@functools.lru_cache(maxsize=None)
def _structures() -> dict[str, type[ctypes.Structure]]:
    """The structures that C++ takes, by name, made of what it says of them."""
    made: dict[str, type[ctypes.Structure]] = {}
    for line in _call("structures").decode().splitlines():
        name, size, text = line.split(" ", 2)
        try:
            fields = [(field.split()[1], _FIELD_TYPES[field.split()[0]]) for field in text.split(";") if field]
        except KeyError as unknown:
            raise ImportError(
                explain(
                    f"horovod_data's C++ core has a field of type {unknown.args[0]} in {name}, which its Python "
                    "side does not know",
                    "Install horovod_data anew",
                )
            ) from None
        made[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
        if ctypes.sizeof(made[name]) != int(size):
            raise ImportError(
                explain(
                    f"horovod_data's C++ core has a structure {name} of {size} bytes, its Python side one of "
                    f"{ctypes.sizeof(made[name])}",
                    "Install horovod_data anew",
                )
            )
    return made


def check() -> None:
    """Raises ImportError if the library's structures can't be filled from here."""
    _structures()


def _structure(name: str, values: dict[str, Any]) -> ctypes.Structure:
    """One of them with these values, all of them."""
    structure = _structures()[name]
    wanted = [field[0] for field in structure._fields_]
    if sorted(values) != sorted(wanted):
        raise ImportError(
            explain(
                f"horovod_data's C++ core takes {', '.join(wanted)} in {name}, its Python side gives "
                f"{', '.join(values)}",
                "Install horovod_data anew",
            )
        )
    return structure(**values)


# Results that are bytes come as a pointer and a length; c_char_p would stop at the first NUL.
_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "last_error": (c_char_p, []),
    "build_info": (c_char_p, []),
    "structures": (c_char_p, []),
    "mpi_query": (c_int, [POINTER(c_int), POINTER(c_int), POINTER(c_int)]),
    "mpi_init": (c_int, []),
    "comm_info": (c_int, [c_void_p, POINTER(c_int), POINTER(c_int)]),
    "comm_world_ranks": (c_int, [c_void_p, POINTER(c_int)]),
    "comm_exchange": (c_int, [c_void_p, c_char_p, c_size_t, POINTER(c_void_p), POINTER(c_size_t)]),
    "start": (c_int, [c_void_p, POINTER(c_int), POINTER(c_int), POINTER(c_int), POINTER(c_char_p), c_void_p]),
    "state": (c_int, []),
    "leave_channels": (c_int, []),
    "bye": (c_int, []),
    "wait_all_bye": (c_int, [c_int]),
    "refuse_agreements": (c_int, [c_char_p]),
    "stop": (c_int, []),
    "wait_left": (c_int, [c_int]),
    "hush": (c_int, [c_int]),
    "on_finalize": (c_int, [c_void_p]),
    "call_beside": (c_int, [c_void_p]),
    "join_beside": (c_int, [c_int]),
    "abort": (None, [c_int, c_int]),
    "stats": (c_char_p, [c_int]),
    "all_times": (c_char_p, [c_int]),
    "agree_begin": (c_int, [c_char_p, c_size_t, c_char_p, POINTER(c_int64)]),
    "agree_wait": (c_int, [c_int64, c_int, POINTER(c_void_p), POINTER(c_size_t)]),
    "channel_create": (
        c_int,
        [
            c_void_p,
            c_char_p,
            c_int,
            POINTER(c_char_p),
            POINTER(c_int),
            POINTER(c_int),
            POINTER(c_int64),
            POINTER(c_int),
            POINTER(c_int64),
        ],
    ),
    "channel_use": (c_int, [c_uint32]),
    "channel_unuse": (c_int, [c_uint32]),
    "source_wait": (c_int, [c_uint32, c_int, POINTER(c_uint64), POINTER(c_uint64)]),
    "source_fail": (c_int, [c_uint32, c_uint64, c_int, c_char_p]),
    "session": (c_uint64, []),
}

_functions: dict[str, Any] = {}


def _call(name: str, *args: Any) -> Any:
    """Calls hvdata_<name>, without the GIL."""
    function = _functions.get(name)
    if function is None:
        function = getattr(loader.load().dll, "hvdata_" + name)
        function.restype, function.argtypes = _PROTOTYPES[name]
        _functions[name] = function
    return function(*args)


def _error(code: int) -> Exception:
    text = (_call("last_error") or b"").decode(errors="replace") or f"the C++ core failed with status code {code}"
    return _EXCEPTIONS.get(code, RuntimeError)(text if text.startswith("[") else explain(text))


def _raise(code: int) -> NoReturn:
    raise _error(code)


def _check(name: str, *args: Any) -> None:
    code = _call(name, *args)
    if code != 0:
        _raise(code)


def _json(name: str, *args: Any) -> Any:
    text = _call(name, *args)
    if text is None:
        _raise(_RESOURCE_EXHAUSTED)
    return json.loads(text)


def _waited(call: Callable[[], int], between: Optional[Callable[[], object]] = None) -> int:
    """Repeats a sliced wait until it is over, with this code. In the main thread signals are handled between the slices."""
    while (code := call()) == _PENDING:
        if between is not None:
            between()
    return code


def _wait(call: Callable[[], int]) -> None:
    if (code := _waited(call)) != 0:
        _raise(code)


def _records(data: bytes) -> list[bytes]:
    """Splits a sequence of (uint64 length, bytes)."""
    records, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        at += 8
        records.append(data[at : at + length])
        at += length
    return records


def _contributions(data: bytes) -> list[Contribution]:
    """Splits a sequence of (uint64 count, count x uint64 rank, uint64 length, bytes)."""
    contributions, at = [], 0
    while at < len(data):
        (count,) = struct.unpack_from("<Q", data, at)
        *ranks, length = struct.unpack_from(f"<{count + 1}Q", data, at + 8)
        at += 8 * (count + 2)
        contributions.append(Contribution(tuple(ranks), data[at : at + length]))
        at += length
    return contributions


def build_info() -> dict[str, Any]:
    """What the library was built with: version, tensorflow, cxx11_abi, mpi."""
    return _json("build_info")


# ---- MPI, before the engine runs. `comm` is the address of an MPI_Comm; None is MPI_COMM_WORLD.


def mpi_query() -> MpiState:
    """Whether MPI has been initialised, by whomever."""
    initialized, finalized, level = c_int(), c_int(), c_int()
    _check("mpi_query", byref(initialized), byref(finalized), byref(level))
    return MpiState(bool(initialized.value), bool(finalized.value), ThreadLevel(level.value))


def mpi_init() -> None:
    """MPI_Init_thread(MPI_THREAD_MULTIPLE): collective over the launched job."""
    _check("mpi_init")


def comm_info(comm: Optional[int]) -> tuple[int, int]:
    """(rank, size) in `comm`."""
    rank, size = c_int(), c_int()
    _check("comm_info", comm, byref(rank), byref(size))
    return rank.value, size.value


def comm_world_ranks(comm: Optional[int]) -> list[int]:
    """The rank in MPI_COMM_WORLD of every rank of `comm`."""
    ranks = (c_int * comm_info(comm)[1])()
    _check("comm_world_ranks", comm, ranks)
    return list(ranks)


def comm_exchange(comm: Optional[int], mine: bytes) -> list[bytes]:
    """Everybody's `mine`, in rank order. Collective on `comm`; blocks."""
    data, size = c_void_p(), c_size_t()
    _check("comm_exchange", comm, mine, len(mine), byref(data), byref(size))
    return _records(ctypes.string_at(data.value or 0, size.value))


# ---- The engine.


def start(comm: Optional[int], layout: Layout, hosts: Sequence[str], settings: Settings, finalize_waits: bool) -> None:
    """Starts the engine: the duplicate communicator and the communication thread. Collective on `comm`.

    `finalize_waits`: another thread that calls MPI_Finalize waits there until stop() has been called.
    """
    n = len(hosts)
    given = _structure(
        "EngineSettings",
        dict(
            stall_seconds=settings.stall_seconds,
            timeout_seconds=settings.timeout_seconds,
            payload=PAYLOADS.index(settings.payload),
            arena_bytes=settings.arena_bytes,
            finalize_waits=finalize_waits,
            timeline=bool(settings.timeline),
            timeline_bytes=settings.timeline_bytes,
        ),
    )
    _check(
        "start",
        comm,
        (c_int * n)(*layout.reader_index),
        (c_int * n)(*layout.trainer_index),
        (c_int * n)(*layout.group),
        (c_char_p * n)(*[host.encode() for host in hosts]),
        byref(given),
    )


def state() -> State:
    """The state of this process's engine. Never fails."""
    return State(_call("state"))


def leave_channels() -> None:
    """Closes this trainer's lanes: the others need not wait for it."""
    _check("leave_channels")


def bye() -> None:
    """Closes this trainer's lanes and says that it is done. May be repeated."""
    _check("bye")


def wait_all_bye(seconds: Optional[float] = None) -> bool:
    """Waits until every trainer has said bye(), or for so long. Which?"""
    if seconds is not None:
        return bool(_call("wait_all_bye", int(seconds * 1000)) != _PENDING)
    _wait(lambda: int(_call("wait_all_bye", SLICE_MS)))
    return True


def refuse_agreements(why: str) -> None:
    """From now on this process refuses the agreements that others begin, and tells them why."""
    _check("refuse_agreements", why.encode())


def stop() -> None:
    """Ends all sources and leaves the transport; after bye() and, on a reader, wait_all_bye()."""
    _check("stop")


def wait_left(seconds: float) -> bool:
    """After stop(): waits until every process has stopped, and the communication thread has ended; or for so long. Which?"""
    return bool(_call("wait_left", int(seconds * 1000)) != _PENDING)


def hush(on: bool) -> None:
    """After stop(), for some seconds at most: the communication thread makes no call of MPI until MPI_Finalize begins."""
    _call("hush", int(on))


def on_finalize(function: int) -> None:
    """Has the C function of this address called where the program itself calls MPI_Finalize."""
    _check("on_finalize", function)


def call_beside(function: int) -> bool:
    """Has the C function of this address called on a thread of C++, which Python's end does not mind. False: none can be had."""
    return bool(_call("call_beside", function) == 0)


def join_beside() -> None:
    """Waits until that call has returned."""
    _wait(lambda: int(_call("join_beside", SLICE_MS)))


def abort(status: int, *, said: bool) -> NoReturn:
    """Ends the whole job at once with `status`. Says which rank that was, and how far it had come, if it has not been `said`."""
    _call("abort", status, said)
    raise AssertionError("hvdata_abort returned")


resets = 0  # how often stats() has had the times begin anew


def stats(*, reset: bool = False) -> dict[str, Union[int, float]]:
    """What this process has moved since init(), in bytes unless the name says otherwise, and where its time went. Local.

    Of each channel, here `train`, in the epoch under way or the one before: that epoch's number in this run, `train/epoch`; the
    rows and steps that were handed out here, `train/rows` and `train/steps` (an element without rows counts as one); and, once
    the readers have come to its end, `train/dropped`: rows (with batch="per_rank" elements) that remainder="drop" left out, of the whole
    job (of an epoch that was broken off: of what had been dealt by then).

    Of each channel, in seconds since it was made, or since the last `stats(reset=True)` (on a dedicated reader: that of rank 0): on
    a rank `train/wait_seconds` (for batches, inside `next()`), `train/receive_seconds` (making tensors of them), `train/step_seconds` (the program's own, between two
    `next()`), which add up to the time of its epochs; `train/waits`, the steps whose batch was not there, and `train/queue`, the
    batches that were there, on average, when one was asked for; and, now, `train/window`: the steps that may be on their way. On a reader `train/pipeline_seconds` (the dataset works),
    `train/deal_seconds` (cutting, copying, sending), `train/room_seconds` (some rank's window is full; `train/room_seconds/3`: that of rank 3
    was the last, `train/room_waits/3` times), `train/serve_seconds` (all is dealt and not all taken), which add up as well; and, now, `train/untaken`: the steps
    (with schedule="dynamic" elements) that are dealt and that not all ranks have taken. On every process all names are
    there; those of a role that it has not are 0. `report()` shows those of all.

    Sent to other processes: `payload_bytes_inline` (copied into a header, and out of it), `payload_bytes_arena` (handed
    over in shared memory), `payload_bytes_message` (sent by MPI). Copied: into shared memory, because the pipeline had made
    them elsewhere, `payload_bytes_copied_to_arena` (of a global batch the reader's own share, too); because rows of padding
    were to follow, `payload_bytes_padded`; by the rank that gets them, because they began at an odd address,
    `payload_bytes_realigned`. Strings are not among the copies: they are encoded, into shared memory where there is some,
    and decoded. All that was handed to MPI, headers included: `mpi_bytes_sent`, `mpi_bytes_received`, and the
    numbers `mpi_messages_sent`, `mpi_messages_received`; `mpi_bags_sent` of them held several headers for one rank, or for
    the ranks of one host, together `mpi_headers_in_bags`. Of what came here for other ranks of this host `mpi_bags_passed_on` parts
    were given to them. Shared memory of a reader, now: `arena_bytes_in_use`,
    `arena_bytes_reserved`; and how often there was no room in it, `arena_refusals`. How many headers went by MPI because
    a rank of the host was far behind: `records_beside_full_ring`. Before init() there is nothing: {}.

    Args:
      reset: seconds, waits and queue begin anew after this answer.

    Raises:
      TypeError: reset is no bool.
      RuntimeError: in a forked child.
    """
    if not isinstance(reset, bool):
        raise TypeError(explain(f"reset must be True or False, not {reset!r}"))
    if state() is State.FORKED:
        raise RuntimeError(forked("stats()"))
    global resets
    resets += reset
    said: dict[str, Any] = _json("stats", int(reset))
    said.pop("certificates", None)
    times = said.pop("times", None)
    for name, tally in said.pop("channels", {}).items():
        said |= {f"{name}/{what}": number for what, number in tally.items()}
    numbers: dict[str, Union[int, float]] = said
    return {**numbers, **(flat(times) if times else {})}


def own_times() -> dict[str, Any]:
    """Where the time of this process's channels goes, as all_times() has it; {} before init()."""
    said: dict[str, Any] = _json("stats", 0).get("times", {})
    return said


def own_epochs() -> tuple[dict[str, dict[str, int]], dict[str, Any]]:
    """By channel the epoch under way, or the one before, on this process (its number, rows, steps), and own_times(), together."""
    said: dict[str, Any] = _json("stats", 0)
    return said.get("channels", {}), said.get("times", {})


# An answer is for one asker: a second one forgets the answers that the first has. A handler of a signal asks within its thread's own
# question, behind that one's call.
_asking = threading.RLock()


def all_times(seconds: float) -> list[dict[str, Any]]:
    """Where the time of every process's channels goes, this one's first, of those that answer in time (csrc/engine/engine_times.cc)."""
    with _asking:
        said: list[dict[str, Any]] = _json("all_times", int(seconds * 1000))
    return said


def certificates() -> dict[str, dict[str, Any]]:
    """On reader 0: the last record of each verified channel, by its name; elsewhere {}. Local. Raises as stats() does."""
    if state() is State.FORKED:
        raise RuntimeError(forked("certificates()"))
    said: dict[str, dict[str, Any]] = _json("stats", 0).get("certificates", {})
    return said


def session() -> int:
    """A number that no other process nor engine has."""
    return int(_call("session"))


# ---- Agreements.


def agree(mine: bytes, what: str) -> list[Contribution]:
    """Everybody's contribution to this agreement, equal ones joined. Collective on the engine's communicator.

    `what` names the call for those who wait for it: "distribute_dataset(name='train')".
    """
    said = agree_wait(agree_begin(mine, what))
    if isinstance(said, Exception):
        raise said
    return said


def agree_begin(mine: bytes, what: str) -> int:
    """Hands in this rank's contribution to its next agreement and returns the agreement's number. Doesn't wait."""
    number = c_int64()
    _check("agree_begin", mine, len(mine), what.encode(), byref(number))
    return number.value


def agree_wait(number: int, between: Optional[Callable[[], object]] = None) -> Union[list[Contribution], Exception]:
    """Waits for everybody's contribution to agreement `number`, or the error that all have in its place; it gives them once. `between` is
    called now and then; what is raised here is its."""
    data, size = c_void_p(), c_size_t()
    code = _waited(lambda: int(_call("agree_wait", number, SLICE_MS, byref(data), byref(size))), between)
    return _error(code) if code != 0 else _contributions(ctypes.string_at(data.value or 0, size.value))


# ---- Channels.


def channel_create(name: str, components: Sequence[Component], **options: Any) -> None:
    """Creates the channel that an agreement was about, in this process. `options`: the fields of ChannelOptions in C++."""
    n = len(components)
    static = [part.shape if part.says is None else part.says for part in components]
    shapes = [None if shape.rank is None else shape.as_list() for shape in static]
    known = [-1 if size is None else size for shape in shapes for size in shape or ()]
    _check(
        "channel_create",
        byref(_structure("ChannelOptions", options)),
        name.encode(),
        n,
        (c_char_p * n)(*[part.name.encode() for part in components]),
        (c_int * n)(*[part.rule for part in components]),
        (c_int * n)(*[part.dtype.as_datatype_enum for part in components]),
        (c_int64 * n)(*[part.row_length for part in components]),
        (c_int * n)(*[-1 if shape is None else len(shape) for shape in shapes]),
        (c_int64 * len(known))(*known),
    )


def channel_use(channel: int) -> None:
    """Counts one more user of the channel."""
    _check("channel_use", channel)


def channel_unuse(channel: int) -> None:
    """Takes back a channel_use(). The channel is released when nothing uses it."""
    _check("channel_unuse", channel)


def source_wait(channel: int) -> Optional[tuple[int, int]]:
    """Reader: waits for the channel's next epoch to deal; None: the channel has ended.

    Returns (epoch, number): both from 1, but the number goes on from that of an epoch that was restored.
    """
    epoch, number = c_uint64(), c_uint64()
    _wait(lambda: int(_call("source_wait", channel, SLICE_MS, byref(epoch), byref(number))))
    return (epoch.value, number.value) if epoch.value else None


def source_fail(channel: int, epoch: int, code: int, message: str) -> None:
    """Reader: the epoch failed outside the deal op; every trainer gets the error (an absl::StatusCode)."""
    _check("source_fail", channel, epoch, code, message.encode(errors="backslashreplace"))  # it may quote a file's name
