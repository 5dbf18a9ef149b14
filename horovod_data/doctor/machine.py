# SPDX-License-Identifier: Apache-2.0
"""Cores, memory, and limits that a container sets."""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path
from typing import Optional

from .findings import Finding, ok, warning

_LITTLE_MEMORY = 1 << 30


def check() -> list[Finding]:
    """This machine."""
    return [ok("machine.host", f"{socket.gethostname()}, {platform.system()} {platform.release()}, {platform.machine()}"),
            cores(len(os.sched_getaffinity(0)), os.cpu_count() or 1, quota()), memory(*memory_bytes())]


def cores(usable: int, present: int, quota: Optional[float]) -> Finding:
    """Args: cores that this process may use, cores of the machine, and the container's share of time, in cores."""
    name, value = "machine.cores", f"{usable} of {present}" + (f", for {quota:g} cores' time" if quota else "")
    if quota is not None and quota < usable:
        return warning(name, value, f"The container may use {quota:g} cores' time, but TensorFlow starts threads for "
                                    f"{usable} cores: raise its limit, or start the job with `taskset` on as many cores")
    if usable == 1 and present > 1:
        return warning(name, value, "This process is bound to one core, and so is a pipeline on it: start the job with "
                                    "`--bind-to none`")
    return ok(name, value)


def memory(total: int, available: int) -> Finding:
    """Args: bytes that this machine or container has, and that are free."""
    name, value = "machine.memory", f"{available / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    if available < _LITTLE_MEMORY:
        return warning(name, value, "Less than 1 GiB is free: TensorFlow alone takes half of that in each rank; use fewer "
                                    "ranks on this host, or raise the container's limit")
    return ok(name, value)


def quota(root: Path = Path("/sys/fs/cgroup")) -> Optional[float]:
    """Processor time that the container may use, in cores; None: as much as there is."""
    try:
        text = (root / "cpu.max").read_text().split()
    except OSError:
        try:
            text = [(root / "cpu" / f"cpu.cfs_{what}_us").read_text().strip() for what in ("quota", "period")]
        except OSError:
            return None
    try:
        limit, period = int(text[0]), int(text[1])
    except (ValueError, IndexError):  # "max"
        return None
    return limit / period if limit > 0 < period else None


def memory_bytes(proc: Path = Path("/proc/meminfo"), root: Path = Path("/sys/fs/cgroup")) -> tuple[int, int]:
    """(total, available): the container's limit counts where it is the lower one."""
    lines = dict(line.split(":", 1) for line in proc.read_text().splitlines() if ":" in line)
    total, available = (int(lines[what].split()[0]) << 10 for what in ("MemTotal", "MemAvailable"))
    for limit, usage in (("memory.max", "memory.current"),
                         ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        try:
            most, used = int((root / limit).read_text()), int((root / usage).read_text())
        except (OSError, ValueError):  # no such file; "max"
            continue
        if most < total:
            total, available = most, min(available, max(0, most - used))
    return total, available
