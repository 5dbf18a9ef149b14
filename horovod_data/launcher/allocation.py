# SPDX-License-Identifier: Apache-2.0
"""Finds the hosts and slots that a batch system has given to this job: Slurm, PBS, LSF, Kubernetes' MPI operator."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shutil
import subprocess
from pathlib import Path
from typing import Mapping, Optional, Sequence

from ..errors import explain, explained
from . import LaunchError
from .hosts import Host, parse_hostfile, parse_pairs

# PBS and LSF write a file with one line for each slot. Kubernetes' MPI operator writes a host file for the MPI in use.
_FILES = (
    ("PBS", "PBS_NODEFILE"),
    ("LSF", "LSB_DJOB_HOSTFILE"),
    ("Open MPI's default host file", "OMPI_MCA_orte_default_hostfile"),
    ("Hydra's host file", "HYDRA_HOST_FILE"),
)
_ITEM = re.compile(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*")  # an item of a node list ends at a comma that is not in brackets


@dataclasses.dataclass(frozen=True)
class Allocation:
    """The hosts of a job, and the source that names them."""

    hosts: tuple[Host, ...]
    source: str


def find_allocation(environ: Mapping[str, str]) -> Optional[Allocation]:
    """The allocation of this process. None: no batch system has given one.

    Raises:
      LaunchError: the batch system's variables or files can't be understood.
    """
    if environ.get("SLURM_JOB_ID"):
        return Allocation(_slurm(environ), f"Slurm's job {environ['SLURM_JOB_ID']}")
    for system, variable in _FILES:
        path = environ.get(variable)
        if path and system == "LSF" and not Path(path).is_file() and environ.get("LSB_MCPU_HOSTS"):
            continue
        if path:
            return Allocation(parse_hostfile(read_hostfile(path, variable), path), f"{system} ({variable}={path})")
    if environ.get("LSB_MCPU_HOSTS"):
        return Allocation(parse_pairs(environ["LSB_MCPU_HOSTS"], "LSB_MCPU_HOSTS"), "LSF (LSB_MCPU_HOSTS)")
    return None


def read_hostfile(path: str, named_by: str) -> str:
    """The text of a host file.

    Raises:
      LaunchError: the file can't be read, or the path is empty. The text says which option or variable names it.
    """
    if not path.strip():
        raise explained(LaunchError, f"{named_by} {path!r} names no file", f"Name one, as in {named_by} hosts.txt")
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise explained(
            LaunchError,
            f"{named_by} names the host file {path}, which can't be read ({error})",
            "Name another one, or say where to run with -H host1:4,host2:4",
        ) from error


def _slurm(environ: Mapping[str, str]) -> tuple[Host, ...]:
    names = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST") or ""
    tasks = environ.get("SLURM_TASKS_PER_NODE") or ""
    hosts = _show_hostnames(names) or expand_nodes(names)
    slots = expand_counts(tasks, "SLURM_TASKS_PER_NODE")
    if not hosts or len(hosts) != len(slots):
        raise explained(
            LaunchError,
            f"Slurm's variables do not fit together: SLURM_JOB_NODELIST={names!r} has {len(hosts)} hosts, "
            f"SLURM_TASKS_PER_NODE={tasks!r} has {len(slots)} numbers",
            "Say where to run with -H host1:4,host2:4",
        )
    return tuple(Host(name, count) for name, count in zip(hosts, slots))


def _show_hostnames(nodes: str) -> list[str]:
    """The nodes, expanded by Slurm's own tool, which knows every form of a node list. Empty if it is not installed."""
    scontrol = shutil.which("scontrol")
    if scontrol is None or not nodes:
        return []
    try:
        done = subprocess.run([scontrol, "show", "hostnames", nodes], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split() if done.returncode == 0 else []


def expand_nodes(nodes: str) -> list[str]:
    """Expands `gpu[01-03,7],login` to gpu01, gpu02, gpu03, gpu7, login.

    Raises:
      LaunchError: `nodes` is not a node list of Slurm.
    """
    if not nodes:
        return []
    items = _ITEM.findall(nodes)
    if ",".join(items) != nodes or any(item.count("[") != item.count("]") for item in items):
        raise _not_understood("SLURM_JOB_NODELIST", nodes)
    return [name for item in items for name in _expand_item(item, nodes)]


def _expand_item(item: str, nodes: str) -> list[str]:
    parts: list[Sequence[str]] = []
    for index, part in enumerate(re.split(r"\[([^\]]*)\]", item)):
        parts.append([part] if index % 2 == 0 else _expand_ranges(part, nodes))
    return ["".join(chosen) for chosen in itertools.product(*parts)]


def _expand_ranges(ranges: str, nodes: str) -> list[str]:
    numbers: list[str] = []
    for one in ranges.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", one)
        if match is None:
            raise _not_understood("SLURM_JOB_NODELIST", nodes)
        first, last = match[1], match[2] or match[1]
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


def expand_counts(counts: str, variable: str) -> list[int]:
    """Expands `4(x2),3` to 4, 4, 3.

    Raises:
      LaunchError: `counts` does not have this form. The text names `variable`.
    """
    found: list[int] = []
    for part in counts.split(",") if counts else []:
        match = re.fullmatch(r"([1-9]\d*)(?:\(x([1-9]\d*)\))?", part)
        if match is None:
            raise _not_understood(variable, counts)
        found += [int(match[1])] * int(match[2] or 1)
    return found


def _not_understood(variable: str, value: str) -> LaunchError:
    return LaunchError(explain(f"{variable}={value!r} is not understood", "Say where to run with -H host1:4,host2:4"))
