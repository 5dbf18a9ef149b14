# SPDX-License-Identifier: Apache-2.0
"""Hundreds of trainers without a cluster: the start-up, the memory of the reader, and the cost of a step for each rank.

    python benchmarks/scale.py                       # 8, 32, 128 and 256 trainers, up to 32 on a host; about 8 minutes
    python benchmarks/scale.py --docs                # and publish it in docs/

Its jobs use neither TensorFlow nor Python. csrc/tests/scale_job.cc is a program on the engine alone, whose trainers
check the fingerprint of every row. CMake builds it here (build/scale) if no --program is given. All processes are on
this machine.
Hosts are only names for the engine: ranks with the same name share memory, other ranks send messages over TCP.
Needs MPI, and 16 MiB of memory for each rank. Writes scale.json, .md and .png to --out. Status 1: something failed.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import launch
import machine
from page import LIMIT, OURS, RIVAL, defined, prose, size_name, table, write

from horovod_data.plan import Job, Prediction, Readers, predict

ROOT = launch.HERE.parent
# Open MPI: ranks of different simulated hosts must reach each other by TCP, as on real hosts. With Open MPI's shared
# memory, each of 256 processes would map the memory of all others, and the start would take minutes.
ENVIRONMENT = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}
# So fast that only the measured costs limit the plan.
LINK_GBIT = 1e6
OPTIONS = (
    "rounds",
    "rows",
    "row_bytes",
    "prefetch",
    "paced_steps",
    "pace_ms",
    "idle_ms",
)  # of scale_job, with the same names

Result = dict[str, Any]
Figures = dict[str, list[float]]


def program(given: Path | None) -> Path:
    if given is not None:
        return given
    build = ROOT / "build" / "scale"
    build.mkdir(parents=True, exist_ok=True)
    with open(build / "log", "w") as log:
        for command in (
            ["cmake", "-S", str(ROOT), "-B", str(build), "-DHVDATA_CORE=OFF", "-DHVDATA_MPI_TESTS=ON"],
            ["cmake", "--build", str(build), "--target", "scale_job", "--parallel"],
        ):
            if subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode != 0:
                sys.exit(f"scale_job can't be built; {build / 'log'} says why")
    return build / "csrc" / "tests" / "scale_job"


def run(binary: Path, trainers: int, hosts: int, arguments: Any) -> Figures | None:
    """Runs one job. Returns the figures of its processes, the reader's first."""
    with tempfile.TemporaryDirectory(prefix="hvdata-scale-") as directory:
        out = Path(directory) / "figures.json"
        steps = max(20, arguments.batches // trainers)
        given = {
            "hosts": hosts,
            "steps": steps,
            "launched": time.monotonic(),
            "out": out,
            "by_mpi": arguments.rounds,
            **{name: getattr(arguments, name) for name in OPTIONS},
        }
        program = [str(binary.resolve()), *[f"{name}={value}" for name, value in given.items()]]
        command = [*shlex.split(arguments.mpirun), "-np", str(trainers + 1), *program]
        env = {**launch.ENVIRONMENT, **ENVIRONMENT, **os.environ}
        well = launch.run_job(command, env, arguments.limit, f"{trainers} trainers on {hosts} hosts")
        return json.loads(out.read_text()) if well and out.exists() else None


def grown(figures: Figures, since: str, until: str, what: str) -> list[float]:
    return [b - a for a, b in zip(figures[f"{since}.{what}"], figures[f"{until}.{what}"])]


def epoch(figures: Figures, name: str, trainers: int) -> dict[str, float]:
    """Of one epoch: the seconds of a step, and the processor seconds for one rank's batch."""
    steps = max(figures[f"{name}.steps"])
    batches = steps * trainers
    cpu, source = (grown(figures, f"{name}.before", f"{name}.after", what) for what in ("cpu", "source_cpu"))
    comm = grown(figures, f"{name}.before", f"{name}.after", "comm_cpu")
    return {
        "step": (max(figures[f"{name}.last"]) - max(figures[f"{name}.first"][1:])) / (steps - 1),
        "reader": (cpu[0] - source[0]) / batches,
        "comm": comm[0] / batches,
        "all": (sum(cpu) - sum(source)) / batches,
        "trainer": statistics.median(cpu[1:]) / steps,
        "waited": statistics.fmean(figures[f"{name}.waited"][1:]) / (steps - 1),
    }


def median(figures: Figures, kind: str, trainers: int, rounds: int) -> dict[str, float]:
    epochs = [epoch(figures, f"{kind}{i}", trainers) for i in range(rounds)]
    return {what: statistics.median(one[what] for one in epochs) for what in epochs[0]}


def by_mpi(figures: Figures, steps: int, rounds: int) -> float:
    """Seconds of a step with the same rows, by MPI's own calls."""
    return statistics.median(
        (max(figures[f"mpi{i}.last"][1:]) - max(figures[f"mpi{i}.first"][1:])) / (steps - 1) for i in range(rounds)
    )


def told_of(figures: Figures, trainers: int, hosts: int, arguments: Any) -> Result:
    """The results of a job, from its figures. Times in s, memory in bytes."""
    seconds = statistics.median(grown(figures, "idle.before", "idle.after", "at"))
    idle = [used / seconds for used in grown(figures, "idle.before", "idle.after", "cpu")]
    kib = {what: [1024 * by for by in grown(figures, "before", "idle.after", what)] for what in ("anon", "shared")}
    batch = arguments.rows * arguments.row_bytes
    # The last trainer is on another host than the reader.
    return {
        "trainers": trainers,
        "hosts": hosts,
        "bytes": batch,
        "rows": sum(figures["rows"]),
        "wrong": sum(figures["wrong"]),
        "mpi": max(figures["mpi"]),
        "engine": max(figures["engine"]),
        "first": max(figures["first.first"][1:]),
        "left": max(figures["left"]),
        "plain": median(figures, "plain", trainers, arguments.rounds),
        "verified": median(figures, "verified", trainers, arguments.rounds),
        "paced": epoch(figures, "paced", trainers),
        "mpi_step": by_mpi(figures, int(max(figures["plain0.steps"])), arguments.rounds),
        "reader_private": kib["anon"][0],
        "reader_shared": kib["shared"][0],
        "trainer_private": kib["anon"][-1],
        "reader_before": 1024 * figures["before.anon"][0],
        "trainer_before": 1024 * figures["before.anon"][-1],
        "reader_pss": 1024 * figures["idle.after.pss"][0],
        "trainer_pss": 1024 * statistics.median(figures["idle.after.pss"][1:]),
        "fds": max(figures["idle.after.fds"]),
        "idle_reader": idle[0],
        "idle_trainer": statistics.median(idle[1:]),
    }


def planned(told: Result, arguments: Any) -> Prediction:
    job = Job(
        ranks=told["trainers"],
        batch_bytes=told["bytes"],
        step_seconds=0,
        link_gbit=LINK_GBIT,
        ranks_per_host=told["trainers"] // told["hosts"],
        prefetch=arguments.prefetch,
    )
    return predict(job, Readers(dedicated=1, own_hosts=False))


def steepest(results: list[Result], value: Callable[[Result], float]) -> tuple[float, int]:
    """The largest growth of the value per rank from one result to the next, and where it is."""
    return max(((value(b) / value(a), b["trainers"]) for a, b in zip(results, results[1:])), default=(1.0, 0))


def us(seconds: float) -> str:
    return f"{1e6 * seconds:,.1f}"


def kib(count: float) -> str:
    return f"{count / 1024:,.0f}"


def sent(told: Result) -> float:
    """Processor seconds of the reader's communication thread for a batch to another host."""
    return float(told["plain"]["comm"] / (1 - 1 / told["hosts"]))


def busiest(told: Result) -> float:
    """Processor seconds of a step in the reader's busiest thread. On a cluster, a step takes at least as long."""
    return float(told["trainers"] * max(told["plain"]["comm"], told["plain"]["reader"] - told["plain"]["comm"]))


COSTS: dict[str, Callable[[Result], float]] = {
    "start-up": lambda r: r["first"] / r["trainers"],
    "private memory of the reader": lambda r: r["reader_private"] / r["trainers"],
    "processor time of the reader for a batch": lambda r: r["plain"]["reader"],
    "of its communication thread for a batch of another host": sent,
    "processor time of all processes for a batch": lambda r: r["plain"]["all"],
    "time of a step": lambda r: r["plain"]["step"] / r["trainers"],
    "time of a step by MPI's own calls": lambda r: r["mpi_step"] / r["trainers"],
}


def tables(results: list[Result], arguments: Any) -> list[tuple[str, list[str]]]:
    started, costs, plans = [], [], []
    for r in results:
        n = r["trainers"]
        started.append(
            [
                str(n),
                str(r["hosts"]),
                f"{r['mpi']:.1f}",
                f"{1e3 * r['engine']:,.0f}",
                f"{1e3 * r['first']:,.0f}",
                f"{1e3 * r['first'] / n:.2f}",
                kib(r["reader_private"] / n),
                kib(r["reader_shared"] / n),
                kib(r["trainer_private"]),
                f"{r['trainer_pss'] / 2**20:.1f}",
                f"{100 * r['idle_reader']:.2f}",
                f"{100 * r['idle_trainer']:.2f}",
            ]
        )
        costs.append(
            [
                str(n),
                us(r["plain"]["step"] / n),
                us(r["mpi_step"] / n),
                f"{r['plain']['step'] / r['mpi_step']:.2f}",
                us(r["plain"]["reader"]),
                us(sent(r)),
                us(r["plain"]["all"]),
                us(r["verified"]["step"] / n),
                us(r["verified"]["reader"]),
                us(r["verified"]["all"]),
                us(r["paced"]["waited"]),
                us(r["paced"]["reader"]),
                us(r["paced"]["trainer"]),
            ]
        )
        plan = planned(r, arguments)
        memory = r["reader_private"] + r["reader_shared"]
        reader = busiest(r)
        plans.append(
            [
                str(n),
                f"{1e3 * reader:,.2f}",
                f"{1e3 * plan.delivery_seconds:,.2f}",
                plan.bound_by,
                f"{reader / plan.delivery_seconds:.2f}",
                f"{memory / 2**20:,.1f}",
                f"{plan.reader_memory_bytes / 2**20:,.1f}",
                f"{memory / plan.reader_memory_bytes:.2f}",
            ]
        )
    return [
        (
            "Start-up, memory, idle",
            table(
                [
                    "trainers",
                    "hosts",
                    "MPI, s",
                    "engine, ms",
                    "first step, ms",
                    "first step per rank, ms",
                    "reader's private memory per rank, KiB",
                    "shared, KiB",
                    "a trainer's private, KiB",
                    "a trainer's part of all memory, MiB",
                    "reader idle, % of a core",
                    "a trainer idle, % of a core",
                ],
                started,
            ),
        ),
        (
            "A step, per rank",
            table(
                [
                    "trainers",
                    "time, us",
                    "by MPI's own calls",
                    "time / that",
                    "processor time of the reader",
                    "of its communication thread, for a batch of another host",
                    "of all processes",
                    "verified: time",
                    "verified: reader",
                    "verified: all processes",
                    "paced: wait in GetNext",
                    "paced: reader",
                    "paced: a trainer",
                ],
                costs,
            ),
        ),
        (
            "Beside the plan",
            table(
                [
                    "trainers",
                    "a step of the reader's busiest thread, ms",
                    "planned, ms",
                    "limited by",
                    "step / planned",
                    "memory of the reader, MiB",
                    "planned, MiB",
                    "memory / planned",
                ],
                plans,
            ),
        ),
    ]


def main() -> int:
    parser = launch.options(__doc__, limit=400)
    parser.set_defaults(rounds=3)
    parser.add_argument("--trainers", type=int, nargs="+", default=[8, 32, 128, 256])
    parser.add_argument("--per-host", type=int, default=32, help="at most; two hosts at least")
    parser.add_argument("--rows", type=int, default=16, help="of one rank's batch")
    parser.add_argument("--row-bytes", type=int, default=4096)
    parser.add_argument("--prefetch", type=int, default=2)
    parser.add_argument("--batches", type=int, default=8000, help="of all ranks together, in an epoch")
    parser.add_argument("--paced-steps", type=int, default=8)
    parser.add_argument("--pace-ms", type=int, default=500, help="that each rank sleeps for after each of them")
    parser.add_argument("--idle-ms", type=int, default=4000)
    parser.add_argument("--program", type=Path, help="scale_job, already built")
    arguments = launch.parsed(parser, trainers=[8], batches=400, paced_steps=3, pace_ms=20, idle_ms=200)
    told: dict[str, Any] = {"machine": machine.describe(), "rounds": arguments.rounds}
    binary = program(arguments.program)
    results: list[Result] = []
    for trainers in arguments.trainers:
        hosts = max(2, -(-trainers // arguments.per_host))
        figures = run(binary, trainers, hosts, arguments)
        if figures is not None:
            results.append(told_of(figures, trainers, hosts, arguments))
    told["results"] = results
    batch = arguments.rows * arguments.row_bytes
    rows = sum(r["rows"] for r in results)
    text = [
        prose(
            "One dedicated reader with a made-up source is on the host of some trainers. All other trainers are on simulated hosts, and "
            f"get batches by TCP. Batches have {size_name(batch)} per rank in {arguments.rows} rows, with `prefetch={arguments.prefetch}`. "
            f"All processes are on {len(os.sched_getaffinity(0))} cores, without TensorFlow. {rows:,.0f} rows were handed out, and "
            f"{sum(r['wrong'] for r in results):,.0f} of them were wrong, by their hashes."
        ),
        "",
        *defined(
            {
                "MPI": "from the launcher's start until the last process has left MPI_Init",
                "Engine, first step": "from then until the last rank has its engine, and until it has its first step",
                "Memory": "the growth since MPI_Init: private memory of the process, and shared memory (batches under way, and the rings of the "
                "ranks of the reader's host)",
                "Idle": f"in {arguments.idle_ms / 1e3:.3g} s in which no rank asks for anything",
                "A step": f"medians of {arguments.rounds} epochs of about {arguments.batches:,} batches. Ranks only check hashes. The "
                "processor time is without that of the source",
                "By MPI's own calls": f"the same rows over TCP. The reader calls `MPI_Isend` for {arguments.prefetch} steps at once. The "
                "trainers call `MPI_Irecv` and `MPI_Wait`, and also check the rows",
                "Verified": "with `verify=True`",
                "Paced": f"ranks sleep for {arguments.pace_ms} ms after each step, as in training",
                "Planned": "by `horovod_data.plan`, for a reader that has a core for each of its threads. The planned memory is without the "
                "rings, 320 KiB for each rank of the reader's host",
            }
        ),
    ]
    found = tables(results, arguments)
    for title, lines in found:
        text += ["", f"**{title}**", *lines]
    if len(results) > 1:
        text += ["", "The largest increase of the cost of one more rank:", ""]
        for what, value in COSTS.items():
            times, where = steepest(results, value)
            text.append(f"- {what}: {times:.2f} times per rank, to {where} trainers")

    def draw(pyplot: Any) -> Any:
        figure, axes = pyplot.subplots(1, 3, figsize=(13, 4))
        n = [r["trainers"] for r in results]
        lines: list[tuple[int, str, Callable[[Result], float], str]] = [
            (0, "first step", lambda r: 1e3 * r["first"], OURS),
            (0, "of that, engine", lambda r: 1e3 * r["engine"], LIMIT),
            (1, "private", lambda r: r["reader_private"] / 2**20, OURS),
            (1, "with shared", lambda r: (r["reader_private"] + r["reader_shared"]) / 2**20, RIVAL),
            (1, "planned", lambda r: planned(r, arguments).reader_memory_bytes / 2**20, LIMIT),
            (2, "reader's processor time", lambda r: 1e6 * r["plain"]["reader"], OURS),
            (2, "the same, verified", lambda r: 1e6 * r["verified"]["reader"], RIVAL),
            (2, "its communication thread, batch of another host", lambda r: 1e6 * sent(r), "#d95f02"),
            (2, "planned", lambda r: 1e6 * planned(r, arguments).delivery_seconds / r["trainers"], LIMIT),
        ]
        for at, label, value, colour in lines:
            axes[at].plot(n, [value(r) for r in results], "-o", color=colour, label=label)
        units = ("ms until the last rank has its first batch", "MiB of the reader", "us for one rank's batch")
        for axis, what in zip(axes, units):
            axis.set_xscale("log", base=2)
            axis.set_xticks(n, [str(one) for one in n])
            axis.set_xlabel("trainers")
            axis.set_ylabel(what)
            axis.set_ylim(0)
            axis.legend()
        return figure

    write("scale", told, text, [line for _, lines in found for line in lines], arguments, draw)
    return 0 if len(results) == len(arguments.trainers) and rows and not any(r["wrong"] for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
