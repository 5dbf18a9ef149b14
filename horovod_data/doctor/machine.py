# SPDX-License-Identifier: Apache-2.0
"""Checks whether cores and memory suffice for TensorFlow and for a pipeline."""

from __future__ import annotations

import os
import platform
import socket
from typing import Optional

from ..job.cgroups import memory_bytes, quota
from .findings import Finding, ok, warning

_LITTLE_MEMORY = 1 << 30


def check() -> list[Finding]:
    """The findings about this machine."""
    return [
        ok("machine.host", f"{socket.gethostname()}, {platform.system()} {platform.release()}, {platform.machine()}"),
        cores(len(os.sched_getaffinity(0)), os.cpu_count() or 1, quota()),
        memory(*memory_bytes()),
    ]


def cores(usable: int, present: int, quota: Optional[float]) -> Finding:
    """The finding about cores.

    `usable`: for this process; `present`: of the machine; `quota`: of the container, in cores.
    """
    name, value = "machine.cores", f"{usable} of {present}" + (f", for {quota:g} cores' time" if quota else "")
    if quota is not None and quota < usable:
        return warning(
            name,
            value,
            f"The container may use {quota:g} cores' time, but TensorFlow starts threads for "
            f"{usable} cores: raise its limit, or start the job with `taskset` on as many cores",
        )
    if usable == 1 and present > 1:
        return warning(
            name,
            value,
            "This process is bound to one core, and so is a pipeline on it: start the job with `--bind-to none`",
        )
    return ok(name, value)


def memory(total: int, available: int) -> Finding:
    """The finding about memory. `total`, `available`: bytes of this machine or container."""
    name, value = "machine.memory", f"{available / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    if available < _LITTLE_MEMORY:
        return warning(
            name,
            value,
            "Less than 1 GiB is free: TensorFlow alone takes half of that in each rank; use fewer "
            "ranks on this host, or raise the container's limit",
        )
    return ok(name, value)
