# SPDX-License-Identifier: Apache-2.0
"""The cost of delivery: processor time per GB, microseconds per element, idle processes, slower steps.

    python benchmarks/cost.py                        # about 8 minutes
    python benchmarks/cost.py --docs                 # and publish it in docs/

Needs Horovod and mpi4py. Writes cost.json and .md to --out. Status 1: something failed.
"""

from __future__ import annotations

import sys
from statistics import median

import launch
from page import Result, cpu_per_gigabyte, prose, ratio, size_name, table, write

# The names in rivals.py that move batches. Of the windows: the default, and a wide window.
MOVERS = ["ours_per_rank", "ours_ahead", "ours_global"]
MOVERS += ["broadcast", "alltoall", "service", "mpi_scatter", "mpi4py_scatter"]
LOCAL = ["local dataset", "local dataset, nothing injected"]
# The cores of the two processes of the training step. Without binding, the kernel sometimes wakes the reader on the
# trainer's core.
PLACES = {"a core each": launch.BINDING, "not pinned": {}}


def by_size(results: list[Result]) -> dict[int, dict[str, Result]]:
    """For each size, the results by their names."""
    sizes: dict[int, dict[str, Result]] = {}
    for result in results:
        sizes.setdefault(result["bytes"], {})[result["name"]] = result
    return sizes


def cpu_part(results: list[Result], ranks: int) -> list[str]:
    sizes = by_size([r for r in results if not r["error"]])

    def cell(size: int):
        return lambda name: f"{cpu_per_gigabyte(sizes[size][name]):.2f}" if name in sizes[size] else "failed"

    return [
        prose(f"""
        The table has processor seconds (user and system, all threads of all {ranks} ranks) for each GB that all ranks together
        received, by size of one rank's batch. Elements are ready-made. Horovod's threads run in all ranks, with the default cycle
        time."""),
        *table(
            dict.fromkeys(r["name"] for r in results),
            {"": str, **{size_name(size): cell(size) for size in sorted(sizes)}},
        ),
    ]


def iteration_part(results: list[Result]) -> list[str]:
    rows = [
        {"bytes": size, **{name: median(result["microseconds"]) for name, result in group.items()}}
        for size, group in by_size(results).items()
    ]
    columns = {"bytes": lambda row: size_name(row["bytes"])}
    columns |= {name: lambda row, name=name: f"{row[name]:.1f}" for name in ("horovod_data", *LOCAL)}
    columns["overhead"] = lambda row: f"{row['horovod_data'] - min(row[name] for name in LOCAL):.1f}"
    return [
        prose("""
        The table has microseconds for each element in an eager loop, on a rank that trains, when the elements have arrived.
        *Nothing injected* is a local dataset without the prefetch and the autotuning that TensorFlow adds. *Overhead* is the
        additional time of horovod_data, compared with the faster local dataset."""),
        *table(rows, columns),
    ]


def idle_part(results: list[Result]) -> list[str]:
    columns = {
        "": lambda r: r["role"],
        "at rest": lambda r: f"{r['rest']:.2%}",
        "waits for data": lambda r: f"{r['data']:.2%}",
        "waits for credit": lambda r: f"{r['credit']:.2%}",
    }
    return [
        prose("""
        The table has the part of one core that a process uses. The job runs without Horovod, whose threads spin at times. The
        process is at rest after `init()`, or its `next` waits for a pipeline that sleeps, or the reader waits for credit because
        all ranks sleep."""),
        *table(results, columns),
    ]


def step_part(results: list[Result]) -> list[str]:
    columns = {
        "processes": lambda r: r["place"],
        "a batch": lambda r: size_name(r["bytes"]),
        "delivered": lambda r: f"{median(r['delivered']) * 1e3:.2f}",
        "in memory": lambda r: f"{median(r['memory']) * 1e3:.2f}",
        "ratio": lambda r: f"{ratio(r['delivered'], r['memory']):.3f}",
    }
    return [
        prose("""
        A step computes on one thread. Its batch comes from a dedicated reader, or is in memory, step by step in turns. The table
        has milliseconds of a step, and the median of the rounds' ratios. There are two cores for the two processes: bound to one
        core each, or not bound."""),
        *table(results, columns),
    ]


def main() -> int:
    quick = {"ranks": 2, "bytes": [4 << 10], "pause": 0.2}
    arguments = launch.parsed(__doc__, quick, ranks=4, bytes=[1 << 20, 16 << 20], pause=5.0)
    cpu = launch.run("delivery", arguments.ranks, arguments, {"only": MOVERS, "horovod": True})
    iteration = launch.run("iteration", 2, arguments, {"bytes": [4 << 10, 1 << 20], "burst": 64})
    idle = launch.run("idle", 2, arguments)
    given = {"bytes": [1 << 20, 16 << 20], "milliseconds": 20}
    step = [
        {**result, "place": place}
        for place, env in PLACES.items()
        for result in launch.run("step", 2, arguments, given, env={"HOROVOD_DATA_READERS": "1", **env})
    ]
    text = [
        f"Medians of {arguments.rounds} rounds, in turns.",
        *["", "## Processor time", "", *cpu_part(cpu, arguments.ranks)],
        *["## Iteration", "", *iteration_part(iteration)],
        *["## Idle processes", "", *idle_part(idle)],
        *["## Training steps", "", *step_part(step)],
    ]
    return write("cost", arguments, text, cpu=cpu, iteration=iteration, idle=idle, step=step)


if __name__ == "__main__":
    sys.exit(main())
