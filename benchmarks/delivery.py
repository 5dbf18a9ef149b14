# SPDX-License-Identifier: Apache-2.0
"""Delivered batches per second: horovod_data, and the other ways to feed N ranks from one pipeline.

    python benchmarks/delivery.py                    # 2, 4 and 8 ranks; 4 KiB, 1 MiB, 16 MiB; about an hour
    python benchmarks/delivery.py --ranks 4 --bytes 4096 --only ours_per_rank ours_2 ours_16 ours_64 local_in_step_ahead
    python benchmarks/delivery.py --quick            # half a minute: tries if everything runs
    python benchmarks/delivery.py --docs             # and publish it in docs/

It runs one MPI job for each number of ranks and each cycle time of Horovod. In a job, all contestants take turns. Needs
Horovod and mpi4py. Writes delivery.json, .md and .png to --out. Status 1: something failed or is missing.
"""

from __future__ import annotations

import sys
from typing import Any

import delivery_report as report
import launch
import machine
import page


def main() -> int:
    parser = launch.options(__doc__, limit=900)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--bytes", type=int, nargs="+", default=[4 << 10, 1 << 20, 16 << 20], help="per rank's batch")
    parser.add_argument("--only", nargs="*", default=[], help="files in benchmarks/rivals, without .py")
    # Horovod looks for work every so many milliseconds. Its default of 1 suits many allreduces at once. Here each
    # operation is waited for, which is faster with 0.1. But 0.1 keeps Horovod's thread busy on every rank, also while
    # other contestants are measured.
    # Horovod's threads meet in every cycle, and the first thread spins until the last arrives. 0 is a job without these
    # threads, for contestants that need no Horovod.
    parser.add_argument(
        "--cycle-times", type=float, nargs="+", default=[0.1, 1, 0], help="for HOROVOD_CYCLE_TIME; 0: without Horovod"
    )
    arguments = launch.parsed(parser, ranks=[2], bytes=[4 << 10], cycle_times=[1])

    about = launch.described(arguments.only)
    told: dict[str, Any] = {"machine": machine.describe(), "rounds": arguments.rounds, "seconds": arguments.seconds}
    results: list[dict[str, Any]] = []
    for ranks in arguments.ranks:
        for cycle in arguments.cycle_times:
            measured = launch.run(
                "delivery",
                ranks,
                arguments,
                {"bytes": arguments.bytes, "only": arguments.only, "horovod": cycle > 0},
                env={"HOROVOD_CYCLE_TIME": f"{cycle:g}"},
            )
            results += [{**result, "cycle_time": cycle} for result in measured]
    told["results"] = results
    page.write(
        "delivery",
        told,
        report.text(told, {name: what for name, (what, _) in about.items()}),
        report.summary(told),
        arguments,
        report.drawn(told),
    )
    contestants = sum(
        1
        for cycle in arguments.cycle_times
        for name, (_, largest) in about.items()
        for size in arguments.bytes
        if size <= largest and (cycle > 0 or not name.startswith("hvd."))
    )
    expected = contestants * len(arguments.ranks)
    return 0 if len(results) == expected and not any(r["error"] for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
