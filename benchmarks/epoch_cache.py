# SPDX-License-Identifier: Apache-2.0
"""Epochs over slow storage: cache="job" beside no cache, cache() on the reader, and a cache on each rank.

    sudo python benchmarks/epoch_cache.py            # 4 ranks on 2 hosts, 400 MB, 8 epochs; about 10 minutes
    sudo python benchmarks/epoch_cache.py --docs     # and publish it in docs/

The hosts are simulated on this machine (tests/cluster/bed.py), which needs root and Open MPI. Needs mpi4py. The storage
is a clock that all processes share: 20 MB/s for the whole job. Each way has a job of its own, because memory is measured.
Writes epoch_cache.json, .md and .png to --out. Status 1: something failed or is missing.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import launch
import machine
from page import COLOURS, defined, prose, table, write

sys.path.append(str(launch.HERE.parent / "tests" / "cluster"))
from bed import Bed, why_not  # noqa: E402

NO_CACHE, ON_THE_READER, PER_RANK, OURS = "no cache", "cache() on the reader", "cache() on each rank", 'cache="job"'
READY_MADE, SAVE, RESTORE = "ready-made batches", "save", "restore"
WAYS = (NO_CACHE, ON_THE_READER, PER_RANK, OURS, READY_MADE)
Result = dict[str, Any]


def later(result: Result) -> float:
    """Seconds of an epoch after the first."""
    return statistics.median(result["seconds"][1:])


def described(results: dict[str, Result], resumed: bool) -> tuple[list[str], list[str]]:
    """(the short table, all figures)"""
    ours, limit = results[OURS], later(results[READY_MADE])
    figures = [
        [
            name,
            f"{sum(one['seconds']):.1f}",
            f"{one['seconds'][0]:.2f}",
            f"{later(one):.2f}",
            f"{limit / later(one):.2f}",
            f"{one['source']:.2f}",
            f"{one['memory']:.2f}",
            f"{one['line']:.2f}",
        ]
        for name, one in results.items()
    ]
    header = ["", "all epochs, s", "epoch 1, s", "a later epoch, s", "pace of ready-made", "read", "memory", "line"]
    short = table(
        ["", ""],
        [
            *[
                [f"all epochs: {name} over {OURS}", f"{sum(one['seconds']) / sum(ours['seconds']):.2f}"]
                for name, one in results.items()
                if one["kind"] == "rival"
            ],
            ["a later epoch: pace of ready-made batches", f"{limit / later(ours):.2f}"],
            ["read from the storage, times the data", f"{ours['source']:.2f}"],
            ["memory of a host, times the data", f"{ours['memory']:.2f}"],
            ["all rows where the definition of the permutation puts them", "yes" if ours["right"] else "no"],
            ["also after a restore on 3 ranks in epoch 3", "yes" if resumed else "no"],
        ],
    )
    return short, table(header, figures)


def main() -> int:
    parser = launch.options(__doc__, limit=400)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", default="1gbit", help="of each host's line, both ways")
    parser.add_argument("--storage", type=float, default=20.0, help="MB/s of the storage, for all ranks together")
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--row-bytes", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=64, help="rows of all ranks in a step")
    parser.add_argument("--epochs", type=int, default=8)
    arguments = launch.parsed(parser, rows=90, row_bytes=10_000, storage=4.0, epochs=3)
    if reason := why_not():
        sys.exit(f"benchmarks/epoch_cache.py simulates hosts: {reason}")
    told: Result = {"machine": machine.describe(), "rate": arguments.rate, "storage": arguments.storage}
    told |= {what: getattr(arguments, what) for what in ("ranks", "hosts", "rows", "row_bytes", "batch", "epochs")}
    given = {what: getattr(arguments, what) for what in ("rows", "row_bytes", "batch", "epochs")}
    given["rate"] = arguments.storage * 1e6

    def run(bed: Bed, ranks: int, way: str, **more: Any) -> list[Result]:
        places = [rank * arguments.hosts // ranks for rank in range(ranks)]
        mpirun = bed.mpirun(places, {**launch.ENVIRONMENT, **os.environ})
        settings = {**given, "way": way, **more}
        return launch.run("epoch_cache", ranks, arguments, settings, env=bed.environment, mpirun=mpirun)

    with Bed(arguments.hosts, arguments.rate) as bed, tempfile.TemporaryDirectory(prefix="hvdata-bench-") as folder:
        found = [one for way in WAYS for one in run(bed, arguments.ranks, way)]
        state = str(Path(folder) / "state")
        resumed = [
            one["right"]
            for ranks, way in ((arguments.ranks, SAVE), (arguments.ranks - 1, RESTORE))
            for one in run(bed, ranks, way, state=state)
        ]
    told["results"], told["resumed"] = found, resumed == [True, True]
    results = {one["name"]: one for one in found}
    if len(results) < len(WAYS):
        print(f"missing: {', '.join(set(WAYS) - set(results))}", file=sys.stderr)
        return 1
    short, figures = described(results, told["resumed"])
    megabytes = arguments.rows * arguments.row_bytes / 1e6
    text = [
        prose(
            f"{arguments.ranks} ranks on {arguments.hosts} hosts, which are network namespaces of one machine with links of {arguments.rate}. The data "
            f"are {arguments.rows:,} rows of {arguments.row_bytes:,} bytes: {megabytes:,.0f} MB. The storage gives {arguments.storage:g} MB/s to the whole job. "
            f"A step has {arguments.batch} rows, and there are {arguments.epochs} epochs."
        ),
        *defined(
            {
                NO_CACHE: "rank 0 reads, and horovod_data delivers. Every epoch reads the storage",
                ON_THE_READER: "the same, with `Dataset.cache()` on the reader. All rows are in the memory of one host, and their order never changes",
                PER_RANK: "each rank reads its part of a permutation of all rows by itself, and keeps the rows that it read first. All hosts together "
                f"have as much memory as with {OURS}",
                OURS: 'horovod_data with `cache="job", shuffle=True`',
                READY_MADE: "rank 0 delivers one batch again and again. Nothing is read",
                "Pace of ready-made": "the time of an epoch of ready-made batches over that of a later epoch",
                "Read, memory, line": "bytes read from the storage in all epochs; growth of the memory of the fullest host; bytes that leave the hosts in an epoch. "
                "Each over the bytes of the data",
            }
        ),
        *figures,
    ]

    def draw(pyplot: Any) -> Any:
        figure, axes = pyplot.subplots(figsize=(7, 3.5))
        for name, one in results.items():
            style = "-" if name == OURS else "--" if one["kind"] == "rival" else ":"
            axes.plot(
                range(1, arguments.epochs + 1),
                one["seconds"],
                style,
                color=COLOURS[one["kind"]],
                label=name,
                marker="o",
            )
        axes.set_xlabel("epoch")
        axes.set_ylabel("seconds")
        axes.set_ylim(bottom=0)
        axes.legend()
        return figure

    write("epoch_cache", told, text, short, arguments, draw)
    return 0 if results[OURS]["right"] and told["resumed"] else 1


if __name__ == "__main__":
    sys.exit(main())
