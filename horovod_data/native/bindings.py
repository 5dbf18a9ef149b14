# SPDX-License-Identifier: Apache-2.0
"""Typed calls of the C functions in csrc/engine/c_api.cc and c_api_loader.cc.

They raise the errors that C++ reports. During a long wait Python handles Ctrl-C.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes as c
import enum
import functools
import json
import os
import sys
import threading
import traceback
import weakref
from ctypes import byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, Callable, NamedTuple, NoReturn, Optional, Protocol, Sequence

from ..errors import explained, forked, message_of, placed_error
from . import loader

# The length of one slice of a wait. The Python handler of a signal runs between two slices.
SLICE_MS = 100
_PENDING = -1
_UNKNOWN = 2
_RESOURCE_EXHAUSTED = 8

# The Python class for an absl::StatusCode. All other codes become a RuntimeError.
_EXCEPTIONS: dict[int, type[Exception]] = {3: ValueError, 4: TimeoutError}

# The absl codes of Python's exceptions, as in TensorFlow's py_function: a NotImplementedError in a pipeline is
# UNIMPLEMENTED.
_CODES: dict[type[Exception], int] = {ValueError: 3, TypeError: 3, MemoryError: 8, NotImplementedError: 12}


# bytes_at(address, size): a copy of this memory. ctypes.string_at() takes at most 2 GiB.
bytes_at: Any = c.PYFUNCTYPE(c.py_object, c_void_p, c.c_ssize_t)(("PyBytes_FromStringAndSize", c.pythonapi))


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


class Column(c.Structure):
    """A tensor of a share or of a source's element: hvdata_column in csrc/engine/c_api_loader.cc."""

    _fields_ = [
        ("dtype", c.c_int32),
        ("ndim", c.c_int32),
        ("dims", c.POINTER(c_int64)),
        ("data", c_void_p),
        ("bytes", c_uint64),
        ("owner", c_void_p),
    ]


_START = c.CFUNCTYPE(c_int, c_uint64)
_START_FROM = c.CFUNCTYPE(c_int, c_void_p, c_size_t, c_uint64)
_NEXT = c.CFUNCTYPE(c_int, c.POINTER(c.POINTER(Column)), c.POINTER(c_int))
_SAVE = c.CFUNCTYPE(c_int, c.POINTER(c_void_p), c.POINTER(c_size_t))
_CLOSE = c.CFUNCTYPE(None)


class _Input(c.Structure):
    _fields_ = [("start", _START), ("start_from", _START_FROM), ("next", _NEXT), ("save", _SAVE), ("close", _CLOSE)]


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
    "end_together": (c_int, [c_int]),
    "stats": (c_char_p, []),
    "times": (c_char_p, [c_int]),
    "all_times": (c_char_p, [c_int]),
    "certificates": (c_char_p, []),
    "agree_begin": (c_int, [c_char_p, c_char_p, *_to(c_int64)]),
    "agree_wait": (c_int, [c_int64, c_int, *_to(c_char_p)]),
    "allgather_begin": (c_int, [c_char_p, c_char_p, c_size_t, *_to(c_int64)]),
    "allgather_wait": (c_int, [c_int64, c_int, *_to(c_void_p, c_size_t)]),
    "channel_create": (c_int, [*_NUMBERS, c_char_p, c_int, *_to(c_char_p, c_int, c_int, c_int64, c_int, c_int64)]),
    "channel_unuse": (c_int, [c_uint32]),
    "source_wait": (c_int, [c_uint32, c_int, *_to(c_uint64, c_uint64)]),
    "source_fail": (c_int, [c_uint32, c_uint64, c_int, c_char_p]),
    "session": (c_uint64, []),
    "last_place": (c_char_p, []),
    "iterator_new": (c_int, [c_uint32, c_char_p, c_int, *_to(c_void_p)]),
    "iterator_next": (c_int, [c_void_p, *_to(c.POINTER(Column), c_int)]),
    "iterator_save": (c_int, [c_void_p, *_to(c_void_p, c_size_t)]),  # as the bytes may have a NUL
    "iterator_restore": (c_int, [c_void_p, c_char_p, c_size_t, *_to(c_int)]),
    "iterator_drop": (None, [c_void_p]),
    "release": (None, [c_void_p]),
    "deal": (c_int, [c_uint32, c_uint64, c_int, c_int, *_to(_Input)]),
    "input_failed": (None, [c_int, c_char_p]),
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


