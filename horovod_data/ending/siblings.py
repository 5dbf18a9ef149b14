# SPDX-License-Identifier: Apache-2.0
"""The other ranks of this host, as /proc shows them: a rank that ended before init() can't say so, and MPI waits for it.

A launcher has a process on every host, whose children are that host's ranks; under Open MPI and Hydra the environment of each
says which one it is. So a rank that waits in init() can look who is missing. It sees nothing where it can't look at the
launcher's process: in a container of its own, under Slurm's srun, or where something stands between the two (a container's
runtime, sudo) that hands nothing on of its environment.

Where MPI runs already a rank that ends stays, in MPI_Finalize, for as long as the others do. It gives its process a name by
which they know it.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import re
import time
from typing import Callable, Iterator, Mapping, Optional

from .processes import fork_check

_ENDED = "hvdata-ended"  # at most 15 characters: the name of a process whose program has ended
# Of Open MPI and of Hydra: a process's rank, its rank on this host, and how many there are on this host; and of how many.
_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_SIZE"),
)
# Only what is seen for so long is told: a process that starts another in its place may be seen as neither.
_SURE_SECONDS = 2.0
# Programs whose children are ranks: Open MPI's, PRRTE's, Hydra's; and, in a command that is to start one elsewhere, their names.
_LAUNCHER = re.compile(r"orte|prte|mpirun|mpiexec|hydra|pmi_proxy")
_STARTS_ONE = re.compile(rb"\b(orted|prted|hydra_\w*proxy)\b")
_GENERATIONS = 4  # a shell script starts a program that starts Python

_tell: Optional[Callable[[], None]] = None  # what is to be done at exit


@dataclasses.dataclass(frozen=True)
class Absent:
    """A rank of this host that will not come to init() any more."""

    local_rank: int
    rank: Optional[int]  # in MPI_COMM_WORLD; None: not known
    ended: bool  # the program has ended, but its process is there still

    def __str__(self) -> str:
        who = (
            f"rank {self.rank}"
            if self.rank is not None
            else f"the rank with number {self.local_rank} on this host (from 0)"
        )
        return f"{who} {'has come to the end of its program' if self.ended else 'has left, its process is gone'}"


class Siblings:
    """The ranks that the launcher has started on this host, this one among them."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._names = next(
            (names for names in _VARIABLES if all(environ.get(name, "").isdigit() for name in names)), None
        )
        self._seen: dict[Absent, float] = {}  # since when
        self._here, self._all = (int(environ[name]) for name in self._names[2:]) if self._names else (0, 0)
        self._launcher = self._find_launcher()

    def absent(self) -> list[Absent]:
        """Those that will not come any more, once that is sure. To be asked again and again."""
        now = time.monotonic()
        self._seen = {one: self._seen.get(one, now) for one in self._look()}
        return [one for one, since in self._seen.items() if now - since >= _SURE_SECONDS]

    def _find_launcher(self) -> Optional[int]:
        pid = os.getpid()
        while self._names is not None and pid > 1 and self._number(pid, self._names[1]) is not None:
            pid = _parent(pid)
        return pid if any(map(_LAUNCHER.match, _programs(pid))) else None

    def _look(self) -> Iterator[Absent]:
        if self._names is None or self._launcher is None or (children := _children(self._launcher)) is None:
            return
        here: dict[int, tuple[Optional[int], bool]] = {}
        for pid in children:
            local = self._number(pid, self._names[1])
            if local is not None:
                here[local] = self._number(pid, self._names[0]), _has_ended(pid)
            elif _program(pid) == _program(self._launcher) or not _STARTS_ONE.search(_read(pid, "cmdline")):
                return  # a child that is still to become a rank, or one whose environment does not say what it is
        for local in range(self._here):
            if local not in here:
                yield Absent(local, local if self._here == self._all else None, ended=False)
            elif here[local][1]:
                yield Absent(local, here[local][0], ended=True)

    def _number(self, pid: int, name: str) -> Optional[int]:
        """What the environment of a process says; None if it doesn't, or if nobody may look."""
        found = [word for word in _read(pid, "environ").split(b"\0") if word.startswith(name.encode() + b"=")]
        try:
            return int(found[0].partition(b"=")[2])
        except (IndexError, ValueError):
            return None


def over_hosts(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the launcher says that ranks run on other hosts too."""
    names = next((names for names in _VARIABLES if all(environ.get(name, "").isdigit() for name in names)), None)
    return names is not None and int(environ[names[2]]) < int(environ[names[3]])


def tell_end() -> None:
    """Has the ranks that wait in init() know, if they look, that this one has come to the end of its program without it."""
    try:
        with open("/proc/self/comm", "w") as file:
            file.write(_ENDED)
    except OSError:
        pass


def tell_end_at_exit() -> None:
    """tell_end() when Python ends, unless stay_silent() is called before."""
    forked = fork_check()  # children, which end as they like

    def tell() -> None:
        if not forked():
            tell_end()

    global _tell
    _tell = tell
    atexit.register(tell)


def stay_silent() -> None:
    """This process has come to init()."""
    if _tell is not None:
        atexit.unregister(_tell)


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def _children(pid: int) -> Optional[list[int]]:
    """None: the system does not say."""
    try:
        found = []
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += [int(word) for word in file.read().split()]
        return [child for child in found if not _is_zombie(child)]
    except (OSError, ValueError):
        return None


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except (OSError, IndexError):
        return True


def _program(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def _programs(pid: int) -> list[str]:
    """What it is called: the file, and what was called, which may be a link to it."""
    return [os.path.basename(_program(pid)), _read(pid, "comm").decode(errors="replace")]


def _read(pid: int, what: str) -> bytes:
    """Nothing, where nobody may look."""
    try:
        with open(f"/proc/{pid}/{what}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _has_ended(pid: int, generations: int = _GENERATIONS) -> bool:
    if _read(pid, "comm").strip() == _ENDED.encode():
        return True
    return generations > 1 and any(_has_ended(child, generations - 1) for child in _children(pid) or [])
