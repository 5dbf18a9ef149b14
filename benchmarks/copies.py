# SPDX-License-Identifier: Apache-2.0
"""Compares the copied path with memcpy of the same bytes on the same cores. Measures the path without copies by batch
size.

    python benchmarks/copies.py                      # 2 ranks; 1 KiB to 64 MiB; about ten minutes
    python benchmarks/copies.py --docs               # and publish it in docs/

Needs mpi4py. Writes copies.json and .md to --out. Status 1: something failed.
"""

from __future__ import annotations

import os
import sys
from statistics import median

import launch
from page import Result, defined, prose, ratio, size_name, table, write

LEAST_COPIED = 64 << 10  # bytes: smaller batches travel in their header, and the copy is a small part of their cost
ZERO_COPY, COPIED = "batch", ("generator", "flat_map")


def rates(result: Result) -> list[float]:
    """Copied bytes per second of dealing. The reader's own batch is not copied, but its dealing time counts."""
    return [part * result["bytes"] / deal for part, deal in zip(result["copied"], result["deal"])]


def memcpy_rates(result: Result) -> list[float]:
    return [result["bytes"] / seconds for seconds in result["memcpy"]]


def us(result: Result, *parts: str) -> str:
    return f"{1e6 * sum(median(result[part]) for part in parts):.1f}"


FREE = {
    "bytes": lambda r: size_name(r["bytes"]),
    "deal, us": lambda r: us(r, "deal"),
    "receive, us": lambda r: us(r, "receive"),
    "both, us": lambda r: us(r, "deal", "receive"),
    "memcpy, us": lambda r: us(r, "memcpy"),
    "a step, us": lambda r: us(r, "step"),
    "copied": lambda r: f"{median(r['copied']):.3f}",
}
WITH_COPY = {
    "pipeline, bytes": lambda r: f"{r['pipeline']}, {size_name(r['bytes'])}",
    "dealing, GB/s": lambda r: f"{median(rates(r)) / 1e9:.2f}",
    "memcpy, GB/s": lambda r: f"{median(memcpy_rates(r)) / 1e9:.2f}",
    "of memcpy's rate": lambda r: f"{ratio(rates(r), memcpy_rates(r)):.3f}",
    "a step, us": lambda r: us(r, "step"),
    "copied": lambda r: f"{median(r['copied']):.3f}",
    "no room in shared memory": lambda r: f"{sum(r['refused']):g}",
}


def main() -> int:
    sizes = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
    quick = {"bytes": [4 << 10, 64 << 10], "window": 1 << 20}
    arguments = launch.parsed(__doc__, quick, seconds=0.3, limit=900.0, bytes=sizes, window=256 << 20)
    results = launch.run("copies", 2, arguments, {"pipelines": [ZERO_COPY, *COPIED]})
    text = [
        prose(f"""
        Two ranks on {len(os.sched_getaffinity(0))} cores, not bound, with `batch="per_rank"` and default settings. Rank 0 reads.
        Figures are medians of {arguments.rounds} rounds of about {arguments.seconds:.2g} s."""),
        *defined(
            {
                "Deal": "the reader's time to cut, copy and send a batch, without its pipeline, by the engine's clocks "
                "(`hvdata.stats()`)",
                "Receive": "a rank's time to make a tensor of a batch, by the same clocks",
                "A step": "the time until both ranks have their batch, with the pipeline's time. Between two steps the ranks "
                "sleep for as long as a step took. The copied pipelines make no element ahead",
                "Copied": "the part of the dealt bytes that horovod_data copied into shared memory. The reader does not copy its "
                "own batches",
                "Dealing, GB/s": "the copied bytes over the whole time of dealing",
                "memcpy": "a copy of the same bytes in the reader's process, right after each round, while the other rank sleeps. "
                f"Each copy goes to the next place in a memory of {size_name(arguments.window)}. From 8 MiB on it is the faster "
                "of one thread and of as many threads as horovod_data uses",
            }
        ),
        "## Not copied: a pipeline that ends in batch",
        *table([r for r in results if r["pipeline"] == ZERO_COPY], FREE),
        "## Copied",
        *table([r for r in results if r["pipeline"] in COPIED and r["bytes"] >= LEAST_COPIED], WITH_COPY),
    ]
    return write("copies", arguments, text, results=results)


if __name__ == "__main__":
    sys.exit(main())
