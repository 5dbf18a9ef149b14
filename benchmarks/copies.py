# SPDX-License-Identifier: Apache-2.0
"""Compares the copied path with memcpy of the same bytes on the same cores. Measures the path without copies by batch
size.

    python benchmarks/copies.py                      # 2 ranks; 1 KiB to 64 MiB; about ten minutes
    python benchmarks/copies.py --docs               # and publish it in docs/

Needs mpi4py. Writes copies.json, .md and .png to --out. Status 1: something failed or is missing.
"""

from __future__ import annotations

import os
import statistics
import sys
from typing import Any

import launch
import machine
from page import COLOURS, defined, prose, size_name, table, write

SIZES = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
LEAST_COPIED = 64 << 10  # bytes: smaller batches travel in their header, and the copy is a small part of their cost
ZERO_COPY, COPIED = "batch", ("generator", "flat_map")


def middle(result: dict[str, Any], what: str) -> float:
    return float(statistics.median(result[what]))


def of_memcpy(result: dict[str, Any]) -> float:
    """The rate of dealing over memcpy's rate, for copied batches only: the median of the rounds' ratios."""
    return float(
        statistics.median(
            part * memcpy / deal for part, memcpy, deal in zip(result["copied"], result["memcpy"], result["deal"])
        )
    )


def copied_rate(result: dict[str, Any]) -> float:
    """Copied bytes per second of dealing. The reader's own batch is not copied, but its dealing time counts."""
    return float(
        statistics.median(part * result["bytes"] / deal for part, deal in zip(result["copied"], result["deal"]))
    )


def microseconds(result: dict[str, Any], *parts: str) -> float:
    return 1e6 * sum(middle(result, part) for part in parts)


def main() -> int:
    parser = launch.options(__doc__, seconds=0.3, limit=900)
    parser.add_argument("--bytes", type=int, nargs="+", default=SIZES, help="of one rank's batch")
    parser.add_argument(
        "--window", type=int, default=256 << 20, help="bytes that memcpy's sources, and its targets, lie in"
    )
    arguments = launch.parsed(parser, bytes=[4 << 10, 64 << 10], window=1 << 20)
    told: dict[str, Any] = {"machine": machine.describe(), "rounds": arguments.rounds, "window": arguments.window}
    given = {"bytes": arguments.bytes, "window": arguments.window, "pipelines": [ZERO_COPY, *COPIED]}
    results = told["results"] = launch.run("copies", 2, arguments, given)

    free = [r for r in results if r["pipeline"] == ZERO_COPY]
    copied = [r for r in results if r["pipeline"] in COPIED and r["bytes"] >= LEAST_COPIED]
    text = [
        prose(f"""
        Two ranks on {len(os.sched_getaffinity(0))} cores, not bound, with `batch="per_rank"` and default settings. Rank 0 reads. Figures are
        medians of {arguments.rounds} rounds of about {arguments.seconds:.2g} s."""),
        *defined(
            {
                "Deal": """the reader's time to cut, copy and send a batch, without its pipeline, by the engine's clocks
                (`hvdata.stats()`)""",
                "Receive": "a rank's time to make a tensor of a batch, by the same clocks",
                "A step": """the time until both ranks have their batch, with the pipeline's time. Between two steps the ranks sleep for as long as
                a step took. The copied pipelines make no element ahead""",
                "Copied": """the part of the dealt bytes that horovod_data copied into shared memory. The reader does not copy its own
                batches""",
                "Dealing, GB/s": "the copied bytes over the whole time of dealing",
                "memcpy": f"""a copy of the same bytes in the reader's process, right after each round, while the other rank sleeps. Each
                copy goes to the next place in a memory of {size_name(arguments.window)}. From 8 MiB on it is the faster of one
                thread and of as many threads as horovod_data uses""",
            }
        ),
        "## Not copied: a pipeline that ends in batch",
        *table(
            ["bytes", "deal, us", "receive, us", "both, us", "memcpy, us", "a step, us", "copied"],
            [
                [
                    size_name(r["bytes"]),
                    f"{microseconds(r, 'deal'):.1f}",
                    f"{microseconds(r, 'receive'):.1f}",
                    f"{microseconds(r, 'deal', 'receive'):.1f}",
                    f"{microseconds(r, 'memcpy'):.1f}",
                    f"{microseconds(r, 'step'):.1f}",
                    f"{middle(r, 'copied'):.3f}",
                ]
                for r in free
            ],
        ),
        "",
        "## Copied",
        *table(
            [
                "pipeline, bytes",
                "dealing, GB/s",
                "memcpy, GB/s",
                "of memcpy's rate",
                "a step, us",
                "copied",
                "no room in shared memory",
            ],
            [
                [
                    f"{r['pipeline']}, {size_name(r['bytes'])}",
                    f"{copied_rate(r) / 1e9:.2f}",
                    f"{r['bytes'] / middle(r, 'memcpy') / 1e9:.2f}",
                    f"{of_memcpy(r):.3f}",
                    f"{microseconds(r, 'step'):.1f}",
                    f"{middle(r, 'copied'):.3f}",
                    f"{sum(r['refused']):g}",
                ]
                for r in copied
            ],
        ),
    ]
    costs = {r["bytes"]: microseconds(r, "deal", "receive") for r in free}
    summary = []
    if costs:
        summary += [
            f"- A batch that is not copied costs {min(costs.values()):.1f} to {max(costs.values()):.1f} us, from "
            f"{size_name(min(costs))} to {size_name(max(costs))}."
        ]
    summary += table(
        ["copied", "of memcpy's rate"],
        [[f"{r['pipeline']}, {size_name(r['bytes'])}", f"{of_memcpy(r):.2f}"] for r in copied],
    )

    def draw(pyplot: Any) -> Any:
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4))
        left.plot(
            [r["bytes"] for r in free],
            list(costs.values()),
            "-o",
            color=COLOURS["ours"],
            label="deal and receive, not copied",
        )
        left.plot(
            [r["bytes"] for r in free],
            [microseconds(r, "memcpy") for r in free],
            "--",
            color=COLOURS["limit"],
            label="memcpy",
        )
        for pipeline, style in zip(COPIED, ("-o", ":s")):
            line = [r for r in copied if r["pipeline"] == pipeline]
            right.plot([r["bytes"] for r in line], [of_memcpy(r) for r in line], style, label=pipeline)
        right.axhline(0.9, color=COLOURS["limit"])
        for axis in (left, right):
            axis.set_xscale("log", base=2)
            axis.set_xticks(arguments.bytes, [size_name(size) for size in arguments.bytes], rotation=30)
            axis.legend()
        left.set_yscale("log")
        left.set_ylabel("us for a batch")
        right.set_ylabel("rate of dealing over memcpy's")
        return figure

    write("copies", told, text, summary, arguments, draw)
    return 0 if len(results) == len(arguments.bytes) * (1 + len(COPIED)) else 1


if __name__ == "__main__":
    sys.exit(main())
