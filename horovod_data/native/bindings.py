# SPDX-License-Identifier: Apache-2.0
"""Typed calls of the C functions in csrc/engine/c_api.cc.

They raise errors. Long waits return to Python at times, for Ctrl-C.
"""

from __future__ import annotations

import ctypes as c
import enum
import functools
import json
import threading
from ctypes import byref, c_char_p, c_int, c_int64, c_uint32, c_uint64, c_void_p
from typing import Any, Callable, NamedTuple, NoReturn, Optional, Sequence

from ..errors import explained, forked
from . import loader

# The length of one slice of a wait. The Python handler of a signal runs between two slices.
SLICE_MS = 100
_PENDING = -1
_RESOURCE_EXHAUSTED = 8

# The Python class for an absl::StatusCode. All other codes become a RuntimeError.
_EXCEPTIONS: dict[int, type[Exception]] = {3: ValueError, 4: TimeoutError}


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


class Contribution(NamedTuple):
    """A contribution to an agreement. `ranks` are the ranks of the communicator that made the same contribution."""

    ranks: tuple[int, ...]
    payload: bytes


def _to(*kinds: Any) -> list[Any]:
    return [c.POINTER(kind) for kind in kinds]


_NUMBERS = [*_to(c_char_p, c.c_double), c_int]  # names, values and their number
_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "last_error": (c_char_p, []),
    "build_info": (c_char_p, []),
    "mpi_query": (c_int, _to(c_int, c_int, c_int)),
    "mpi_init": (c_int, []),
    "comm_info": (c_int, [c_void_p, *_to(c_int, c_int)]),
    "comm_exchange": (c_int, [c_void_p, c_char_p, *_to(c_char_p)]),
    "start": (c_int, [c_void_p, *_to(c_int, c_int, c_int, c_char_p), *_NUMBERS]),
    "state": (c_int, []),
    "leave_channels": (c_int, []),
    "bye": (c_int, []),
    "wait_all_bye": (c_int, [c_int]),
    "serves": (c_char_p, []),
    "refuse_agreements": (c_int, [c_char_p]),
    "stop": (c_int, []),
    "wait_left": (c_int, [c_int]),
    "hush": (c_int, [c_int]),
    "on_finalize": (c_int, [c_void_p]),
    "call_beside": (c_int, [c_void_p]),
    "join_beside": (c_int, [c_int]),
    "abort": (None, [c_int, c_int]),
    "stats": (c_char_p, []),
    "times": (c_char_p, [c_int]),
    "all_times": (c_char_p, [c_int]),
    "certificates": (c_char_p, []),
    "agree_begin": (c_int, [c_char_p, c_char_p, *_to(c_int64)]),
    "agree_wait": (c_int, [c_int64, c_int, *_to(c_char_p)]),
    "channel_create": (c_int, [*_NUMBERS, c_char_p, c_int, *_to(c_char_p, c_int, c_int, c_int64, c_int, c_int64)]),
    "channel_unuse": (c_int, [c_uint32]),
    "source_wait": (c_int, [c_uint32, c_int, *_to(c_uint64, c_uint64)]),
    "source_fail": (c_int, [c_uint32, c_uint64, c_int, c_char_p]),
    "session": (c_uint64, []),
}


@functools.lru_cache(maxsize=None)
def _function(name: str) -> Any:
    function = getattr(loader.load_core(), "hvdata_" + name)
    function.restype, function.argtypes = _PROTOTYPES[name]
    return function


def _call(name: str, *args: Any) -> Any:
    """Calls hvdata_<name>, without the GIL."""
    return _function(name)(*args)


def _raise(code: int) -> NoReturn:
    text = (_call("last_error") or b"").decode(errors="replace") or f"the C++ core failed with status code {code}"
    raise explained(_EXCEPTIONS.get(code, RuntimeError), text)


def _check(name: str, *args: Any) -> None:
    code = _call(name, *args)
    if code != 0:
        _raise(code)


def _text(name: str, *args: Any) -> str:
    text = _call(name, *args)
    if text is None:
        _raise(_RESOURCE_EXHAUSTED)
    return str(text.decode(errors="replace"))


def _wait(name: str, *args: Any) -> None:
    """Repeats a sliced wait until it is over. In the main thread Python handles signals between the slices."""
    while (code := _call(name, *args)) == _PENDING:
        pass
    if code != 0:
        _raise(code)


