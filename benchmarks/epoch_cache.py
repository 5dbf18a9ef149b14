# SPDX-License-Identifier: Apache-2.0
"""Epochs over slow storage: cache="job" beside no cache, cache() on the reader, and a cache on each rank.

    sudo python benchmarks/epoch_cache.py            # 4 ranks on 2 hosts, 400 MB, 8 epochs; about 10 minutes
    sudo python benchmarks/epoch_cache.py --docs     # and publish it in docs/

The hosts are simulated on this machine (tests/cluster/bed.py), which needs root and Open MPI. Needs mpi4py. The storage
is a clock that all processes share. Each way has a job of its own, because memory is measured. Writes epoch_cache.json
and .md to --out. Status 1: something failed, or a row was not where it must be.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from statistics import median

import launch
from page import Result, defined, rates, ratio, spread, table, write

sys.path.append(str(launch.HERE.parent / "tests" / "cluster"))
from bed import Bed, why_not  # noqa: E402

NO_CACHE, ON_THE_READER, PER_RANK, OURS = "no cache", "cache() on the reader", "cache() on each rank", 'cache="job"'
READY_MADE, SAVE, RESTORE, IN_MEMORY = "ready-made batches", "save", "restore", "in memory"
WAYS = (NO_CACHE, ON_THE_READER, PER_RANK, OURS, READY_MADE)


def yes_or_no(value: object) -> str:
    return "" if value is None else "yes" if value else "no"


def main() -> int:
    # rate: of each host's line, both ways. storage: MB/s for all ranks together. batch: rows of all ranks in a step,
    # and on_one_host the same of the job on one host.
    settings = {"ranks": 4, "hosts": 2, "rate": "1gbit", "storage": 20.0, "rows": 4000, "row_bytes": 100_000, "batch": 32, "on_one_host": 64, "epochs": 8}  # fmt: skip
    quick = {"rows": 90, "row_bytes": 10_000, "storage": 4.0, "batch": 12, "epochs": 3}
    arguments = launch.parsed(__doc__, quick, limit=400.0, **settings)
    if reason := why_not():
        sys.exit(f"benchmarks/epoch_cache.py simulates hosts: {reason}")

    with Bed(arguments.hosts, arguments.rate) as bed, tempfile.TemporaryDirectory(prefix="hvdata-bench-") as folder:

        def run(ranks: int, way: str) -> list[Result]:
            places = [rank * arguments.hosts // ranks for rank in range(ranks)]
            mpirun = bed.mpirun(places, {**launch.ENVIRONMENT, **os.environ})
            given = {"way": way, "state": str(Path(folder) / "state")}
            return launch.run("epoch_cache", ranks, arguments, given, env=bed.environment, mpirun=mpirun)

        results = [one for way in WAYS for one in run(arguments.ranks, way)]
        resumed = run(arguments.ranks, SAVE) + run(arguments.ranks - 1, RESTORE)
    in_memory = launch.run(
        "epoch_cache", arguments.ranks, arguments, {"way": IN_MEMORY, "batch": arguments.on_one_host}
    )

    by_name = {one["name"]: one for one in results}
    ready = by_name.get(READY_MADE, {"seconds": [0.0, 0.0]})
    columns = {
        "": lambda one: one["name"],
        "all epochs, s": lambda one: f"{sum(one['seconds']):.1f}",
        "epoch 1, s": lambda one: f"{one['seconds'][0]:.2f}",
        "a later epoch, s": lambda one: spread(one["seconds"][1:], 2),
        "pace of ready-made": lambda one: f"{median(ready['seconds'][1:]) / median(one['seconds'][1:]):.2f}",
        "read": lambda one: f"{one['source']:.2f}",
        "memory": lambda one: f"{one['memory']:.2f}",
        "line": lambda one: f"{one['line']:.2f}",
        "in order": lambda one: yes_or_no(one["right"]),
    }
    text = [
        f"{arguments.ranks} ranks are on {arguments.hosts} hosts, which are network namespaces of one machine with links of {arguments.rate}. "
        f"The data are {arguments.rows:,} rows of {arguments.row_bytes:,} bytes: {arguments.rows * arguments.row_bytes / 1e6:,.0f} MB. The storage gives "
        f"{arguments.storage:g} MB/s to the whole job. A step has {arguments.batch} rows, and there are {arguments.epochs} epochs.",
        *defined(
            {
                NO_CACHE: "rank 0 reads, and horovod_data delivers. Every epoch reads the storage",
                ON_THE_READER: "the same, with `Dataset.cache()` on the reader. All rows are in the memory of one host, and their order never changes",
                PER_RANK: "each rank reads its part of a permutation of all rows by itself, and keeps the rows that it read first. All hosts "
                f"together have as much memory as with {OURS}",
                OURS: 'horovod_data with `cache="job", shuffle=True`',
                READY_MADE: "rank 0 delivers one batch again and again. Nothing is read",
                "Pace of ready-made": "the time of a later epoch of ready-made batches over that of a later epoch",
                "Read, memory, line": "bytes read from the storage in all epochs; growth of the memory of the fullest host; bytes that leave the "
                "hosts in an epoch. Each over the bytes of the data. Memory is private memory and the shared memory that processes have made, "
                "after the last epoch. Pages of libraries don't count",
                "In order": "all ranks got the rows that the definition of the permutation gives them, in every epoch",
            }
        ),
        *table(results, columns),
        f"A job of {arguments.ranks} ranks saved in the middle of epoch 3. {arguments.ranks - 1} ranks restored it, and had the right rows in epochs 3 and 4: "
        f"{yes_or_no(len(resumed) == 2 and all(one['right'] for one in resumed))}.",
        "",
        "## On one host",
        "",
        f"{arguments.ranks} ranks are on one host. All rows are in the reader's memory from the start, and nothing limits reads. A step has "
        f"{arguments.on_one_host} rows. *Dataset.shuffle() on the reader* has a buffer for all rows: "
        f"`from_tensor_slices(rows).shuffle({arguments.rows}).batch({arguments.on_one_host})`. Both ways take turns in one job, epoch after epoch. "
        "Figures are of all epochs but the first.",
        *table(
            in_memory,
            {
                "": lambda one: one["name"],
                "steps per second": lambda one: spread(rates(one), 1),
                "of Dataset.shuffle()": lambda one: f"{ratio(in_memory[0]['seconds'], one['seconds']):.2f}",
                "in order": lambda one: yes_or_no(one["right"]),
            },
        ),
    ]
    failed = write("epoch_cache", arguments, text, results=results, resumed=resumed, in_memory=in_memory)
    return failed or int(not all(one["right"] for one in [by_name[OURS], *resumed, *in_memory[1:]]))


if __name__ == "__main__":
    sys.exit(main())
