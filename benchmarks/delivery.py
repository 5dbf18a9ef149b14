# SPDX-License-Identifier: Apache-2.0
"""Delivered batches per second: horovod_data, and the other ways to feed N ranks from one pipeline.

    python benchmarks/delivery.py                    # 2, 4 and 8 ranks; 4 KiB, 1 MiB, 16 MiB; about an hour
    python benchmarks/delivery.py --ranks 4 --bytes 4096 --only ours_per_rank ours_2 ours_16 ours_64 local_in_step_ahead
    python benchmarks/delivery.py --quick            # half a minute: tries if everything runs
    python benchmarks/delivery.py --docs             # and publish it in docs/

It runs one MPI job for each number of ranks and each cycle time of Horovod. In a job, all contestants take turns.
--only takes names of rivals.py. Needs Horovod and mpi4py. Writes delivery.json and .md to --out. Status 1: something
failed.
"""

from __future__ import annotations

import sys

import launch
import rivals
from page import Result, prose, rate, rates, size_name, spread, table, write

OURS = rivals.ours_per_rank.name


def part(group: list[Result]) -> list[str]:
    """The part of the page about the ways with the same ranks and bytes, with columns for each cycle time."""
    by_cycle: dict[float, dict[str, Result]] = {}
    for result in group:
        by_cycle.setdefault(result["cycle_time"], {})[result["name"]] = result

    def steps(cycle: float, name: str) -> str:
        result = by_cycle[cycle].get(name)
        return "" if result is None else "failed" if result["error"] else spread(rates(result))

    def times(cycle: float, name: str) -> str:
        ours, result = by_cycle[cycle].get(OURS), by_cycle[cycle].get(name)
        compared = ours and result and result is not ours and not ours["error"] and not result["error"]
        return f"{rate(ours) / rate(result):.2f}x" if compared else ""

    columns = {"": str}
    for cycle in by_cycle:
        shown = f"cycle {cycle:g} ms" if cycle else "without Horovod"
        columns[f"steps/s, {shown}"] = lambda name, cycle=cycle: steps(cycle, name)
        columns[f"per_rank / this way, {shown}"] = lambda name, cycle=cycle: times(cycle, name)
    title = f"**{group[0]['ranks']} ranks, {size_name(group[0]['bytes'])} per rank**"
    return ["", title, *table(dict.fromkeys(r["name"] for r in group), columns)]


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
            take processor time from every way. Some ways also ran in a job without Horovod."""),
        "",
        "In a step every rank gets its batch (float32, ready-made on the reader), in eager iteration. *per_rank / this way* is the "
        f"speed of {OURS}, divided by the speed of this way.",
        "",
        "The ways:",
        "",
        *[f"- **{way.name}**: {way.about}" for key, way in rivals.ALL.items() if key in (arguments.only or rivals.ALL)],
    ]
    for ranks in arguments.ranks:
        for size in arguments.bytes:
            group = [r for r in results if (r["ranks"], r["bytes"]) == (ranks, size)]
            text += part(group) if group else []
    return write("delivery", arguments, text, results=results)


if __name__ == "__main__":
    sys.exit(main())
