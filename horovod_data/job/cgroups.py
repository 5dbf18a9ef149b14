# SPDX-License-Identifier: Apache-2.0
"""The processor time, memory and files that this process may use, where a container or a batch system sets limits.

Control groups (version 2) are nested. Each may set a limit for all groups below it, so the lowest limit counts.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Optional

_ROOT, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def quota(root: Path = _ROOT, own: Path = _OWN) -> Optional[float]:
    """The processor time that this process may use, in cores. None: there is no limit."""
    quotas = []
    for group in _groups(root, own):
        try:
            limit, period = map(int, _read(group / "cpu.max").split())
        except ValueError:  # the file does not exist, or says "max"
            continue
        quotas.append(limit / period)
    return min(quotas, default=None)


def memory_bytes(meminfo: Path = Path("/proc/meminfo"), root: Path = _ROOT, own: Path = _OWN) -> tuple[int, int]:
    """(total, available) bytes of the machine, or of a memory limit if that is lower."""
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    total, available = (int(lines[what].split()[0]) << 10 for what in ("MemTotal", "MemAvailable"))
    for group in _groups(root, own):
        try:
            most, used = (int(_read(group / f"memory.{what}")) for what in ("max", "current"))
        except ValueError:  # the file does not exist, or says "max"
            continue
        # The page cache counts as used, but the system frees it when memory is needed.
        stat = dict(line.split(maxsplit=1) for line in _read(group / "memory.stat").splitlines() if " " in line)
        used -= min(used, int(stat.get("inactive_file", 0)))
        total, available = min(total, most), min(available, max(0, most - used))
    return total, available


def spare_files() -> tuple[int, int]:
    """(how many more files this process may open, the limit). Sockets and shared memory count as files."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        used = len(os.listdir("/proc/self/fd")) - 1  # listdir() itself has one file open
    except OSError:  # no more file can be opened
        used = limit
    return (limit - used, limit) if limit != resource.RLIM_INFINITY else (1 << 30, 1 << 30)


def _groups(root: Path, own: Path) -> list[Path]:
    """The folders of the groups of this process, from its own to the outermost that it can see."""
    path = next((line[3:] for line in _read(own).splitlines() if line.startswith("0::")), "/")
    names = path.strip("/").split("/")
    if names == [""] or ".." in names:  # a ".." leads out of what this container sees
        return [root]
    return [root.joinpath(*names[:depth]) for depth in range(len(names), -1, -1)]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
