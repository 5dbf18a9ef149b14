# SPDX-License-Identifier: Apache-2.0
"""Processes that don't belong to a job and meddle with its sockets and its memory, of this user and of another one.

MPI's own ports are not called: garbage there keeps Open MPI's launcher from starting or ending a job, which is not ours to mend.

    with Strangers() as strangers:          # of all processes that this one starts
        ...
    assert strangers.called["abstract"] and not strangers.got
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

NOBODY = 65534

# What a stranger does: it is told "abstract NAME" or "pid PID", once each, and says what it got.
STRANGER = r"""
import array, os, random, socket, sys
kept = []
def call(name):
    for i in range(30):
        try:
            one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            one.settimeout(0.5)
            one.connect(b"\0" + name.encode())
            if i % 3 == 1: one.send(random.randbytes(1 + random.randrange(200)))
            if i % 3 == 2:
                fds = array.array("i", [2] * (1 + i % 4))
                one.sendmsg([random.randbytes(36 + 4 * (i % 9))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
            kept.append(one)
            print("called abstract", flush=True)
        except OSError:
            pass
        while len(kept) > 100:
            kept.pop(0).close()
def hear():
    for one in list(kept):
        try:
            one.settimeout(0)
            bytes, ancillary, _, _ = one.recvmsg(100, 1000)
            if bytes or ancillary: print("got", len(bytes), "bytes and", len(ancillary), "times descriptors", flush=True)
        except OSError:
            pass
def look(pid):
    tried = [f"/proc/{pid}/mem", f"/proc/{pid}/maps", f"/proc/{pid}/environ"] + [f"/proc/{pid}/fd/{n}" for n in range(200)]
    for path in tried:
        try:
            with open(path, "rb", 0) as file:
                if "/fd/" in path or file.read(1): print("got", path, flush=True)  # maps of a process that ends are empty
        except OSError:
            pass
        print("called memory", flush=True)
for line in sys.stdin:
    what, which = line.split()
    if what == "abstract": call(which)
    elif os.geteuid() != 0: look(which)
    hear()
"""


class Strangers:
    """`called`: how often the strangers reached what they are after, by its kind. `got`: what they should not have."""

    def __init__(self) -> None:
        self.called: Counter[str] = Counter()
        self.got: list[str] = []
        self._told: set[str] = set()
        self._over = threading.Event()
        command = [getattr(sys, "_base_executable", sys.executable), "-I", "-S", "-c", STRANGER]
        users: tuple[dict[str, Any], ...] = ({}, {"user": NOBODY, "group": NOBODY, "extra_groups": []})
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/", **user)
            for user in users
        ]
        self._threads = [threading.Thread(target=self._listen, args=(one,)) for one in self._processes]
        self._threads.append(threading.Thread(target=self._watch))

    def __enter__(self) -> "Strangers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._threads[-1].join()
        for one in self._processes:
            assert one.stdin
            one.stdin.close()
            one.wait(60)
        for thread in self._threads:
            thread.join()

    def names(self) -> set[str]:
        """The job's abstract sockets that are open."""
        return {target for target in self._targets() if target.startswith("abstract")}

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout
        for line in process.stdout:
            what, _, rest = line.strip().partition(" ")
            if what == "called":
                self.called[rest] += 1
            else:
                self.got.append(rest)

    def _watch(self) -> None:
        """Tells the strangers of everything that the job opens, soon after it has."""
        while not self._over.is_set():
            for target in self._targets() - self._told:
                self._told.add(target)
                for one in self._processes:
                    assert one.stdin
                    one.stdin.write(target + "\n")
                    one.stdin.flush()
            time.sleep(0.02)

    def _targets(self) -> set[str]:
        ours = {one.pid for one in self._processes}
        pids = [one.pid for one in psutil.Process().children(recursive=True) if one.pid not in ours]
        inodes = {inode for pid in pids for inode in _sockets_of(pid)}
        found = {f"pid {pid}" for pid in pids}
        for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
            words = line.split()
            if len(words) > 7 and words[6] in inodes and re.fullmatch("@[0-9a-f]{32}", words[7]):
                found.add(f"abstract {words[7][1:]}")
        return found


def _sockets_of(pid: int) -> list[str]:
    found = []
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            try:
                match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(entry.path))
            except OSError:
                continue
            if match:
                found.append(match[1])
    except OSError:
        pass
    return found
