# SPDX-License-Identifier: Apache-2.0
"""Calls the C functions of csrc/engine, and raises the errors that C++ reports.

During a long wait Python handles Ctrl-C.
"""

from __future__ import annotations

import ctypes as c
import functools
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, Callable, NoReturn

from ..errors import explained
from . import loader

# The length of one slice of a wait. The Python handler of a signal runs between two slices.
SLICE_MS = 100
PENDING = -1
_UNKNOWN = 2
_RESOURCE_EXHAUSTED = 8

# The Python class for an absl::StatusCode. All other codes become a RuntimeError.
EXCEPTIONS: dict[int, type[Exception]] = {3: ValueError, 4: TimeoutError}

# The absl codes of Python's exceptions, as in TensorFlow's py_function: a NotImplementedError in a pipeline is
# UNIMPLEMENTED.
_CODES: dict[type[Exception], int] = {ValueError: 3, TypeError: 3, MemoryError: 8, NotImplementedError: 12}


# bytes_at(address, size): a copy of this memory. ctypes.string_at() takes at most 2 GiB.
bytes_at: Any = c.PYFUNCTYPE(c.py_object, c_void_p, c.c_ssize_t)(("PyBytes_FromStringAndSize", c.pythonapi))


def _to(*kinds: Any) -> list[Any]:
    return [c.POINTER(kind) for kind in kinds]


class Column(c.Structure):
    """A tensor of a share or of a source's element: hvdata_column in csrc/deal/callback_pipeline.h."""

    _fields_ = [
        ("dtype", c.c_int32),
        ("ndim", c.c_int32),
        ("dims", c.POINTER(c_int64)),
        ("data", c_void_p),
        ("bytes", c_uint64),
        ("owner", c_void_p),
    ]


_NUMBERS = [*_to(c_char_p, c.c_double), c_int]  # names, values and their number
_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "last_error": (c_char_p, []),
    "build_info": (c_char_p, []),
    "mpi_query": (c_int, _to(c_int, c_int, c_int)),
    "mpi_init": (c_int, []),
    "comm_info": (c_int, [c_void_p, *_to(c_int, c_int)]),
    "comm_exchange": (c_int, [c_void_p, c_char_p, *_to(c_char_p)]),
    "start": (c_int, [c_void_p, *_to(c_int, c_int, c_int, c_char_p), *_NUMBERS, c_char_p, c_char_p]),
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
    "channel_create": (
        c_int,
        [*_NUMBERS, c_char_p, c_char_p, c_int, *_to(c_char_p, c_int, c_int, c_int64, c_int, c_int64)],
    ),
    "channel_unuse": (c_int, [c_uint32]),
    "source_wait": (c_int, [c_uint32, c_int, *_to(c_uint64, c_uint64)]),
    "source_fail": (c_int, [c_uint32, c_uint64, c_int, c_char_p]),
    "keep": (c_int, [c_uint32, c_uint32, c_uint64, c_uint64]),
    "keep_end": (c_int, [c_uint32]),
    "session": (c_uint64, []),
    "last_place": (c_char_p, []),
    "iterator_new": (c_int, [c_uint32, c_char_p, c_int, *_to(c_void_p)]),
    "iterator_next": (c_int, [c_void_p, *_to(c.POINTER(Column), c_int)]),
    "iterator_save": (c_int, [c_void_p, *_to(c_void_p, c_size_t)]),  # as the bytes may have a NUL
    "iterator_restore": (c_int, [c_void_p, c_char_p, c_size_t, *_to(c_int)]),
    "iterator_drop": (None, [c_void_p]),
    "release": (None, [c_void_p]),
    "deal": (c_int, [c_uint32, c_uint64, c_int, c_int, c_void_p]),
    "input_failed": (None, [c_int, c_char_p]),
}


@functools.lru_cache(maxsize=None)
def function(name: str) -> Any:
    function = getattr(loader.load_core(), "hvdata_" + name)
    function.restype, function.argtypes = _PROTOTYPES[name]
    return function


def call(name: str, *args: Any) -> Any:
    """Calls hvdata_<name>, without the GIL."""
    return function(name)(*args)


def last_error(code: int) -> str:
    text: str = (call("last_error") or b"").decode(errors="replace")
    return text or f"the C++ core failed with status code {code}"


def raise_error(code: int) -> NoReturn:
    raise explained(EXCEPTIONS.get(code, RuntimeError), last_error(code))


def check(name: str, *args: Any) -> None:
    code = call(name, *args)
    if code != 0:
        raise_error(code)


def text(name: str, *args: Any) -> str:
    said = call(name, *args)
    if said is None:
        raise_error(_RESOURCE_EXHAUSTED)
    return str(said.decode(errors="replace"))


def wait(name: str, *args: Any) -> None:
    """Repeats a sliced wait until it is over. In the main thread Python handles signals between the slices."""
    while (code := call(name, *args)) == PENDING:
        pass
    if code != 0:
        raise_error(code)


def over(name: str, seconds: float) -> bool:
    """Waits once, for some seconds. Returns whether the wait is over."""
    return bool(call(name, int(seconds * 1000)) != PENDING)


def checked(name: str) -> Callable[..., None]:
    """The call hvdata_<name> without a result. It raises the error that C++ reports."""
    return functools.partial(check, name)


def numbers(values: dict[str, Any]) -> tuple[Any, Any, int]:
    """Named numbers for a structure of C++."""
    n = len(values)
    return (c_char_p * n)(*[name.encode() for name in values]), (c.c_double * n)(*values.values()), n


def lines(text: c_char_p) -> list[bytes]:
    return (text.value or b"").split(b"\n")[:-1]


def code_of(error: BaseException) -> int:
    """The absl::StatusCode of an error of Python, as in TensorFlow's py_function."""
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), _UNKNOWN)
