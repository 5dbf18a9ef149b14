# SPDX-License-Identifier: Apache-2.0
"""Finds hosts and their slots: in options, in host files, and in what a batch system says. A slot is room for one
trainer."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path
from typing import Iterable, Mapping, Optional, Sequence

from . import LaunchError

_NAME = r"[A-Za-z0-9_][\w.-]*"
# Forms: host slots=4 (Open MPI, Horovod); host:4 (MPICH); host (one line for each slot, in PBS and LSF).
_LINE = re.compile(rf"({_NAME})(?::(\d+)|\s+(?:slots|cpu|count)\s*=\s*(\d+))?")
# Settings that are ignored: Open MPI's upper limits, and Hydra's binding, for which --mpi-args has an option.
_WITHOUT_EFFECT = re.compile(r"\s+((slots|cpu|count)[-_]max|max[-_](slots|cpu|count)|binding)\s*=\s*\S+")
# PBS and LSF write a file with one line for each slot. Kubernetes' MPI operator writes a host file for the MPI in use.
_FILES = {
    "PBS_NODEFILE": "PBS",
    "LSB_DJOB_HOSTFILE": "LSF",
    "OMPI_MCA_orte_default_hostfile": "Open MPI's default host file",
    "HYDRA_HOST_FILE": "Hydra's host file",
}
_SAY_HOSTS = "Say where to run with -H host1:4,host2:4"


@dataclasses.dataclass(frozen=True)
class Host:
    name: str
    slots: int

    def __str__(self) -> str:
        return f"{self.name}:{self.slots}"


@dataclasses.dataclass(frozen=True)
class Allocation:
    hosts: tuple[Host, ...]
    source: str  # the option or the batch system that names them


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Parses `host1:4,host2:4`. A host without a number has one slot. If a host comes twice, its slots are added up."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(rf"({_NAME})(?::(\d+))?", part.strip())
        if match is None:
            what = f"-H {text}: {part.strip()!r} is not a host with its slots"
            raise LaunchError(what, "Write it as -H host1:4,host2:4")
        found.append((match[1], _slots(match[2], f"-H {text}")))
    return together(found)


def parse_names(text: str, option: str) -> tuple[str, ...]:
    """Parses `cpu1,cpu2`."""
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if re.fullmatch(_NAME, name) is None:
            what = f"{option} {text}: {name!r} is not the name of a host"
            raise LaunchError(what, f"Write names alone, as in {option} cpu1,cpu2")
    return tuple(dict.fromkeys(names))


def read_hostfile(path: str, named_by: str) -> tuple[Host, ...]:
    """Reads a host file. `named_by`: the option or variable that names it, for errors."""
    if not path.strip():
        raise LaunchError(f"{named_by} {path!r} names no file", f"Name one, as in {named_by} hosts.txt")
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        what = f"{named_by} names the host file {path}, which can't be read ({error})"
        raise LaunchError(what, "Name another one, or say where to run with -H host1:4,host2:4") from error
    return parse_hostfile(text, path)


def parse_hostfile(text: str, path: str) -> tuple[Host, ...]:
    """Parses the lines of a host file: `host slots=4`, `host:4`, or `host` for each slot. `#` begins a comment."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        match = _LINE.fullmatch(_WITHOUT_EFFECT.sub("", line))
        if match is None:
            to_do = "Write each line as `host slots=4`, `host:4`, or `host` once for each slot. For user@host, set `User` for that host in ~/.ssh/config"
            raise LaunchError(f"{path}, line {number}: {line!r} is not a host with its slots", to_do)
        found.append((match[1], _slots(match[2] or match[3], f"{path}, line {number}")))
    if not found:
        raise LaunchError(f"{path} names no host", "Write each line as `host slots=4`")
    return together(found)


def _slots(text: Optional[str], where: str) -> int:
    slots = 1 if text is None else int(text)
    if slots < 1:
        raise LaunchError(f"{where}: a host with 0 slots", "Give it slots, or leave it out")
    return slots


def together(found: Iterable[tuple[str, int]]) -> tuple[Host, ...]:
    """The hosts, each once, with the sum of its slots."""
    slots: dict[str, int] = {}
    for name, count in found:
        slots[name] = slots.get(name, 0) + count
    return tuple(Host(name, count) for name, count in slots.items())


# ---- Batch systems.


def find_allocation(environ: Mapping[str, str]) -> Optional[Allocation]:
    """The allocation of this process. None: no batch system has given one."""
    if environ.get("SLURM_JOB_ID"):
        return Allocation(_slurm(environ), f"Slurm's job {environ['SLURM_JOB_ID']}")
    for variable, system in _FILES.items():
        if path := environ.get(variable):
            return Allocation(read_hostfile(path, variable), f"{system} ({variable}={path})")
    return None


def _slurm(environ: Mapping[str, str]) -> tuple[Host, ...]:
    nodes, tasks = environ.get("SLURM_JOB_NODELIST", ""), environ.get("SLURM_TASKS_PER_NODE", "")
    try:  # Slurm's own tool knows every form of a node list
        done = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"Slurm's scontrol can't list the hosts of {nodes} ({error})", _SAY_HOSTS) from error
    names, slots = done.stdout.split(), expand_counts(tasks)
    if not names or len(names) != len(slots):
        what = f"SLURM_JOB_NODELIST={nodes!r} has {len(names)} hosts, SLURM_TASKS_PER_NODE={tasks!r} has {len(slots)} numbers"
        raise LaunchError(f"Slurm's variables do not fit together: {what}", _SAY_HOSTS)
    return tuple(map(Host, names, slots))


def expand_counts(counts: str) -> list[int]:
    """Expands `4(x2),3` to 4, 4, 3. Empty if it does not have this form."""
    found: list[int] = []
    for part in counts.split(","):
        match = re.fullmatch(r"([1-9]\d*)(?:\(x([1-9]\d*)\))?", part)
        if match is None:
            return []
        found += [int(match[1])] * int(match[2] or 1)
    return found


def given_name(found: str, given: Sequence[str]) -> str:
    """The name in `given`, the user's names, of the host that MPI calls `found`. MPI may leave out the domain.

    If not exactly one name fits, or `found` is an address, returns `found`.
    """
    short = found.partition(".")[0]
    alike = [name for name in given if name.partition(".")[0] == short]
    is_address = found.replace(".", "").isdigit()
    return alike[0] if len(alike) == 1 and not is_address else found