def end_together(status: int) -> None:
    """All ranks are about to end with this status. So this process does not abort the job when it exits with it."""
    _check("end_together", status)


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


class Allgather:
    """Some bytes of every trainer, for every trainer. The constructor begins the exchange and does not wait.

    Collective among trainers: the k-th allgathers of one name belong together. End one before the next of its name.
    """

    def __init__(self, name: str, mine: bytes) -> None:
        """Raises RuntimeError on a dedicated reader, and if no engine runs."""
        self._number = c_int64()
        _check("allgather_begin", name.encode(), mine, len(mine), byref(self._number))

    def wait(self) -> list[bytes]:
        """The bytes of all trainers, in their order. They are there when the last trainer has begun. Call it once.

        Raises:
          RuntimeError: a trainer has departed, or a process was lost.
          TimeoutError: a trainer has not begun within HOROVOD_DATA_TIMEOUT seconds.
        """
        data, size = c_void_p(), c_size_t()
        _wait("allgather_wait", self._number, SLICE_MS, byref(data), byref(size))
        all_parts, at, parts = c.string_at(data.value or 0, size.value), 0, []
        while at < len(all_parts):
            begin = at + 8
            at = begin + int.from_bytes(all_parts[at:begin], "little")
            parts.append(all_parts[begin:at])
        return parts


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


# Ends one use of a channel (a number). A channel without users is released.
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


# ---- Programs without TensorFlow: csrc/engine/c_api_loader.cc.


def code_of(error: BaseException) -> int:
    """The absl::StatusCode of an error of Python, as in TensorFlow's py_function."""
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), _UNKNOWN)


def releaser() -> Callable[[int], None]:
    """The function that frees the memory of a share's column, given the column's owner. It uses no name of a module,
    because such names may be gone when Python ends."""
    function: Callable[[int], None] = _function("release")
    return function


def _raise_placed(code: int) -> NoReturn:
    """Raises the error of an iterator's last call. If the reader's source raised a builtin class, it has that class."""
    message = (_call("last_error") or b"").decode(errors="replace") or f"the C++ core failed with status code {code}"
    where = (_call("last_place") or b"").decode(errors="replace")
    name, colon, rest = message.partition(": ")
    kind = getattr(builtins, name, None) if colon else None
    if isinstance(kind, type) and issubclass(kind, Exception) and kind not in (StopIteration, StopAsyncIteration):
        try:
            error = placed_error(kind, rest, where)
        except TypeError:  # its constructor takes more than a text
            pass
        else:
            raise error
    raise placed_error(_EXCEPTIONS.get(code, RuntimeError), message, where)


class ShareIterator:
    """An iterator of a channel on a trainer, for its next epoch. One thread at a time may call it.

    `writes`: the program may write into the columns that it gets.

    Raises:
      RuntimeError: no engine runs, or the channel was released.
    """

    def __init__(self, channel: int, label: str, writes: bool = False):
        made = c_void_p()
        self._placed("iterator_new", channel, label.encode(), writes, byref(made))
        self._iterator = made
        weakref.finalize(self, _call, "iterator_drop", made).atexit = False

    @staticmethod
    def _placed(name: str, *args: Any) -> None:
        while code := _call(name, *args):
            if code != _PENDING:
                _raise_placed(code)
            # After Ctrl-C. In the main thread Python has run its handler, which has raised nothing.

    def next(self) -> Optional[list[Column]]:
        """Waits for the next share. None: the epoch is over.

        The columns are valid until the next call. Set each column's owner to None, and then give it to releaser()
        once. The next call releases the owners that are left.

        Raises:
          TimeoutError: the time limit has passed.
          RuntimeError: the epoch failed, or was superseded; a process was lost; after shutdown(). Or a builtin class of
            the error that the reader's source raised.
        """
        columns, count = c.POINTER(Column)(), c_int()
        self._placed("iterator_next", self._iterator, byref(columns), byref(count))
        return None if count.value < 0 else columns[: count.value]

    def save(self) -> bytes:
        """The state of the epoch, for this rank. Waits for the readers."""
        data, size = c_void_p(), c_size_t()
        self._placed("iterator_save", self._iterator, byref(data), byref(size))
        return bytes_at(data.value, size.value)

    def restore(self, state: bytes) -> bool:
        """Makes the iterator resume from a state. Waits for the readers. Returns whether the epoch of the state was over."""
        over = c_int()
        self._placed("iterator_restore", self._iterator, state, len(state), byref(over))
        return bool(over.value)