def _over(name: str, seconds: float) -> bool:
    """Waits once, for some seconds. Returns whether the wait is over."""
    return bool(_call(name, int(seconds * 1000)) != _PENDING)


def _checked(name: str) -> Callable[..., None]:
    """The call hvdata_<name> without a result. It raises the error that C++ reports."""
    return functools.partial(_check, name)


def _numbers(values: dict[str, Any]) -> tuple[Any, Any, int]:
    """Named numbers for a structure of C++."""
    n = len(values)
    return (c_char_p * n)(*[name.encode() for name in values]), (c.c_double * n)(*values.values()), n


def _lines(text: c_char_p) -> list[bytes]:
    return (text.value or b"").split(b"\n")[:-1]


def build_info() -> dict[str, Any]:
    """What the libraries were built with: version, build, cxx11_abi, mpi, and tensorflow (None: without it)."""
    built, mpi = _text("build_info").split("\n", 1)
    ops = loader.built_ops()
    return {**json.loads(built), "tensorflow": ops.tensorflow if ops else None, "mpi": mpi}


# ---- MPI, before the engine runs. `comm` is the address of an MPI_Comm; None is MPI_COMM_WORLD.


def mpi_query() -> MpiState:
    """Says whether MPI has been initialised, by this library or by another."""
    initialized, finalized, level = c_int(), c_int(), c_int()
    _check("mpi_query", byref(initialized), byref(finalized), byref(level))
    return MpiState(bool(initialized.value), bool(finalized.value), ThreadLevel(level.value))


# Calls MPI_Init_thread(MPI_THREAD_MULTIPLE). Collective over the launched job.
mpi_init = _checked("mpi_init")


def comm_info(comm: Optional[int]) -> tuple[int, int]:
    """(rank, size) in `comm`."""
    rank, size = c_int(), c_int()
    _check("comm_info", comm, byref(rank), byref(size))
    return rank.value, size.value


def comm_exchange(comm: Optional[int], mine: bytes) -> list[bytes]:
    """Returns the lines of all ranks, in rank order. `mine` has no newline and no NUL. Collective on `comm`. Blocks."""
    lines = c_char_p()
    _check("comm_exchange", comm, mine, byref(lines))
    return _lines(lines)


# ---- The engine.


def start(
    comm: Optional[int],
    hosts: Sequence[str],
    reader_index: Sequence[int],
    trainer_index: Sequence[int],
    group: Sequence[int],
    **settings: Any,
) -> None:
    """Starts the engine: the duplicate communicator and the communication thread. Collective on `comm`.

    Args:
      hosts, reader_index, trainer_index, group: the values of each rank, as in job/layout.py.
      settings: the fields of EngineSettings in C++. With `finalize_waits`, a thread that calls MPI_Finalize waits there
        until stop() has been called.
    """
    n = len(hosts)
    _check(
        "start",
        comm,
        (c_int * n)(*reader_index),
        (c_int * n)(*trainer_index),
        (c_int * n)(*group),
        (c_char_p * n)(*[host.encode() for host in hosts]),
        *_numbers(settings),
    )


def state() -> State:
    """The state of this process's engine. Never fails."""
    return State(_call("state"))


# Closes this trainer's lanes, so that other ranks need not wait for it.
leave_channels = _checked("leave_channels")
# Closes this trainer's lanes, and sends that it is done. May be repeated.
bye = _checked("bye")
# Ends all sources and leaves the transport. Call it after bye() and, on a reader, after wait_all_bye().
stop = _checked("stop")


def wait_all_bye(seconds: Optional[float] = None) -> bool:
    """Waits until every trainer has called bye(), at most for `seconds`. Returns whether all have called it."""
    if seconds is not None:
        return _over("wait_all_bye", seconds)
    _wait("wait_all_bye", SLICE_MS)
    return True


def serves() -> str:
    """The names of the trainers that wait_all_bye() waits for."""
    return _text("serves")


def refuse_agreements(why: str) -> None:
    """From now on this process refuses agreements. Ranks that begin an agreement get the error `why`."""
    _check("refuse_agreements", why.encode())


def wait_left(seconds: float) -> bool:
    """After stop(): waits at most `seconds` until every process has stopped and the communication thread has ended.

    Returns whether they have.
    """
    return _over("wait_left", seconds)


def hush(on: bool) -> None:
    """After stop(): keeps the communication thread from calling MPI until MPI_Finalize begins, at most for some
    seconds."""
    _call("hush", int(on))


