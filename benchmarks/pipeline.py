# SPDX-License-Identifier: Apache-2.0
"""A real pipeline (TFRecord files, parse_example, decode_raw, batch), delivered to N ranks, and alone in one process.

    python benchmarks/pipeline.py                    # 4 ranks, batches of 64 rows of 16 KiB; about three minutes
    python benchmarks/pipeline.py --docs             # and publish it in docs/

One reader can't deliver faster than its pipeline yields, so the ratio of the two rates shows the cost of delivery. The
benchmark also counts the bytes that the whole job reads for one epoch. Writes pipeline.json, .md and .png to --out.
"""

from __future__ import annotations

import os
import statistics
import sys
from typing import Any

import launch
import machine
import page

ALONE = "pipeline alone"
WAYS = 6  # the number of ways in ranks/pipeline.py
# Where the processes run. A bound process shares its core with its pipeline's threads.
KERNEL, BOUND = "not pinned", "a core each"
BINDING = {"OMPI_MCA_hwloc_base_binding_policy": "core", "HYDRA_BINDING": "core"}


def rates(result: dict[str, Any]) -> list[float]:
    """Each round's rate: the elements per second that the pipeline yields, or that are delivered."""
    return [result["steps"] * result["elements_per_step"] / seconds for seconds in result["seconds"]]


def share(result: dict[str, Any], alone: dict[str, Any]) -> float:
    """The rate divided by the pipeline's own: the median of the ratios of neighbouring turns."""
    return float(statistics.median(r / a for r, a in zip(rates(result), rates(alone))))


def limit(good: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The faster of the limits whose ranks only iterate. No way can be faster on these cores."""
    found = [r for r in good if r["name"].startswith("limit: ranks only iterate")]
    return max(found, key=lambda r: statistics.median(rates(r)), default=None)


def times_read(result: dict[str, Any]) -> str:
    return "" if result["times_read"] is None else f"{result['times_read']:.3f}"


def copied(result: dict[str, Any]) -> str:
    """Copies that horovod_data makes, for each byte that went to another rank."""
    if result["epoch"] is None:
        return ""
    count = {name.removeprefix("payload_bytes_"): value for name, value in result["epoch"].items()}
    sent = count["inline"] + count["arena"] + count["message"]
    return f"{(count['inline'] + count['copied_to_arena'] + count['realigned']) / sent:.3f}" if sent else ""


def main() -> int:
    parser = launch.options(__doc__, seconds=1.0)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rows", type=int, default=64, help="of a batch")
    parser.add_argument("--row-bytes", type=int, default=16 << 10)
    parser.add_argument("--batches", type=int, default=128, help="in the files; they are read again and again")
    parser.add_argument("--parallel", type=int, default=0, help="calls of the parser; -1: AUTOTUNE")
    arguments = launch.parsed(parser, ranks=2, rows=8, row_bytes=1 << 10, batches=16)
    given = {
        "rows": arguments.rows,
        "row_bytes": arguments.row_bytes,
        "batches": arguments.batches,
        "parallel": arguments.parallel,
    }
    told: dict[str, Any] = {"machine": machine.describe(), "rounds": arguments.rounds, **given}
    cores = len(os.sched_getaffinity(0))
    results = launch.run("pipeline", arguments.ranks, arguments, given)
    bound_ranks = 0 if arguments.quick else min(arguments.ranks, cores)
    bound = launch.run("pipeline", bound_ranks, arguments, given, env=BINDING) if bound_ranks > 1 else []
    told |= {"results": results, "bound": bound}
    settings = [(arguments.ranks, KERNEL, results), *([(bound_ranks, BOUND, bound)] if bound_ranks > 1 else [])]
    good = [r for r in results if not r["error"]]
    if not all(any(r["name"] == ALONE and not r["error"] for r in group) for *_, group in settings):
        print("[bench] the pipeline alone was not measured", file=sys.stderr)
        return 1

    calls = {0: "no parallel calls", -1: "in parallel (AUTOTUNE)"}.get(
        arguments.parallel, f"{arguments.parallel} at a time"
    )
    text = [
        page.prose(
            f"The pipeline reads TFRecord files: `parse_single_example`, `decode_raw` ({calls}), `batch({arguments.rows})`. Elements have "
            f"{arguments.rows} rows of {page.size_name(arguments.row_bytes)}, and the files have {arguments.batches} elements. "
            f"{arguments.ranks} ranks train, and rank 0 reads. Figures are medians of {arguments.rounds} rounds of about "
            f"{arguments.seconds:.2g} s, in brackets the slowest and the fastest round. All rows run in turns in one job."
        ),
        *page.defined(
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
    summary_rows = []
    for ranks, place, group in settings:
        here = [r for r in group if not r["error"]]
        alone, most = next(r for r in here if r["name"] == ALONE), limit(here)
        compared = {
            r["name"]: [
                f"{share(r, alone):.3f}",
                f"{share(r, most):.3f}" if most else "",
                times_read(r),
                copied(r),
            ]
            for r in here
        }
        text += [
            "",
            f"**{ranks} ranks on {cores} cores, {place}**",
            *page.table(
                ["", "elements/s", "of alone", "of the limit", "times read", "copies"],
                [
                    [
                        r["name"],
                        f"{statistics.median(rates(r)):,.0f} ({min(rates(r)):,.0f}-{max(rates(r)):,.0f})",
                        *compared[r["name"]],
                    ]
                    for r in here
                ],
            ),
            *[f"{r['name']} failed: {r['error']}" for r in group if r["error"]],
        ]
        summary_rows += [[f"{ranks} ranks, {place}: {r['name']}", *compared[r["name"]]] for r in here]
    summary = page.table(
        ["", "speed / pipeline alone", "speed / ranks only iterate", "times the dataset is read", "copies"],
        summary_rows,
    )

    def draw(pyplot: Any) -> Any:
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 2.8), sharey=True)
        names, colours = [r["name"] for r in good[::-1]], [page.COLOURS[r["kind"]] for r in good[::-1]]
        left.barh(names, [statistics.median(rates(r)) for r in good[::-1]], color=colours)
        left.set_xlabel(f"elements/s, {arguments.ranks} ranks")
        right.barh(names, [r["times_read"] or 0 for r in good[::-1]], color=colours)
        right.set_xlabel("times the dataset is read in an epoch")
        return figure

    page.write("pipeline", told, text, summary, arguments, draw)
    return 0 if all(len(group) == WAYS and not any(r["error"] for r in group) for *_, group in settings) else 1


if __name__ == "__main__":
    sys.exit(main())
