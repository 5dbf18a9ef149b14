# SPDX-License-Identifier: Apache-2.0
"""How the cost grows with the number of ranks, and with the size of a batch. It should have no cliff.

    python benchmarks/growth.py                      # 1 to 16 ranks, 1 KiB to 64 MiB; about 25 minutes
    python benchmarks/growth.py --docs               # and publish it in docs/

Needs Horovod and mpi4py. Writes growth.json and .md to --out. Status 1: something failed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import launch
from page import Result, rate, size_name, table, write

WAYS = ["ours_per_rank", "ours_global", "alltoall", "broadcast"]
SIZES = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]


def microseconds(result: Result) -> float:
    """Microseconds of the whole job for one rank's batch."""
    return float(1e6 / (rate(result) * result["ranks"]))


def part(results: list[Result], key: str, shown: Callable[[int], str]) -> list[str]:
    """A row for each number of ranks or of bytes, a column for each way. Then the steepest growth of our ways."""
    results = [r for r in results if not r["error"]]
    figures = {(r[key], r["name"]): microseconds(r) for r in results}

    def cell(way: str):
        return lambda value: f"{figures[value, way]:,.1f}" if (value, way) in figures else "failed"

    columns = {key: shown, **{way: cell(way) for way in dict.fromkeys(r["name"] for r in results)}}
    lines = table(dict.fromkeys(r[key] for r in results), columns)
    for way in dict.fromkeys(r["name"] for r in results if r["kind"] == "ours"):
        of_way = [r for r in results if r["name"] == way]
        steps = [
            (microseconds(b) / microseconds(a) / max(1.0, b["bytes"] / a["bytes"]), shown(a[key]), shown(b[key]))
            for a, b in zip(of_way, of_way[1:])
        ]
        if steps:
            times, before, after = max(steps)
            lines.append(
                f"- {way}, by {key}: the cost of a batch grows most from {before} to {after}. It grows by a factor of "
                f"{times:.2f}, divided by that of its bytes."
            )
    return lines


def main() -> int:
    # bytes: per rank's batch, at `at` ranks. size: bytes where the ranks grow.
    quick = {"ranks": [1, 2], "bytes": SIZES[:2], "at": 2}
    arguments = launch.parsed(__doc__, quick, seconds=0.3, ranks=[1, 2, 4, 8, 16], bytes=SIZES, at=4, size=64 << 10)
    given = {"only": WAYS, "horovod": True}
    by_ranks = []
    for ranks in arguments.ranks:
        by_ranks += launch.run("delivery", ranks, arguments, {**given, "bytes": [arguments.size]})
    by_bytes = launch.run("delivery", arguments.at, arguments, given)
    text = [
        "The table has microseconds of the whole job for one rank's batch: the time of a step, divided by the number of ranks. These "
        f"are medians of {arguments.rounds} rounds of about {arguments.seconds:.2g} s (24 steps at least), in turns. Elements are "
        "ready-made. Horovod has its default cycle time. "
        f"All ranks are on {len(os.sched_getaffinity(0))} cores.",
        *["", f"**By ranks, {size_name(arguments.size)} per rank**", *part(by_ranks, "ranks", str)],
        *["", f"**By bytes of one rank's batch, {arguments.at} ranks**", *part(by_bytes, "bytes", size_name)],
    ]
    return write("growth", arguments, text, by_ranks=by_ranks, by_bytes=by_bytes)


if __name__ == "__main__":
    sys.exit(main())
