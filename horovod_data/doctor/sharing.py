# SPDX-License-Identifier: Apache-2.0
"""Checks what processes of this host may share: the library's shared memory, and /dev/shm.

The check of the shared memory forks a process and passes memory to it. The caller has no threads, so it may fork.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
from typing import Callable

from .findings import Finding, ok, warning

_TOKEN = b"horovod_data doctor!"
_SEGMENT = 4 << 20  # bytes in /dev/shm that a rank of Open MPI uses
_MEMFD_ADVICE = (
    "Batches go as MPI messages within this host too: allow memfd_create in the container's seccomp profile, and "
    "let ranks see each other in /proc; HOROVOD_DATA_PAYLOAD=message says that it is meant so"
)


def check() -> list[Finding]:
    """The findings about our shared memory and /dev/shm."""
    return [arena(try_arena()), *dev_shm("/dev/shm", len(os.sched_getaffinity(0)))]


def arena(failure: str) -> Finding:
    """The finding about our shared memory. `failure` is the result of try_arena()."""
    name = "shared memory.arena"
    if failure:
        return warning(name, f"not possible: {failure}", _MEMFD_ADVICE)
    return ok(name, "possible: a sealed memfd was mapped by another process")


def dev_shm(path: str, ranks: int) -> list[Finding]:
    """The finding about the folder of POSIX shared memory. `ranks`: the number of ranks on this host."""
    name = f"shared memory.{path}"
    try:
        total, _, free = shutil.disk_usage(path)
    except OSError as failure:
        return [
            warning(
                name,
                f"not there: {failure.strerror}",
                "MPI libraries keep their shared memory there; horovod_data does not: mount a tmpfs on it",
            )
        ]
    value = f"{free / 2**20:,.0f} of {total / 2**20:,.0f} MiB free"
    if free < ranks * _SEGMENT:
        return [
            warning(
                name,
                value,
                f"Open MPI takes 4 MiB for each rank, so {ranks} ranks don't fit: start the container "
                "with `--shm-size=1g` (horovod_data's own memory is not there)",
            )
        ]
    return [ok(name, value)]


def try_arena() -> str:
    """Lets another process open a sealed memfd of this one by its number, as ranks do.

    Returns what failed, or "".
    """
    size = 1 << 20
    try:
        memory = os.memfd_create("horovod_data doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(memory, size)
            os.posix_fallocate(memory, 0, size)
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            path = f"/proc/{os.getpid()}/fd/{memory}"
            with mmap.mmap(memory, size) as mapped:
                mapped[: len(_TOKEN)] = _TOKEN
                if code := _status_of(_forked(lambda: _attach(path, size))):
                    return f"the other process failed: {os.strerror(code)}"
                answer = bytes(mapped[size - len(_TOKEN) :])
                return "" if answer == _TOKEN else "what one process writes, the other doesn't see"
        finally:
            os.close(memory)
    except OSError as failure:
        return failure.strerror or str(failure)


def _attach(path: str, size: int) -> int:
    with open(path, "r+b", 0) as memory, mmap.mmap(memory.fileno(), size) as mapped:
        if mapped[: len(_TOKEN)] != _TOKEN:
            return errno.EIO
        mapped[size - len(_TOKEN) :] = _TOKEN
    return 0


def _forked(work: Callable[[], int]) -> int:
    """Runs `work` in a child, whose status is its result. Returns the child's id."""
    pid = os.fork()
    if pid:
        return pid
    code = errno.EIO
    try:
        code = work()
    except OSError as failure:
        code = failure.errno or errno.EIO
    finally:
        os._exit(code)


def _status_of(pid: int) -> int:
    _, status = os.waitpid(pid, 0)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else errno.EIO
