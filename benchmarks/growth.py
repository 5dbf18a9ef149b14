# SPDX-License-Identifier: Apache-2.0
"""How the cost grows with the number of ranks, and with the size of a batch. A plot should have no cliff.

    python benchmarks/growth.py                      # 1 to 16 ranks, 1 KiB to 64 MiB; about 25 minutes
    python benchmarks/growth.py --docs               # and publish it in docs/

Needs Horovod and mpi4py. Writes growth.json, .md and .png to --out. Status 1: something failed or is missing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import launch
import machine
from delivery_report import rate
from page import prose, size_name, table, write

WAYS = ["ours_per_rank", "ours_global", "alltoall", "broadcast"]
SIZES = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
STYLES = {"ours": "-o", "rival": ":s", "limit": "--"}

Results = list[dict[str, Any]]


def microseconds(result: dict[str, Any]) -> float:
    """Microseconds of the whole job for one rank's batch."""
    return float(1e6 / (rate(result) * result["ranks"]))


def grid(results: Results, key: str, name: Any) -> list[str]:
    """A row for each number of ranks or of bytes, a column for each way."""
    names = list(dict.fromkeys(r["name"] for r in results))
    rows = []
    for value in dict.fromkeys(r[key] for r in results):
        found = {r["name"]: f"{microseconds(r):,.1f}" for r in results if r[key] == value and not r["error"]}
        rows.append([name(value), *[found.get(way, "failed") for way in names]])
    return table([key, *names], rows)


def steepest(results: Results, key: str, way: str) -> tuple[float, Any, Any]:
    """The largest growth of a batch's cost from one value to the next, beyond the growth of its bytes; the two values."""
    line = [r for r in results if r["name"] == way and not r["error"]]
    steps = [
        (microseconds(b) / microseconds(a) / max(1.0, b["bytes"] / a["bytes"]), a[key], b[key])
        for a, b in zip(line, line[1:])
    ]
    return max(steps, default=(1.0, None, None))


def main() -> int:
    parser = launch.options(__doc__, seconds=0.3)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--bytes", type=int, nargs="+", default=SIZES, help="per rank's batch, at --at ranks")
    parser.add_argument("--at", type=int, default=4, help="ranks where the bytes grow")
    parser.add_argument("--size", type=int, default=64 << 10, help="bytes where the ranks grow")
    arguments = launch.parsed(parser, ranks=[1, 2], bytes=SIZES[:2], at=2)
    told: dict[str, Any] = {"machine": machine.describe(), "rounds": arguments.rounds}
    by_ranks: Results = []
    for ranks in arguments.ranks:
        by_ranks += launch.run("delivery", ranks, arguments, {"bytes": [arguments.size], "only": WAYS, "horovod": True})
    by_bytes = launch.run(
        "delivery", arguments.at, arguments, {"bytes": arguments.bytes, "only": WAYS, "horovod": True}
    )
    told |= {"by_ranks": by_ranks, "by_bytes": by_bytes}

    parts: list[tuple[Results, str, Callable[[int], str], str]] = [
        (by_ranks, "ranks", str, f"By ranks, {size_name(arguments.size)} per rank"),
        (by_bytes, "bytes", size_name, f"By bytes of one rank's batch, {arguments.at} ranks"),
    ]
    text = [
        prose(
            "The table has microseconds of the whole job for one rank's batch: the time of a step, divided by the number of ranks. These "
            f"are medians of {arguments.rounds} rounds of about {arguments.seconds:.2g} s (24 steps at least), in turns. Elements are "
            "ready-made. Horovod has its default cycle time. "
            f"All ranks are on {len(os.sched_getaffinity(0))} cores."
        ),
    ]
    summary: list[str] = []
    for results, key, name, title in parts:
        text += ["", f"**{title}**", *grid(results, key, name)]
        for way in dict.fromkeys(r["name"] for r in results if r["kind"] == "ours"):
            times, before, after = steepest(results, key, way)
            if after is not None:
                summary.append(
                    f"- {way}, by {key}: the cost of a batch grows most from {name(before)} to {name(after)}. It grows by a factor of "
                    f"{times:.2f}, divided by that of its bytes."
                )

    def draw(pyplot: Any) -> Any:
        figure, axes = pyplot.subplots(1, 2, figsize=(11, 4))
        for axis, (results, key, name, title) in zip(axes, parts):
            for way in dict.fromkeys(r["name"] for r in results):
                line = [r for r in results if r["name"] == way and not r["error"]]
                axis.plot([r[key] for r in line], [microseconds(r) for r in line], STYLES[line[0]["kind"]], label=way)
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            values = list(dict.fromkeys(r[key] for r in results))
            axis.set_xticks(values, [name(value) for value in values], rotation=30)
            axis.set_title(title)
            axis.set_ylabel("µs for one rank's batch")
            axis.legend()
        return figure

    write("growth", told, text, summary, arguments, draw)
    expected = len(WAYS) * (len(arguments.ranks) + len(arguments.bytes))
    measured = by_ranks + by_bytes
    return 0 if len(measured) == expected and not any(r["error"] for r in measured) else 1


if __name__ == "__main__":
    sys.exit(main())
