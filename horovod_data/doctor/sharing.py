# SPDX-License-Identifier: Apache-2.0
"""What processes of this host may share: our own shared memory, MPI's copies from process to process, and /dev/shm.

Each is tried between two processes of our own, forked for it. A process here never has threads: it may fork.
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import mmap
import os
import secrets
import shutil
import socket
import struct
import time
from pathlib import Path
from typing import Callable, Optional

from .findings import Finding, ok, warning

_TOKEN = b"horovod_data doctor!"
_PR_SET_PTRACER = 0x59616D61
_PATIENCE = 10  # seconds, with the other process
_SEGMENT = 4 << 20  # bytes in /dev/shm that a rank of Open MPI takes
_MEMFD_ADVICE = (
    "Batches go as MPI messages within this host too: allow memfd_create and Unix sockets in the container's "
    "seccomp profile; HOROVOD_DATA_PAYLOAD=message says that it is meant so"
)
_CMA_ADVICE = (
    "MPI copies messages of this host twice: start the container with `--cap-add=SYS_PTRACE`, or silence Open "
    "MPI with OMPI_MCA_btl_vader_single_copy_mechanism=none; horovod_data's shared memory needs none of it"
)


class _IoVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def check() -> list[Finding]:
    """Our shared memory, MPI's single copy, /dev/shm."""
    found = [arena(try_arena()), cma(try_cma(False), try_cma(True), ptrace_scope(), seccomp())]
    return found + dev_shm("/dev/shm", len(os.sched_getaffinity(0)))


def arena(failure: str) -> Finding:
    """Args: what went wrong in try_arena(); empty if nothing did."""
    name = "shared memory.arena"
    if failure:
        return warning(name, f"not possible: {failure}", _MEMFD_ADVICE)
    return ok(name, "possible: a sealed memfd, handed over a Unix socket, was mapped by another process")


def cma(plain: int, allowed: int, scope: Optional[int], seccomp: Optional[int]) -> Finding:
    """Args: errno of try_cma() without and with leave of the other process, and what the kernel says of its rules."""
    name = "shared memory.CMA"
    rules = ", ".join([f"ptrace_scope {scope}"] * (scope is not None) + [f"seccomp {seccomp}"] * (seccomp is not None))
    rules = f" ({rules})" if rules else ""
    if not plain:
        return ok(name, f"permitted: process_vm_readv between two processes works{rules}")
    if not allowed:
        return ok(name, f"permitted where the other process gives leave, as those of Open MPI do{rules}")
    return warning(name, f"not permitted: process_vm_readv: {os.strerror(allowed)}{rules}", _CMA_ADVICE)


def dev_shm(path: str, ranks: int) -> list[Finding]:
    """Args: where POSIX shared memory lies, and how many ranks this host may have."""
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
    """Does what the arena does: a sealed memfd whose descriptor goes to another process over an abstract socket."""
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
    """The connection of this process: others of the host may call, too. The server's timeout ends the wait for it."""
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


def try_cma(with_leave: bool) -> int:
    """Errno of process_vm_readv between two children of this process, as between two ranks of a launcher; 0: it works.

    Args:
      with_leave: the one that is read allows it to all children of its parent, as processes of Open MPI do.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    target = ctypes.create_string_buffer(_TOKEN)
    read_end, write_end = os.pipe()
    done_read, done_write = os.pipe()

    def wait_to_be_read() -> int:
        os.close(done_write)
        if with_leave:
            libc.prctl(_PR_SET_PTRACER, os.getppid(), 0, 0, 0)
        os.write(write_end, b"x")
        os.read(done_read, 1)  # until the parent closes its end
        return 0

    def read(pid: int) -> int:
        mine = ctypes.create_string_buffer(len(_TOKEN))
        local = _IoVec(ctypes.addressof(mine), len(_TOKEN))
        remote = _IoVec(ctypes.addressof(target), len(_TOKEN))
        libc.process_vm_readv.restype = ctypes.c_ssize_t
        count = libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
        if count != len(_TOKEN):
            return ctypes.get_errno() or errno.EIO
        return 0 if mine.raw == _TOKEN else errno.EIO

    victim = None
    try:
        victim = _forked(wait_to_be_read)
        os.close(write_end)
        os.read(read_end, 1)
        os.close(read_end)
        return _status_of(_forked(lambda: read(victim)))
    except OSError as failure:  # no more processes, say
        return failure.errno or errno.EIO
    finally:
        os.close(done_write)
        os.close(done_read)
        if victim is not None:
            _status_of(victim)


def ptrace_scope(path: Path = Path("/proc/sys/kernel/yama/ptrace_scope")) -> Optional[int]:
    """Yama's rule: 0 all of the same user, 1 descendants, 2 root, 3 nobody; None: the kernel has none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def seccomp(path: Path = Path("/proc/self/status")) -> Optional[int]:
    """0: no filter on system calls; 2: one, as containers have; None: not known."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("Seccomp:")), None)


def _forked(work: Callable[[], int]) -> int:
    """Runs `work` in a child, which leaves with what it returns. Returns the child's id."""
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