class ColumnOfSource(Protocol):
    """A column of a Python source's element (elements/columns.py)."""

    @property
    def number(self) -> int: ...
    @property
    def dims(self) -> tuple[int, ...]: ...
    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...


class Source(Protocol):
    """What deal() calls, on the thread that calls deal(). Any of these methods may raise."""

    def start(self, number: int) -> None: ...
    def start_from(self, state: bytes, number: int) -> None: ...
    def next(self) -> Optional[Sequence[ColumnOfSource]]: ...
    def save(self) -> Optional[bytes]: ...
    def close(self) -> None: ...


def end_forked_child(parent: int, error: Optional[BaseException]) -> None:
    """Ends a process that the source's code has forked, and that has come out of that code. It is no reader."""
    if os.getpid() == parent:
        return
    status = 0 if error is None else 1
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        status = error.code or 0
    elif error is not None:
        traceback.print_exception(type(error), error, error.__traceback__)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status & 0xFF)


def deal(channel: int, epoch: int, *, anew: bool, divides: bool, source: Source) -> None:
    """Reader: deals one epoch that source_wait() has returned. Returns when all trainers have ended it.

    The trainers get the errors of `source`, with the names of their classes.

    Args:
      anew: the source was made for this epoch.
      divides: all readers have this source, and each of them deals its part of the elements.
    """
    kept: list[Any] = []  # what C++ may read until its next call
    process = os.getpid()

    def guarded(call: Callable[[], None]) -> int:
        kept.clear()
        try:
            call()
        except BaseException as error:  # also sys.exit(): no exception may pass through C++
            end_forked_child(process, error)
            code = code_of(error)
            text = f"{type(error).__name__}: {message_of(error)}"
            _call("input_failed", code, text.encode(errors="backslashreplace"))
            return code
        end_forked_child(process, None)
        return 0

    def next_into(columns: Any, count: Any) -> None:
        element = source.next()
        count[0] = -1 if element is None else len(element)
        if element:
            sizes = [(c_int64 * len(one.dims))(*one.dims) for one in element]
            given = (Column * len(element))(
                *[Column(one.number, len(s), s, one.address, one.size, None) for one, s in zip(element, sizes)]
            )
            kept.extend([element, sizes, given])
            columns[0] = c.cast(given, c.POINTER(Column))

    def save_into(state: Any, size: Any) -> None:
        saved = source.save()
        if saved:
            kept.append(saved)
            state[0], size[0] = c.cast(c_char_p(saved), c_void_p).value, len(saved)

    def start_from(state: Any, size: int, number: int) -> int:
        return guarded(lambda: source.start_from(bytes_at(state, size), number))

    functions = _Input(
        _START(lambda number: guarded(lambda: source.start(number))),
        _START_FROM(start_from),
        _NEXT(lambda columns, count: guarded(lambda: next_into(columns, count))),
        _SAVE(lambda state, size: guarded(lambda: save_into(state, size))),
        _CLOSE(lambda: guarded(source.close) and None),
    )
    _check("deal", channel, epoch, anew, divides, byref(functions))
