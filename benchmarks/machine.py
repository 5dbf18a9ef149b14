# SPDX-License-Identifier: Apache-2.0
"""Describes the machine on which the numbers were measured."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from typing import Any


def describe() -> dict[str, Any]:
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "mpi": _first_line("mpirun", "--version"),
        "python": platform.python_version(),
        "tensorflow": version("tensorflow", "tensorflow-cpu"),
        "horovod": version("horovod"),
        "mpi4py": version("mpi4py"),
        "load_before": load(),
    }


def load() -> float:
    return os.getloadavg()[0]


def sentence(machine: dict[str, Any]) -> str:
    return (
        f"Measured on {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['kernel']}; {machine['mpi']}, TensorFlow {machine['tensorflow']}, Horovod {machine['horovod']}, "
        f"mpi4py {machine['mpi4py']}, Python {machine['python']}. "
        f"Load average {machine['load_before']:.1f} before and {machine['load_after']:.1f} after."
    )


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        return names[0] if names else platform.machine()
    except OSError:
        return platform.machine()


def _first_line(*command: str) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line.strip() for line in ran.stdout.splitlines() if line.strip()]
    # MPICH's launcher prints "HYDRA build details:" first, and its version next.
    return " ".join(" ".join(lines[:2]).split()) if lines and "HYDRA" in lines[0] else (lines or ["unknown"])[0]


def version(*packages: str) -> str:
    """Of the first of these packages that is installed, or \"none\"."""
    for package in packages:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return "none"
