# SPDX-License-Identifier: Apache-2.0
"""The cost of delivery: processor time per GB, microseconds per element, idle processes, slower steps.

    python benchmarks/cost.py                        # about 8 minutes
    python benchmarks/cost.py --docs                 # and publish it in docs/

Needs Horovod and mpi4py. Writes cost.json, .md and .png to --out. Status 1: something failed or is missing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

import delivery_report
import launch
import machine
from delivery_report import cpu_per_gigabyte
from page import COLOURS, prose, size_name, table, write

Results = list[dict[str, Any]]
# The members of rivals/ that move batches. Of the windows: the default, and a wide window.
MOVERS = [
    "ours_per_rank",
    "ours_ahead",
    "ours_global",
    "broadcast",
    "alltoall",
    "service",
    "mpi_scatter",
    "mpi4py_scatter",
]
LOCAL = ["local dataset", "local dataset, nothing injected"]
# The cores of the two processes of the training step. Without binding, the kernel sometimes wakes the reader on the
# trainer's core.
PLACES = {
    "a core each": {"OMPI_MCA_hwloc_base_binding_policy": "core", "HYDRA_BINDING": "core"},
    "not pinned": {},
}


def measure(arguments: argparse.Namespace) -> dict[str, Results]:
    """Runs each part as a separate job."""
    sizes = {"bytes": arguments.bytes}
    burst = {"bytes": [4 << 10, 1 << 20], "burst": 64}
    step = {"bytes": [1 << 20, 16 << 20], "milliseconds": 20}
    return {
        "cpu": launch.run("delivery", arguments.ranks, arguments, {**sizes, "only": MOVERS, "horovod": True}),
        "iteration": launch.run("iteration", 2, arguments, burst),
        "idle": launch.run("idle", 2, arguments, {"pause": 0.2 if arguments.quick else 5}),
        "step": [
            {**result, "place": place}
            for place, env in PLACES.items()
            for result in launch.run("step", 2, arguments, step, env={"HOROVOD_DATA_READERS": "1", **env})
        ],
    }


def moved(results: Results) -> Results:
    return [r for r in results if r["moves"] and not r["error"]]


def cpu_part(results: Results, ranks: int) -> list[str]:
    sizes = sorted({r["bytes"] for r in results})
    names = dict.fromkeys(r["name"] for r in results if r["moves"])
    figures = {(r["name"], r["bytes"]): f"{cpu_per_gigabyte(r):.2f}" for r in moved(results)}
    rows = [[name, *[figures.get((name, size), "failed") for size in sizes]] for name in names]
    return [
        "## Processor time",
        "",
        prose(f"""
        The table has processor seconds (user and system, all threads of all {ranks} ranks) for each GB that all ranks together
        received, by size of one rank's batch. Elements are ready-made. Horovod's threads run in all ranks, with the default cycle
        time."""),
        *table(["", *map(size_name, sizes)], rows),
    ]


def iteration_part(results: Results) -> tuple[list[str], list[float]]:
    """The text, and our overhead for each size."""
    rows, overheads = [], []
    for size in sorted({r["bytes"] for r in results}):
        took = {r["name"]: statistics.median(r["microseconds"]) for r in results if r["bytes"] == size}
        overheads.append(took["horovod_data"] - min(took[name] for name in LOCAL))
        rows.append(
            [
                size_name(size),
                f"{took['horovod_data']:.1f}",
                *[f"{took[name]:.1f}" for name in LOCAL],
                f"{overheads[-1]:.1f}",
            ]
        )
    return [
        "## Iteration",
        "",
        prose("""
        The table has microseconds for each element in an eager loop, on a rank that trains, when the elements have arrived.
        *Nothing injected* is a local dataset without the prefetch and the autotuning that TensorFlow adds. *Overhead* is the
        additional time of horovod_data, compared with the faster local dataset."""),
        *table(["bytes", "horovod_data", *LOCAL, "overhead"], rows),
    ], overheads


def idle_part(results: Results) -> list[str]:
    rows = [[r["role"], *[f"{r[what]:.2%}" for what in ("rest", "data", "credit")]] for r in results]
    return [
        "## Idle processes",
        "",
        prose("""
        The table has the part of one core that a process uses. The job runs without Horovod, whose threads spin at times. The process is
        at rest after `init()`, or its `next` waits for a pipeline that sleeps, or the reader waits for credit because all ranks
        sleep."""),
        *table(["", "at rest", "waits for data", "waits for credit"], rows),
    ]


def step_part(results: Results) -> list[str]:
    rows = [
        [
            r["place"],
            size_name(r["bytes"]),
            *[f"{statistics.median(r[way]) * 1e3:.2f}" for way in ("delivered", "memory")],
            f"{slowed(r):.3f}",
        ]
        for r in results
    ]
    return [
        "## Training steps",
        "",
        prose("""
        A step computes on one thread. Its batch comes from a dedicated reader, or is in memory, step by step in turns. The table has
        milliseconds of a step, and the median of the rounds' ratios. There are two cores for the two processes: bound to one core
        each, or not bound."""),
        *table(["processes", "a batch", "delivered", "in memory", "ratio"], rows),
    ]


def slowed(result: dict[str, Any]) -> float:
    return float(statistics.median(d / m for d, m in zip(result["delivered"], result["memory"])))


def summary(told: dict[str, Results], overheads: list[float]) -> list[str]:
    rows = []
    for size in sorted({r["bytes"] for r in told["cpu"]}):
        group = [r for r in moved(told["cpu"]) if r["bytes"] == size]
        ours = delivery_report.named(group, delivery_report.OURS)
        rival = min((r for r in group if r["kind"] == "rival"), key=cpu_per_gigabyte, default=None)
        if ours and rival:
            rows.append(
                [
                    f"processor seconds per GB, {size_name(size)}",
                    f"{cpu_per_gigabyte(ours):.2f}",
                    f"{cpu_per_gigabyte(rival):.2f}: {rival['name']}, the thriftiest rival",
                ]
            )
    if overheads:
        rows.append(["microseconds of overhead per element, at most", f"{max(overheads):.1f}", "over a local dataset"])
    if told["idle"]:
        rows += [
            ["of a core while data is waited for, at most", f"{max(r['data'] for r in told['idle']):.2%}", ""],
            ["of a core while the reader waits for credit", f"{told['idle'][0]['credit']:.2%}", ""],
        ]
    rows += [
        [f"time of a step, {size_name(r['bytes'])}, {r['place']}", f"{slowed(r):.3f}", "1: the data lies in memory"]
        for r in told["step"]
    ]
    return table(["", "horovod_data", "beside"], rows)


def main() -> int:
    parser = launch.options(__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--bytes", type=int, nargs="+", default=[1 << 20, 16 << 20], help="per rank's batch")
    arguments = launch.parsed(parser, ranks=2, bytes=[4 << 10])
    told: dict[str, Any] = {"machine": machine.describe(), "rounds": arguments.rounds, **measure(arguments)}
    text = [f"Medians of {arguments.rounds} rounds, in turns.", ""]
    text += cpu_part(told["cpu"], arguments.ranks) if told["cpu"] else []
    iteration, overheads = iteration_part(told["iteration"]) if told["iteration"] else ([], [])
    text += iteration
    text += idle_part(told["idle"]) if told["idle"] else []
    text += step_part(told["step"]) if told["step"] else []

    def draw(pyplot: Any) -> Any:
        figure, axes = pyplot.subplots(
            1, len(arguments.bytes), figsize=(4.6 * len(arguments.bytes) + 1, 2.8), squeeze=False, sharey=True
        )
        for axis, size in zip(axes[0], arguments.bytes):
            group = [r for r in moved(told["cpu"]) if r["bytes"] == size][::-1]
            axis.barh(
                [r["name"] for r in group],
                [cpu_per_gigabyte(r) for r in group],
                color=[COLOURS[r["kind"]] for r in group],
            )
            axis.set_title(f"{arguments.ranks} ranks, {size_name(size)} per rank")
            axis.set_xlabel("processor seconds per GB")
        return figure

    write("cost", told, text, summary(told, overheads), arguments, draw)
    parts = all(told[part] for part in ("cpu", "iteration", "idle", "step"))
    return 0 if parts and not any(r["error"] for r in told["cpu"]) else 1


if __name__ == "__main__":
    sys.exit(main())
