# SPDX-License-Identifier: Apache-2.0
"""The cost of the times of hvdata.stats(): the clocks' part of a step of 4 KiB, on a rank and on its reader.

    mpirun -np 2 python benchmarks/clocks.py
    mpirun -np 2 python benchmarks/clocks.py --quick     # tries if it runs

Each rank takes ready-made batches as fast as it can, so delivery alone limits the step. Between these rounds, a loop
measures the time of one turn of a clock. The loop uses the library's own header (csrc/base/stopwatch.h), and needs a
C++ compiler. Prints the medians of the rounds, and the median of the rounds' ratios.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

import horovod_data as hvdata

QUICK = "--quick" in sys.argv[1:]
ROUNDS, STEPS, BYTES = (2, 50, 4 << 10) if QUICK else (15, 4000, 4 << 10)
TURNS = 2_000_000
# The most turns of clocks in one step. A rank that waits: receives, waits, receives, steps. A reader, for each rank's
# element: pulls, deals, and two more if a window was full.
TURNS_OF_RANK, TURNS_OF_READER = 4, 4
PROGRAM = """
#include <chrono>
#include <cstdio>
#include "base/stopwatch.h"
enum class Does { kNothing, kWaits, kWorks, kCount };
int main() {
  hvdata::Stopwatch<Does> watch;
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < %d; ++i) watch.TurnTo(i %% 2 ? Does::kWaits : Does::kWorks);
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - began;
  std::printf("%%g\\n", took.count() / %d);
}
""" % (TURNS, TURNS)


def main() -> None:
    hvdata.init()
    rank, ranks = hvdata.rank(), hvdata.size()
    batch = tf.data.Dataset.from_tensors(np.zeros(BYTES, np.uint8)).repeat(STEPS * ranks)
    dataset = hvdata.distribute_dataset(batch, batch="per_rank", name="steps")
    turns, steps, shares = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "turns")
        if rank == 0:
            source = Path(folder, "turns.cc")
            source.write_text(PROGRAM)
            rooms = Path(__file__).resolve().parent.parent / "csrc"
            subprocess.run(
                [os.environ.get("CXX", "c++"), "-std=c++17", "-O2", f"-I{rooms}", source, "-o", program], check=True
            )
        for _ in range(ROUNDS):
            began = time.perf_counter()
            for _ in dataset:
                pass
            step = (time.perf_counter() - began) / STEPS
            if rank == 0:
                turn = 1e-9 * float(subprocess.run([program], capture_output=True, text=True, check=True).stdout)
                turns.append(turn), steps.append(step)
                shares.append(turn * (TURNS_OF_RANK + TURNS_OF_READER * ranks) / step)
    if rank == 0:
        print(
            f"a turn of a clock: {statistics.median(turns) * 1e9:.0f} ns; a step of {ranks} x {BYTES >> 10} KiB: "
            f"{statistics.median(steps) * 1e6:.0f} us; turns in it, on rank 0, which reads and trains: at most "
            f"{TURNS_OF_RANK + TURNS_OF_READER * ranks}; their part of it: {statistics.median(shares):.2%} "
            f"({min(shares):.2%} to {max(shares):.2%})",
            flush=True,
        )
    hvdata.shutdown()


if __name__ == "__main__":
    main()
