# SPDX-License-Identifier: Apache-2.0
"""A training with Horovod: images per second with delivered batches, and with every rank's data in its own memory.

    python benchmarks/training.py                    # a rank for each core; about three minutes
    python benchmarks/training.py --docs             # and publish it in docs/

Needs Horovod and mpi4py. Writes training.json and .md to --out. Status 1: something failed.
"""

from __future__ import annotations

import os
import sys

import launch
from page import Result, defined, ratio, spread, table, write

OURS = "horovod_data, global"


def main() -> int:
    cores = len(os.sched_getaffinity(0))
    # batch: images of one rank's batch. steps: of a round and way.
    settings = {"rounds": 9, "ranks": [min(4, max(2, cores))], "batch": 64, "steps": 200}
    arguments = launch.parsed(__doc__, {"ranks": [2], "batch": 8, "steps": 3}, limit=600.0, **settings)
    text = [
        "A convolutional network with two layers learns synthetic images of 32 x 32 x 3 bytes, on one thread. A rank gets "
        f"{arguments.batch} images in a step. Gradients go through Horovod's allreduce. The table has images per second of all ranks "
        f"together: medians of {arguments.rounds} rounds of {arguments.steps} steps, in turns, in brackets the slowest and the fastest "
        f"round. Processes are on {cores} cores, not bound.",
        *defined(
            {
                "horovod_data, global": "rank 0 reads all images from its memory, makes global batches, and also trains",
                "Tensors": "every rank has its batches ready as tensors",
                "A dataset of each rank's own": "every rank makes batches of images in its memory",
                "Horovod_data beside it": "the speed of horovod_data divided by the speed in this row, the median over the rounds",
            }
        ),
    ]
    results = []
    rows: list[tuple[Result, Result]] = []  # with ours of the same job
    for ranks in arguments.ranks:
        group = launch.run("training", ranks, arguments)
        results += group
        rows += [(r, ours) for ours in group if ours["name"] == OURS for r in group]
    columns = {
        "": lambda row: f"{row[0]['ranks']} ranks, {row[0]['name']}",
        "images/s": lambda row: spread(row[0]["images"]),
        "horovod_data beside it": lambda row: (
            f"{ratio(row[1]['images'], row[0]['images']):.3f}" if row[0] is not row[1] else ""
        ),
    }
    return write("training", arguments, [*text, *table(rows, columns)], results=results)


if __name__ == "__main__":
    sys.exit(main())
