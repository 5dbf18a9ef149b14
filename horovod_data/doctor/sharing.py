# SPDX-License-Identifier: Apache-2.0
"""Checks what processes of this host may share: the library's shared memory, and /dev/shm.

The check of the shared memory forks a process and passes memory to it. The caller has no threads, so it may fork.
"""

from __future__ import annotations

import array
import errno
import fcntl
import mmap
import os
import secrets
import shutil
import socket
import struct
import time
from typing import Callable

from .findings import Finding, ok, warning

_TOKEN = b"horovod_data doctor!"
_PATIENCE = 10  # seconds to wait for the other process
_SEGMENT = 4 << 20  # bytes in /dev/shm that a rank of Open MPI uses
_MEMFD_ADVICE = (
    "Batches go as MPI messages within this host too: allow memfd_create and Unix sockets in the container's "
    "seccomp profile; HOROVOD_DATA_PAYLOAD=message says that it is meant so"
)


def check() -> list[Finding]:
    """The findings about our shared memory and /dev/shm."""
    return [arena(try_arena()), *dev_shm("/dev/shm", len(os.sched_getaffinity(0)))]


def arena(failure: str) -> Finding:
    """The finding about our shared memory. `failure` is the result of try_arena()."""
    name = "shared memory.arena"
    if failure:
        return warning(name, f"not possible: {failure}", _MEMFD_ADVICE)
    return ok(name, "possible: a sealed memfd, handed over a Unix socket, was mapped by another process")


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
    """Sends a sealed memfd to another process over an abstract socket, as the arena does.

    Returns what failed, or "".
    """
    size = 1 << 20
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
            server.bind("\0" + secrets.token_hex(16))
            server.listen(64)
            server.settimeout(_PATIENCE)
            address = server.getsockname()
            memory = os.memfd_create("horovod_data doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                os.ftruncate(memory, size)
                os.posix_fallocate(memory, 0, size)
                fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
                with mmap.mmap(memory, size) as mapped:
                    mapped[: len(_TOKEN)] = _TOKEN
                    pid = _forked(lambda: _attach(address, size))
                    try:
                        with _accept(server, pid) as peer:
                            fds = array.array("i", [memory])
                            peer.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
                    finally:
                        code = _status_of(pid)
                    if code:
                        return f"the other process failed: {os.strerror(code)}"
                    answer = bytes(mapped[size - len(_TOKEN) :])
                    return "" if answer == _TOKEN else "what one process writes, the other doesn't see"
            finally:
                os.close(memory)
    except OSError as failure:
        return failure.strerror or str(failure)


def _accept(server: socket.socket, pid: int) -> socket.socket:
    """Accepts the connection of process `pid`.

    Other processes of the host may connect, too. The server's timeout ends the wait.
    """
    deadline = time.monotonic() + (server.gettimeout() or 0)
    while time.monotonic() < deadline:
        peer, _ = server.accept()
        caller, _, _ = struct.unpack(
            "3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        )
        if caller == pid:
            return peer
        peer.close()
    raise TimeoutError(errno.ETIMEDOUT, "the other process has not called")


def _attach(address: bytes, size: int) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.settimeout(_PATIENCE)
        client.connect(address)
        _, ancillary, _, _ = client.recvmsg(1, socket.CMSG_SPACE(array.array("i").itemsize))
        if not ancillary:
            return errno.EBADF
        fds = array.array("i")
        fds.frombytes(ancillary[0][2])
        with mmap.mmap(fds[0], size) as mapped:
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
