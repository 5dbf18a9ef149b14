# SPDX-License-Identifier: Apache-2.0
"""What programs without TensorFlow call: a trainer's iterators, and a reader's Python source.

The C functions are in csrc/engine/c_api_loader.cc.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes as c
import os
import sys
import traceback
import weakref
from ctypes import byref, c_char_p, c_int, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, Callable, NoReturn, Optional, Protocol, Sequence

from ..errors import message_of, placed_error, show_trace
from . import calls
from .calls import Column, bytes_at

_START = c.CFUNCTYPE(c_int, c_uint64)
_START_FROM = c.CFUNCTYPE(c_int, c_void_p, c_size_t, c_uint64)
_NEXT = c.CFUNCTYPE(c_int, c.POINTER(c_void_p), c.POINTER(c_int))
_SAVE = c.CFUNCTYPE(c_int, c.POINTER(c_void_p), c.POINTER(c_size_t))
_CLOSE = c.CFUNCTYPE(None)


class _Input(c.Structure):
    _fields_ = [("start", _START), ("start_from", _START_FROM), ("next", _NEXT), ("save", _SAVE), ("close", _CLOSE)]


def releaser() -> Callable[[int], None]:
    """The function that frees the memory of a share's column, given the column's owner. It uses no name of a module,
    because such names may be gone when Python ends."""
    function: Callable[[int], None] = calls.function("release")
    return function


def _raise_placed(code: int) -> NoReturn:
    """Raises the error of an iterator's last call. If the reader's source raised an error of a builtin class, the error
    has that class."""
    message = calls.last_error(code)
    where = (calls.call("last_place") or b"").decode(errors="replace")
    name, colon, rest = message.partition(": ")
    kind = getattr(builtins, name, None) if colon else None
    if isinstance(kind, type) and issubclass(kind, Exception) and kind not in (StopIteration, StopAsyncIteration):
        try:
            error = placed_error(kind, rest, where)
        except TypeError:  # its constructor takes more than a text
            pass
        else:
            raise error
    raise placed_error(calls.EXCEPTIONS.get(code, RuntimeError), message, where)


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
        weakref.finalize(self, calls.call, "iterator_drop", made).atexit = False

    @staticmethod
    def _placed(name: str, *args: Any) -> None:
        while code := calls.call(name, *args):
            if code != calls.PENDING:
                _raise_placed(code)
            # After Ctrl-C. In the main thread Python has run its handler, which has raised nothing.

    def next(self) -> Optional[list[Column]]:
        """Waits for the next share. None: the epoch is over.

        The columns are valid until the next call. To keep a column for longer, take its owner, set the column's `owner`
        to None, and later give the owner to releaser() once. The next call releases the owners that are left.

        Raises:
          TimeoutError: the time limit has passed.
          RuntimeError: the epoch failed, or was superseded; a process was lost; after shutdown(). If the reader's
            source raised an error of a builtin class, an error of that class is raised instead.
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
        """Makes the iterator resume from a state. Waits for the readers.

        Returns whether the epoch of the state was over.
        """
        over = c_int()
        self._placed("iterator_restore", self._iterator, state, len(state), byref(over))
        return bool(over.value)


class Source(Protocol):
    """What deal() calls, on the thread that calls deal(). Any of these methods may raise."""

    def start(self, number: int) -> None: ...
    def start_from(self, state: bytes, number: int) -> None: ...
    def next(self) -> Optional[Sequence[Any]]: ...  # Column of elements/columns.py
    def save(self) -> Optional[bytes]: ...
    def close(self) -> None: ...


def end_forked_child(parent: int, error: Optional[BaseException]) -> None:
    """Ends this process if it is a child that the source's code has forked. Such a child must not go on as a reader."""
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
    form: list[Any] = []  # the types and sizes of the last element's columns
    given: Any = None  # these columns
    process = os.getpid()

    def guarded(call: Callable[[], None]) -> int:
        kept.clear()
        try:
            call()
        except BaseException as error:  # also sys.exit(): no exception may pass through C++
            end_forked_child(process, error)
            show_trace(error)  # the trainers get its text alone
            code = calls.code_of(error)
            text = f"{type(error).__name__}: {message_of(error)}"
            calls.call("input_failed", code, text.encode(errors="backslashreplace"))
            return code
        end_forked_child(process, None)
        return 0

    def next_into(columns: Any, count: Any) -> None:
        nonlocal form, given
        element = source.next()
        count[0] = -1 if element is None else len(element)
        if element:
            now = [(one.number, one.dims) for one in element]
            if now != form:
                form = now
                given = (Column * len(now))(
                    *[Column(number, len(dims), (c_int64 * len(dims))(*dims)) for number, dims in now]
                )
            for column, one in zip(given, element):
                column.data, column.bytes = one.address, one.size
            kept.append(element)
            columns[0] = c.addressof(given)

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
    calls.check("deal", channel, epoch, anew, divides, byref(functions))
