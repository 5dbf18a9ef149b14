# SPDX-License-Identifier: Apache-2.0
"""A training with Horovod: images per second with delivered batches, and with every rank's data in its own memory.

    python benchmarks/training.py                    # a rank for each core; about three minutes
    python benchmarks/training.py --docs             # and publish it in docs/

Needs Horovod and mpi4py. Writes training.json, .md and .png to --out. Status 1: something failed or is missing.
"""

from __future__ import annotations

import os
import statistics
import sys
from typing import Any

import launch
import machine
from page import COLOURS, defined, prose, table, write

OURS = "horovod_data, global"
AIM = 0.98


def beside(ours: dict[str, Any], other: dict[str, Any]) -> float:
    """The median of the rounds' ratios.

    Ratios are needed because the machine's own pace drifts by more than the difference.
    """
    return float(statistics.median(a / b for a, b in zip(ours["images"], other["images"])))


def main() -> int:
    parser = launch.options(__doc__, limit=600)
    parser.set_defaults(rounds=9)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--ranks", type=int, nargs="+", default=[min(4, max(2, cores))])
    parser.add_argument("--batch", type=int, default=64, help="images of one rank's batch")
    parser.add_argument("--steps", type=int, default=200, help="of a round and way")
    arguments = launch.parsed(parser, ranks=[2], batch=8, steps=3)
    told: dict[str, Any] = {
        "machine": machine.describe(),
        "rounds": arguments.rounds,
        "batch": arguments.batch,
        "steps": arguments.steps,
    }
    results: list[dict[str, Any]] = []
    for ranks in arguments.ranks:
        results += launch.run("training", ranks, arguments, {"batch": arguments.batch, "steps": arguments.steps})
    told["results"] = results

    text = [
        prose(
            "A convolutional network with two layers learns synthetic images of 32 x 32 x 3 bytes, on one thread. A rank gets "
            f"{arguments.batch} images in a step. Gradients go through Horovod's allreduce. The table has images per second of all ranks "
            f"together: medians of {arguments.rounds} rounds of {arguments.steps} steps, in turns, in brackets the slowest and the fastest "
            f"round. Processes are on {cores} cores, not bound."
        ),
        *defined(
            {
                "horovod_data, global": "rank 0 reads all images from its memory, makes global batches, and also trains",
                "Tensors": "every rank has its batches ready as tensors",
                "A dataset of each rank's own": "every rank makes batches of images in its memory",
                "Horovod_data beside it": "the speed of horovod_data over that of the row: the median of the rounds' ratios",
            }
        ),
    ]
    rows, summary_rows = [], []
    for ranks in arguments.ranks:
        group = [r for r in results if r["ranks"] == ranks]
        ours = next((r for r in group if r["name"] == OURS), None)
        for r in group if ours else []:
            figure = f"{beside(ours, r):.3f}" if r is not ours else ""
            rows.append(
                [
                    f"{ranks} ranks, {r['name']}",
                    f"{statistics.median(r['images']):,.0f} ({min(r['images']):,.0f}-{max(r['images']):,.0f})",
                    figure,
                ]
            )
            summary_rows.append([f"{ranks} ranks, {r['name']}", f"{statistics.median(r['images']):,.0f}", figure])
    text += table(["", "images/s", "horovod_data beside it"], rows)

    def draw(pyplot: Any) -> Any:
        figure, axis = pyplot.subplots(figsize=(8, 1 + 0.5 * len(results)))
        shown = results[::-1]
        middle = [statistics.median(r["images"]) for r in shown]
        axis.barh(
            [f"{r['ranks']} ranks, {r['name']}" for r in shown],
            middle,
            color=[COLOURS[r["kind"]] for r in shown],
            xerr=[
                [m - min(r["images"]) for m, r in zip(middle, shown)],
                [max(r["images"]) - m for m, r in zip(middle, shown)],
            ],
        )
        axis.set_xlabel("images/s of all ranks together")
        return figure

    write(
        "training",
        told,
        text,
        table(["", "images/s", f"horovod_data beside it; our aim: {AIM}"], summary_rows),
        arguments,
        draw,
    )
    return 0 if len(rows) == 3 * len(arguments.ranks) else 1


if __name__ == "__main__":
    sys.exit(main())
