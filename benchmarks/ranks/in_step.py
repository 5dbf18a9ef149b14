# SPDX-License-Identifier: Apache-2.0
"""Ranks of one machine that wait for each other, and leave the core to others while they do: on futexes in memory that all share."""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
from pathlib import Path
from typing import Any

from mpi4py import MPI

_LINE = 16  # int32s: each rank's words have a cache line of their own
_FUTEX = {"x86_64": 202, "aarch64": 98}  # the system call
_WAIT, _WAKE = 0, 1


class _Moment(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class InStep:
    def __init__(self, comm: Any, file: Path | None = None) -> None:
        """`file`: to be made, for ranks of simulated hosts, which have files in common but no memory of MPI's."""
        self._rank, self._size, self._comm = comm.rank, comm.size, comm.Dup()
        memory = self._memory(4 * _LINE * 2 * self._size, file)
        self._words = memoryview(memory).cast("B").cast("i")
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._futex = functools.partial(ctypes.CDLL(None).syscall, _FUTEX[platform.machine()])
        self._moment = ctypes.byref(_Moment(0, 1_000_000))  # a wake-up may be missed, for want of a fence
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
        """Until every other rank is at `step`, or beyond."""
        words, taken, mine = self._words, self._taken, self._waits_on[self._rank]
        for other in self._others:
            while (its := words[taken[other]]) < step:
                words[mine] = other + 1
                self._futex(ctypes.c_void_p(self._address + 4 * taken[other]), _WAIT, its, self._moment, None, 0)
                words[mine] = 0

    def reach(self, step: int) -> None:
        """This rank is at `step` now: who waits for that is woken."""
        words, mine = self._words, self._taken[self._rank]
        words[mine] = step
        if any(words[self._waits_on[other]] == self._rank + 1 for other in self._others):
            self._futex(ctypes.c_void_p(self._address + 4 * mine), _WAKE, self._size, None, None, 0)

    def meet(self) -> None:
        """A barrier."""
        self._met += 1
        self.reach(self._met)
        self.wait(self._met)