# Makes MPI_Finalize, if the program calls it, first call the C function at this address.
on_finalize = _checked("on_finalize")


def call_beside(function: int) -> bool:
    """Calls the C function at this address on a thread of C++, which may outlive Python. False: no thread started."""
    return bool(_call("call_beside", function) == 0)


def join_beside() -> None:
    """Waits until the function of call_beside() has returned."""
    _wait("join_beside", SLICE_MS)


def abort(status: int, *, said: bool) -> NoReturn:
    """Ends the whole job at once with `status`. Unless `said`, logs which rank ended it, and how far the job had come."""
    _call("abort", status, said)
    raise AssertionError("hvdata_abort returned")


def counters() -> dict[str, int]:
    """The counters of this process since init(), by the names of stats(). {} before init()."""
    return {name: int(number) for name, number in (line.split() for line in _text("stats").splitlines())}


def own_times(reset: bool) -> str:
    """The times of this process, in the form that observe/times.py reads. `reset`: the times start again from 0."""
    return _text("times", int(reset))


# One question at a time, because a second question discards the answers to the first. Reentrant, because the handler of
# a signal may ask while its thread asks.
_asking = threading.RLock()


def all_times(seconds: float) -> str:
    """The times of all processes that answer within `seconds`, in the form that observe/times.py reads.

    This process is first.
    """
    with _asking:
        return _text("all_times", int(seconds * 1000))


def certificates() -> dict[str, dict[str, Any]]:
    """On reader 0: the last record of each verified channel, by its name. On other processes {}."""
    if state() is State.FORKED:
        raise RuntimeError(forked("certificates()"))
    records: list[dict[str, Any]] = [json.loads(line) for line in _text("certificates").split("\n") if line]
    return {record["channel"]: record for record in records}


def session() -> int:
    """A number that is unique to this engine of this process."""
    return int(_call("session"))


# ---- Agreements.


def agree(mine: bytes, what: str) -> tuple[int, list[Contribution]]:
    """Makes an agreement: returns its number, and the contributions of all ranks. Equal contributions are joined.

    Collective on the engine's communicator. `mine` has no newline and no NUL. `what` names the call for ranks that wait
    for it: "distribute_dataset(name='train')".
    """
    number, lines = c_int64(), c_char_p()
    _check("agree_begin", mine, what.encode(), byref(number))
    _wait("agree_wait", number, SLICE_MS, byref(lines))
    parts = [line.partition(b"\t") for line in _lines(lines)]
    return number.value, [Contribution(tuple(map(int, ranks.split())), payload) for ranks, _, payload in parts]


# ---- Channels.


class Component(NamedTuple):
    """A flat tensor of a channel's elements, in the form that C++ takes."""

    name: str
    rule: int
    dtype: int  # a DataType of TensorFlow
    row_length: int
    shape: Optional[Sequence[Optional[int]]]  # None: the number of axes is unknown


def channel_create(name: str, components: Sequence[Component], **options: Any) -> None:
    """Creates the channel of an agreement in this process. `options`: the fields of ChannelOptions in C++."""
    n = len(components)
    known = [-1 if size is None else size for part in components for size in part.shape or ()]
    _check(
        "channel_create",
        *_numbers(options),
        name.encode(),
        n,
        (c_char_p * n)(*[part.name.encode() for part in components]),
        (c_int * n)(*[part.rule for part in components]),
        (c_int * n)(*[part.dtype for part in components]),
        (c_int64 * n)(*[part.row_length for part in components]),
        (c_int * n)(*[-1 if part.shape is None else len(part.shape) for part in components]),
        (c_int64 * len(known))(*known),
    )


# The process uses this channel (a number) no more. It is released when it has no more users.
channel_unuse = _checked("channel_unuse")


def source_wait(channel: int) -> Optional[tuple[int, int]]:
    """Reader: waits for the channel's next epoch to deal. Returns (epoch, number), or None when the channel has ended.

    Both count from 1. Except: after a restored epoch, `number` continues from that epoch's number.
    """
    epoch, number = c_uint64(), c_uint64()
    _wait("source_wait", channel, SLICE_MS, byref(epoch), byref(number))
    return (epoch.value, number.value) if epoch.value else None


def source_fail(channel: int, epoch: int, code: int, message: str) -> None:
    """Reader: the epoch failed outside the deal op. Every trainer gets the error. `code` is an absl::StatusCode."""
    _check("source_fail", channel, epoch, code, message.encode(errors="backslashreplace"))  # it may quote a file's name
