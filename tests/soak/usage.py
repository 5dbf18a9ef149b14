# SPDX-License-Identifier: Apache-2.0
"""What a process of `make soak` holds between two cases, and whether that stays level."""

from __future__ import annotations

import ctypes
import gc
import os
import statistics
from typing import Any

MIB = 1 << 20
ARENA_MB = 64  # HOROVOD_DATA_ARENA_MB of the jobs

# What each figure may be above that of the first third of a job's cases, in which TensorFlow's pools and functions, MPI's
# buffers and the largest batches are met for the first time: medians of the last third and of the first.
THREADS = 10  # TensorFlow's pools may still grow; a thread left by each case would be a hundred
DESCRIPTORS = 2  # one that is being closed; one left by each case would be a hundred


def now() -> dict[str, int]:
    """Of this process: private memory, shared memory, threads, open files. Garbage is collected first, and given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return {"private": _field("/proc/self/status", "RssAnon"), "shared": _field("/proc/self/smaps_rollup", "Pss_Shmem"),
            "threads": _field("/proc/self/status", "Threads"), "files": len(os.listdir("/proc/self/fd"))}


def _field(path: str, name: str) -> int:
    """Bytes, or a bare number; 0 where the kernel has no such line."""
    with open(path) as file:
        words = next((line.split()[1:] for line in file if line.startswith(name + ":")), ["0"])
    return int(words[0]) << (10 if words[-1] == "kB" else 0)


def thirds(samples: list[dict[str, int]], what: str) -> tuple[int, int]:
    """The median of the first third of the samples, and of the last."""
    part = max(1, len(samples) // 3)
    values = [sample[what] for sample in samples]
    return int(statistics.median(values[:part])), int(statistics.median(values[-part:]))


# What may be told from level, after so many cases. TensorFlow itself keeps something of every dataset that is made.
LEVEL = {
    "private": lambda cases: 24 * MIB + cases * (64 << 10),
    "shared": lambda cases: (ARENA_MB + 8) * MIB,
    "threads": lambda cases: THREADS,
    "files": lambda cases: DESCRIPTORS,
}
