# SPDX-License-Identifier: Apache-2.0
"""The cost of an empty step after a batch of some size has been written, when caches and TLBs have other contents.

    python benchmarks/cold.py
    python benchmarks/cold.py --quick                # tries if it runs

One process, without horovod_data: next() of a dataset of 64 bytes in memory. Prints medians in microseconds.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import tensorflow as tf
from page import size_name, table

SIZES = (1 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)


def microseconds(iterator: object, size: int, rounds: int) -> float:
    source = np.zeros(size, np.uint8)
    batch = np.empty_like(source)
    took = []
    for _ in range(rounds):
        np.copyto(batch, source)
        began = time.perf_counter_ns()
        next(iterator)  # type: ignore[call-overload]
        took.append((time.perf_counter_ns() - began) / 1e3)
    return statistics.median(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    rounds, sizes = (3, SIZES[:2]) if parser.parse_args().quick else (100, SIZES)
    iterator = iter(tf.data.Dataset.from_tensors(tf.zeros([16])).repeat())
    for _ in range(rounds * 20):
        next(iterator)
    rows = [[size_name(size), f"{microseconds(iterator, size, rounds):.1f}"] for size in sizes]
    print("\n".join(table(["written before", "next() of 64 bytes, us"], rows)))


if __name__ == "__main__":
    main()
