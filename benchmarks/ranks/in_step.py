# SPDX-License-Identifier: Apache-2.0
"""Ranks of one machine that wait for each other on futexes in shared memory. A rank that waits leaves its core free."""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
from pathlib import Path
from typing import Any

from mpi4py import MPI

_LINE = 16  # in int32s: each rank's words have their own cache line
_FUTEX = {"x86_64": 202, "aarch64": 98}  # the system call
_WAIT, _WAKE = 0, 1


class _Moment(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class InStep:
    def __init__(self, comm: Any, file: Path | None = None) -> None:
        """`file`: a file to make, for ranks of simulated hosts. They share files, but no memory of MPI."""
        self._rank, self._size, self._comm = comm.rank, comm.size, comm.Dup()
        memory = self._memory(4 * _LINE * 2 * self._size, file)
        self._words = memoryview(memory).cast("B").cast("i")
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._futex = functools.partial(ctypes.CDLL(None).syscall, _FUTEX[platform.machine()])
        # limits a wait, because without a fence a wake-up may be missed
        self._moment = ctypes.byref(_Moment(0, 1_000_000))
        self._taken = [_LINE * rank for rank in range(self._size)]
        self._waits_on = [_LINE * (self._size + rank) for rank in range(self._size)]
        self._others = [rank for rank in range(self._size) if rank != self._rank]
        self._met = 0

    def _memory(self, size: int, file: Path | None) -> Any:
        if file is None:
            self._window = MPI.Win.Allocate_shared(size if self._rank == 0 else 0, 1, comm=self._comm)
            return self._window.Shared_query(0)[0]
        if self._rank == 0:
            file.write_bytes(bytes(size))
        self._comm.Barrier()
        with file.open("r+b") as opened:
            return mmap.mmap(opened.fileno(), size)

    def wait(self, step: int) -> None:
        """Waits until every other rank is at `step`, or beyond."""
        words, taken, mine = self._words, self._taken, self._waits_on[self._rank]
        for other in self._others:
            while (its := words[taken[other]]) < step:
                words[mine] = other + 1
                self._futex(ctypes.c_void_p(self._address + 4 * taken[other]), _WAIT, its, self._moment, None, 0)
                words[mine] = 0

    def reach(self, step: int) -> None:
        """Notes that this rank is at `step`, and wakes a rank that waits for it."""
        words, mine = self._words, self._taken[self._rank]
        words[mine] = step
        if any(words[self._waits_on[other]] == self._rank + 1 for other in self._others):
            self._futex(ctypes.c_void_p(self._address + 4 * mine), _WAKE, self._size, None, None, 0)

    def meet(self) -> None:
        """Waits until all ranks have called it: a barrier."""
        self._met += 1
        self.reach(self._met)
        self.wait(self._met)
