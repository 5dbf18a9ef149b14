# SPDX-License-Identifier: Apache-2.0
"""The memory, threads and files of a process of `make soak` between two cases, and how much they may grow."""

from __future__ import annotations

import ctypes
import gc
import os
import statistics

from heap import allocated

MIB = 1 << 20
ARENA_MB = 64  # HOROVOD_DATA_ARENA_MB of the jobs


def now() -> dict[str, int]:
    """The allocated, private and shared memory, the threads and the open files of this process, after a garbage collection."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return {
        "allocated": allocated(),
        "private": _field("/proc/self/status", "RssAnon"),
        "shared": _field("/proc/self/smaps_rollup", "Pss_Shmem"),
        "threads": _field("/proc/self/status", "Threads"),
        "files": len(os.listdir("/proc/self/fd")),
    }


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


# How far the last third of a job's cases may be above the first. In the first third TensorFlow's pools, MPI's buffers and the largest
# batches come for the first time.
LEVEL = {
    # Every channel leaves 1 to 5 KiB, as any dataset of TensorFlow does. A case makes several datasets, saves and restores, and
    # delivers 100 KiB to 18 MiB, so one kept batch per case would show.
    "allocated": lambda cases: 8 * MIB + cases * (64 << 10),
    # Freed memory lies between allocated memory: thousands of short strings leave holes of some MiB.
    "private": lambda cases: 128 * MIB,
    "shared": lambda cases: (ARENA_MB + 8) * MIB,
    "threads": lambda cases: 10,  # TensorFlow's pools may still grow; a thread left by each case would be a hundred
    "files": lambda cases: 2,  # one that is being closed
}
