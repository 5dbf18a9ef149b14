# SPDX-License-Identifier: Apache-2.0
"""The heap of this process, as glibc counts it."""

import ctypes
import gc

_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS.split()]


def in_use() -> int:
    """Allocated bytes. With PYTHONMALLOC=malloc Python's objects are included."""
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _Mallinfo
    heap = libc.mallinfo2()
    return heap.uordblks + heap.hblkhd


def allocated() -> int:
    """Allocated bytes after a garbage collection."""
    gc.collect()
    return in_use()
