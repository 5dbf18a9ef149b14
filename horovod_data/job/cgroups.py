# SPDX-License-Identifier: Apache-2.0
"""The processor time, memory and files that this process may use, where a container or a batch system sets limits.

Control groups are nested. Each may set a limit for all groups below it, so the lowest limit counts.
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
    for group in _groups("cpu", root, own):
        text = _read(group / "cpu.max").split() or [_read(group / f"cpu.cfs_{what}_us") for what in ("quota", "period")]
        try:
            limit, period = int(text[0]), int(text[1])
        except (ValueError, IndexError):  # "max"
            continue
        if limit > 0 < period:
            quotas.append(limit / period)
    return min(quotas, default=None)


def memory_bytes(meminfo: Path = Path("/proc/meminfo"), root: Path = _ROOT, own: Path = _OWN) -> tuple[int, int]:
    """(total, available) bytes of the machine, or of a memory limit if that is lower."""
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    total, available = (int(lines[what].split()[0]) << 10 for what in ("MemTotal", "MemAvailable"))
    for group in _groups("memory", root, own):
        for limit, usage, cached in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            try:
                most, used = int(_read(group / limit)), int(_read(group / usage))
            except ValueError:  # the file does not exist, or says "max"
                continue
            # The page cache counts as used, but the system frees it when memory is needed.
            stat = dict(line.split(maxsplit=1) for line in _read(group / "memory.stat").splitlines() if " " in line)
            used -= min(used, int(stat.get(cached, 0)))
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


def _groups(controller: str, root: Path, own: Path) -> list[Path]:
    """The folders of the groups of this process, from its own to the outermost that it can see."""
    found = []
    for line in _read(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top, names = root / controller if controllers else root, path.strip("/").split("/")
        if ".." not in names:  # a ".." leads out of what this container sees
            found += [top.joinpath(*names[:depth]) for depth in range(len(names), 0, -1)]
    return list(dict.fromkeys([*found, root, root / controller]))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
