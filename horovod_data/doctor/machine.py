# SPDX-License-Identifier: Apache-2.0
"""Checks whether cores, memory and /dev/shm suffice for TensorFlow, MPI and a pipeline."""

from __future__ import annotations

import os
import platform
import shutil
import socket
from typing import Optional

from ..job.cgroups import memory_bytes, quota
from .findings import Finding, ok, warning

_LITTLE_MEMORY = 1 << 30
_SEGMENT = 4 << 20  # bytes in /dev/shm that a rank of Open MPI uses


def check() -> list[Finding]:
    usable = len(os.sched_getaffinity(0))
    return [
        ok("machine.host", f"{socket.gethostname()}, {platform.system()} {platform.release()}, {platform.machine()}"),
        cores(usable, os.cpu_count() or 1, quota()),
        memory(*memory_bytes()),
        dev_shm("/dev/shm", usable),
    ]


def cores(usable: int, present: int, quota: Optional[float]) -> Finding:
    """`usable`: cores for this process. `present`: cores of the machine. `quota`: its container's limit, in cores."""
    name, value = "machine.cores", f"{usable} of {present}" + (f", processor time of {quota:g}" if quota else "")
    if quota is not None and quota < usable:
        why = f"The container gets the processor time of {quota:g} cores, but TensorFlow starts threads for {usable}"
        return warning(name, value, f"{why}: raise the limit, or start the job with `taskset` on that many cores")
    if usable == 1 and present > 1:
        why = "This process is bound to one core, so all threads of its pipeline share that core"
        return warning(name, value, f"{why}: start the job with `--bind-to none`")
    return ok(name, value)


def memory(total: int, available: int) -> Finding:
    """`total`, `available`: bytes of this machine or container."""
    name, value = "machine.memory", f"{available / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    if available >= _LITTLE_MEMORY:
        return ok(name, value)
    to_do = "use fewer ranks on this host, or raise the container's limit"
    return warning(name, value, f"Less than 1 GiB is free: TensorFlow alone needs 0.5 GiB in each rank; {to_do}")


def dev_shm(path: str, ranks: int) -> Finding:
    """`path`: the folder of POSIX shared memory. `ranks`: the number of ranks on this host."""
    name = f"shared memory.{path}"
    try:
        total, _, free = shutil.disk_usage(path)
    except OSError as failure:
        to_do = "MPI libraries need it for shared memory: mount a tmpfs on it"
        return warning(name, f"not there: {failure.strerror}", to_do)
    value = f"{free / 2**20:,.0f} of {total / 2**20:,.0f} MiB free"
    if free >= ranks * _SEGMENT:
        return ok(name, value)
    to_do = "start the container with `--shm-size=1g` (horovod_data itself uses no memory there)"
    return warning(name, value, f"Open MPI takes 4 MiB for each rank, so {ranks} ranks don't fit: {to_do}")
