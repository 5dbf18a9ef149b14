# SPDX-License-Identifier: Apache-2.0
"""Reads control variables of the MPI library of this process (MPI_T)."""

from __future__ import annotations

import ctypes
from typing import Sequence

from ..native import loader

_THREAD_MULTIPLE = 3
_ROOM = 4096  # bytes; more than any requested variable needs


def read(names: Sequence[str]) -> dict[str, int]:
    """The values of the variables that exist. They must be numbers, switches or enumerations.

    The library may have changed a value. For example, it uses another single-copy mechanism if the requested one is not
    permitted.
    """
    libraries = loader.mpi_libraries()
    if len(libraries) != 1:
        return {}
    mpi = ctypes.CDLL(libraries[0])
    level = ctypes.c_int()
    if not hasattr(mpi, "MPI_T_init_thread") or mpi.MPI_T_init_thread(_THREAD_MULTIPLE, ctypes.byref(level)):
        return {}
    values = {}
    try:
        for name in names:
            index, handle, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
            room = ctypes.create_string_buffer(_ROOM)
            if mpi.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index)):
                continue
            if mpi.MPI_T_cvar_handle_alloc(index, None, ctypes.byref(handle), ctypes.byref(count)):
                continue
            if not mpi.MPI_T_cvar_read(handle, room) and count.value == 1:
                values[name] = int.from_bytes(room.raw[:4], "little", signed=True)
            mpi.MPI_T_cvar_handle_free(ctypes.byref(handle))
    finally:
        mpi.MPI_T_finalize()
    return values
