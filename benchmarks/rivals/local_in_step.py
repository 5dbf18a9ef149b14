# SPDX-License-Identifier: Apache-2.0
"""What it costs that ranks wait for each other, without anything being delivered."""

import ctypes
import functools
import platform

from mpi4py import MPI

APART = 2
NAME, KIND, MOVES = f"limit: local datasets, {APART} steps apart", "limit", False
CUTS = False
ABOUT = (f"as the first limit, but no rank gets more than {APART} steps ahead of another, as with `prefetch={APART}`: one that is "
         "sleeps (on a futex in memory that all share) until it is woken")

_LINE = 16  # int32s: each rank's words have a cache line of their own
_FUTEX = {"x86_64": 202, "aarch64": 98}  # the system call
_WAIT, _WAKE = 0, 1


class _Moment(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


def steps_apart(job, batch, apart):
    comm = job.comm.Dup()
    window = MPI.Win.Allocate_shared(4 * _LINE * 2 * job.size if comm.rank == 0 else 0, 1, comm=comm)
    memory, _ = window.Shared_query(0)
    words = memoryview(memory).cast("B").cast("i")
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    futex = functools.partial(ctypes.CDLL(None).syscall, _FUTEX[platform.machine()])
    moment = ctypes.byref(_Moment(0, 1_000_000))  # a wake-up may be missed, for want of a fence
    taken = [_LINE * rank for rank in range(job.size)]
    waits_on = [_LINE * (job.size + rank) for rank in range(job.size)]
    others = [rank for rank in range(job.size) if rank != job.rank]
    for step, element in enumerate(batch.own()):
        for other in others:
            while (its := words[taken[other]]) < step - apart:
                words[waits_on[job.rank]] = other + 1
                futex(ctypes.c_void_p(address + 4 * taken[other]), _WAIT, its, moment, None, 0)
                words[waits_on[job.rank]] = 0
        words[taken[job.rank]] = step
        if any(words[waits_on[other]] == job.rank + 1 for other in others):
            futex(ctypes.c_void_p(address + 4 * taken[job.rank]), _WAKE, job.size, None, None, 0)
        yield element


def steps(job, batch):
    yield from steps_apart(job, batch, APART)
