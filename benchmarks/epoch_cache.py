# SPDX-License-Identifier: Apache-2.0
"""Epochs over slow storage: cache="job" beside no cache, cache() on the reader, and a cache on each rank.

    sudo python benchmarks/epoch_cache.py            # 4 ranks on 2 hosts, 400 MB, 8 epochs; about 10 minutes
    sudo python benchmarks/epoch_cache.py --docs     # and publish it in docs/

The hosts are simulated on this machine (tests/cluster/bed.py), which needs root and Open MPI. Needs mpi4py. The storage
is a clock that all processes share: 20 MB/s for the whole job. Each way has a job of its own, because memory is measured.
Writes epoch_cache.json and .md to --out. Status 1: something failed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import launch
from page import Result, defined, table, write

sys.path.append(str(launch.HERE.parent / "tests" / "cluster"))
from bed import Bed, why_not  # noqa: E402

NO_CACHE, ON_THE_READER, PER_RANK, OURS = "no cache", "cache() on the reader", "cache() on each rank", 'cache="job"'
READY_MADE, SAVE, RESTORE = "ready-made batches", "save", "restore"
WAYS = (NO_CACHE, ON_THE_READER, PER_RANK, OURS, READY_MADE)


def later(result: Result) -> float:
    """Seconds of an epoch after the first."""
    return float(median(result["seconds"][1:]))


def figures(results: dict[str, Result]) -> list[str]:
    ours, limit = results[OURS], results[READY_MADE]
    columns = {
        "": lambda r: r["name"],
        "all epochs, s": lambda r: f"{sum(r['seconds']):.1f}",
        f"over {OURS}": lambda r: f"{sum(r['seconds']) / sum(ours['seconds']):.2f}",
        "epoch 1, s": lambda r: f"{r['seconds'][0]:.2f}",
        "a later epoch, s": lambda r: f"{later(r):.2f}",
        "pace of ready-made": lambda r: f"{later(limit) / later(r):.2f}",
        "read": lambda r: f"{r['source']:.2f}",
        "memory": lambda r: f"{r['memory']:.2f}",
        "line": lambda r: f"{r['line']:.2f}",
    }
    return table(results.values(), columns)


def main() -> int:
    # rate: of each host's line, both ways. storage: MB/s of the storage, for all ranks together. batch: rows of all ranks
    # in a step.
    settings = {"ranks": 4, "hosts": 2, "rate": "1gbit", "storage": 20.0, "rows": 4000, "row_bytes": 100_000}
    quick = {"rows": 90, "row_bytes": 10_000, "storage": 4.0, "epochs": 3}
    arguments = launch.parsed(__doc__, quick, limit=400.0, batch=64, epochs=8, **settings)
    if reason := why_not():
        sys.exit(f"benchmarks/epoch_cache.py simulates hosts: {reason}")

    def run(bed: Bed, ranks: int, way: str, **more: Any) -> list[Result]:
        places = [rank * arguments.hosts // ranks for rank in range(ranks)]
        mpirun = bed.mpirun(places, {**launch.ENVIRONMENT, **os.environ})
        given = {"way": way, "rate": arguments.storage * 1e6, **more}
        return launch.run("epoch_cache", ranks, arguments, given, env=bed.environment, mpirun=mpirun)

    with Bed(arguments.hosts, arguments.rate) as bed, tempfile.TemporaryDirectory(prefix="hvdata-bench-") as folder:
        found = [one for way in WAYS for one in run(bed, arguments.ranks, way)]
        state = str(Path(folder) / "state")
        resumed = [
            one["right"]
            for ranks, way in ((arguments.ranks, SAVE), (arguments.ranks - 1, RESTORE))
            for one in run(bed, ranks, way, state=state)
        ] == [True, True]
    results = {one["name"]: one for one in found}
    if missing := set(WAYS) - set(results):
        print(f"missing: {', '.join(missing)}", file=sys.stderr)
        return 1
    right = results[OURS]["right"]
    if not right or not resumed:
        launch.FAILED.append("rows in the wrong place")
    megabytes = arguments.rows * arguments.row_bytes / 1e6
    text = [
        f"{arguments.ranks} ranks on {arguments.hosts} hosts, which are network namespaces of one machine with links of {arguments.rate}. The data "
        f"are {arguments.rows:,} rows of {arguments.row_bytes:,} bytes: {megabytes:,.0f} MB. The storage gives {arguments.storage:g} MB/s to the whole job. "
        f"A step has {arguments.batch} rows, and there are {arguments.epochs} epochs.",
        *defined(
            {
                NO_CACHE: "rank 0 reads, and horovod_data delivers. Every epoch reads the storage",
                ON_THE_READER: "the same, with `Dataset.cache()` on the reader. All rows are in the memory of one host, and their order never changes",
                PER_RANK: "each rank reads its part of a permutation of all rows by itself, and keeps the rows that it read first. All hosts together "
                f"have as much memory as with {OURS}",
                OURS: 'horovod_data with `cache="job", shuffle=True`',
                READY_MADE: "rank 0 delivers one batch again and again. Nothing is read",
                f"Over {OURS}": f"the time of all epochs over that of {OURS}",
                "Pace of ready-made": "the time of an epoch of ready-made batches over that of a later epoch",
                "Read, memory, line": "bytes read from the storage in all epochs; growth of the memory of the fullest host; bytes that leave the hosts in an epoch. "
                "Each over the bytes of the data",
            }
        ),
        *figures(results),
        f"With {OURS} all rows are where the definition of the permutation puts them: {'yes' if right else 'no'}. Also after a restore on "
        f"{arguments.ranks - 1} ranks in epoch 3: {'yes' if resumed else 'no'}.",
    ]
    return write("epoch_cache", arguments, text, results=found, resumed=resumed)


if __name__ == "__main__":
    sys.exit(main())
