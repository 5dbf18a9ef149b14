# SPDX-License-Identifier: Apache-2.0
"""Delivered batches per second: horovod_data, and the other ways to feed N ranks from one pipeline.

    python benchmarks/delivery.py                    # 2, 4 and 8 ranks; 4 KiB, 1 MiB, 16 MiB; about an hour
    python benchmarks/delivery.py --ranks 4 --bytes 4096 --only ours_per_rank ours_2 ours_16 ours_64 local_in_step_ahead
    python benchmarks/delivery.py --quick            # half a minute: tries if everything runs
    python benchmarks/delivery.py --docs             # and publish it in docs/

It runs one MPI job for each number of ranks and each cycle time of Horovod. In a job, all contestants take turns. --only
takes names of rivals.py. Needs Horovod and mpi4py. Writes delivery.json and .md to --out. Status 1: something failed.
"""

from __future__ import annotations

import sys
from statistics import median

import launch
import rivals
from page import Result, defined, named, prose, rate, rates, size_name, spread, table, write

OURS = rivals.ours_per_rank.name


def cell(group: list[Result]) -> list[str]:
    """The part of the page about the ways with the same ranks, bytes and cycle time."""
    first, ours = group[0], named(group, OURS)
    good = [r for r in group if not r["error"]]
    columns = {
        "": lambda r: r["name"],
        "steps/s": lambda r: spread(rates(r)),
        "GB/s": lambda r: f"{rate(r) * r['ranks'] * r['bytes'] / 1e9:.3g}" if r["moves"] else "",
        "per_rank / this way": lambda r: f"{rate(ours) / rate(r):.2f}x" if ours and r is not ours else "",
        "switches": lambda r: f"{median(r['switches']) / r['cpu_steps']:.2f}",
    }
    cycle = f"Horovod's cycle time {first['cycle_time']:g} ms" if first["cycle_time"] else "without Horovod"
    lines = ["", f"**{first['ranks']} ranks, {size_name(first['bytes'])} per rank, {cycle}**", *table(good, columns)]
    lines += [f"{r['name']} failed: {' '.join(r['error'].split())[:120]}" for r in group if r["error"]]
    best = max((r for r in good if r["kind"] == "rival" and r["moves"]), key=rate, default=None)
    if ours and best:
        lines.append(
            f"The best rival is {best['name']}; horovod_data makes {rate(ours) / rate(best):.2f} times its steps."
        )
    return lines


def main() -> int:
    # Horovod looks for work every so many milliseconds. Its default of 1 suits many allreduces at once. Here each
    # operation is waited for, which is faster with 0.1. But 0.1 keeps Horovod's thread busy on every rank, also while
    # other contestants are measured.
    # Horovod's threads meet in every cycle, and the first thread spins until the last arrives. 0 is a job without these
    # threads, for contestants that need no Horovod.
    cycle_times = [0.1, 1.0, 0.0]
    sizes = [4 << 10, 1 << 20, 16 << 20]
    quick = {"ranks": [2], "bytes": [4 << 10], "cycle_times": [1.0]}
    arguments = launch.parsed(
        __doc__, quick, limit=900.0, ranks=[2, 4, 8], bytes=sizes, only=[], cycle_times=cycle_times
    )
    results = []
    for ranks in arguments.ranks:
        for cycle in arguments.cycle_times:
            env = {"HOROVOD_CYCLE_TIME": f"{cycle:g}"}
            measured = launch.run("delivery", ranks, arguments, {"horovod": cycle > 0}, env=env)
            results += [{**result, "cycle_time": cycle} for result in measured]
    text = [
        prose(f"""
            Figures are medians of {arguments.rounds} rounds, in brackets the slowest and the fastest round. A round takes about
            {arguments.seconds:.2g} s, and has at least 12 times as many steps as may be sent ahead. All ways run in turns in one job.
            Horovod's cycle time (`HOROVOD_CYCLE_TIME`) is 1 ms by default. With 0.1 ms its operations are faster here, but its threads
            take processor time from every way."""),
        *defined(
            {
                "A step": "every rank has its batch (float32, ready-made on the reader), in eager iteration",
                "GB/s": "received by all ranks together",
                "Switches": "context switches of all ranks together, per step",
            }
        ),
        "The ways:",
        "",
        *[f"- **{way.name}**: {way.about}" for key, way in rivals.ALL.items() if key in (arguments.only or rivals.ALL)],
    ]
    groups: dict[tuple[int, float, int], list[Result]] = {}
    for r in results:
        groups.setdefault((r["ranks"], r["cycle_time"], r["bytes"]), []).append(r)
    for group in groups.values():
        text += cell(group)
    return write("delivery", arguments, text, results=results)


if __name__ == "__main__":
    sys.exit(main())
