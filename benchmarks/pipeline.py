# SPDX-License-Identifier: Apache-2.0
"""A real pipeline (TFRecord files, parse_example, decode_raw, batch), delivered to N ranks, and alone in one process.

    python benchmarks/pipeline.py                    # 4 ranks, batches of 64 rows of 16 KiB; about three minutes
    python benchmarks/pipeline.py --docs             # and publish it in docs/

One reader can't deliver faster than its pipeline yields, so the ratio of the two rates shows the cost of delivery. The
benchmark also counts the bytes that the whole job reads for one epoch. Writes pipeline.json and .md to --out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from statistics import median

import launch
from page import Result, defined, ratio, size_name, spread, table, write


def rates(result: Result) -> list[float]:
    """Each round's rate: the elements per second that the pipeline yields, or that are delivered."""
    return [result["steps"] * result["elements_per_step"] / seconds for seconds in result["seconds"]]


def copied(result: Result) -> str:
    """Copies that horovod_data makes, for each byte that went to another rank."""
    if result["epoch"] is None:
        return ""
    count = {name.removeprefix("payload_bytes_"): value for name, value in result["epoch"].items()}
    sent = count["inline"] + count["arena"] + count["message"]
    return f"{(count['inline'] + count['copied_to_arena'] + count['realigned']) / sent:.3f}" if sent else ""


def columns(results: list[Result]) -> dict[str, Callable[[Result], str]]:
    alone = next(r for r in results if r["name"] == "pipeline alone")
    # The faster of the limits whose ranks only iterate. No way can be faster on these cores.
    limits = [r for r in results if r["name"].startswith("limit: ranks only iterate")]
    limit = max(limits, key=lambda r: median(rates(r)))
    return {
        "": lambda r: r["name"],
        "elements/s": lambda r: spread(rates(r)),
        "of alone": lambda r: f"{ratio(rates(r), rates(alone)):.3f}",
        "of the limit": lambda r: f"{ratio(rates(r), rates(limit)):.3f}",
        "times read": lambda r: "" if r["times_read"] is None else f"{r['times_read']:.3f}",
        "copies": copied,
    }


def main() -> int:
    # rows: of a batch. batches: in the files, which are read again and again. parallel: calls of the parser; -1:
    # AUTOTUNE.
    settings = {"ranks": 4, "rows": 64, "row_bytes": 16 << 10, "batches": 128, "parallel": 0}
    quick = {"ranks": 2, "rows": 8, "row_bytes": 1 << 10, "batches": 16}
    arguments = launch.parsed(__doc__, quick, seconds=1.0, **settings)
    cores = len(os.sched_getaffinity(0))
    results = launch.run("pipeline", arguments.ranks, arguments)
    groups = [(arguments.ranks, "not pinned", results)]
    # A bound process shares its core with its pipeline's threads.
    bound_ranks = min(arguments.ranks, cores)
    if bound_ranks > 1 and not arguments.quick:
        bound = launch.run("pipeline", bound_ranks, arguments, env=launch.BINDING)
        groups.append((bound_ranks, "a core each", bound))
    calls = {0: "no parallel calls", -1: "in parallel (AUTOTUNE)"}.get(
        arguments.parallel, f"{arguments.parallel} at a time"
    )
    text = [
        f"The pipeline reads TFRecord files: `parse_single_example`, `decode_raw` ({calls}), `batch({arguments.rows})`. Elements have "
        f"{arguments.rows} rows of {size_name(arguments.row_bytes)}, and the files have {arguments.batches} elements. "
        f"{arguments.ranks} ranks train, and rank 0 reads. Figures are medians of {arguments.rounds} rounds of about "
        f"{arguments.seconds:.2g} s, in brackets the slowest and the fastest round. All rows run in turns in one job.",
        *defined(
            {
                "Of alone": "the speed divided by that of the pipeline alone; the median of the rounds' ratios",
                "Times read": "bytes that all ranks together asked the kernel for in one epoch (`/proc/self/io`), divided by the size of the files",
                "Copies": "bytes that horovod_data copied between the pipeline's `batch` and the ranks' tensors, for each byte that went to "
                "another rank. MPI's own copies of messages do not count",
                "Ranks only iterate": "the pipeline runs on the reader, and nothing is delivered. For each element of the pipeline each "
                "rank takes an element from its own memory. The name of the row says how many steps a rank may be ahead of "
                "another one. If ranks share cores, this is the limit for `global`",
                "Of the limit": "the speed divided by that of the faster row *ranks only iterate*; the median of the rounds' ratios",
            }
        ),
        "Sharding whole files also reads them once, but needs as many files as ranks, all of the same length.",
    ]
    for ranks, place, group in groups:
        good = [r for r in group if not r["error"]]
        text += ["", f"**{ranks} ranks on {cores} cores, {place}**"]
        text += table(good, columns(good)) if good else []
        text += [f"{r['name']} failed: {r['error']}" for r in group if r["error"]]
    return write("pipeline", arguments, text, results=results, bound=groups[1][2] if groups[1:] else [])


if __name__ == "__main__":
    sys.exit(main())
