# SPDX-License-Identifier: Apache-2.0
"""Hundreds of trainers without a cluster: the start-up, the memory of the reader, and the cost of a step for each rank.

    python benchmarks/scale.py                       # 8, 32, 128 and 256 trainers, up to 32 on a host; about 8 minutes
    python benchmarks/scale.py --docs                # and publish it in docs/

Its jobs use neither TensorFlow nor Python. csrc/tests/scale_job.cc is a program on the engine alone, whose trainers
check the fingerprint of every row. CMake builds it here (build/scale) without --program. All processes are on this
machine. Hosts are only names for the engine: ranks with the same name share memory, other ranks send messages over TCP.
Needs MPI, and 16 MiB of memory for each rank. Writes scale.json and .md to --out. Status 1: something failed.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any

import launch
from page import Result, defined, size_name, table, write

from horovod_data.plan import Job, Prediction, Readers, predict

ROOT = launch.HERE.parent
# Open MPI: ranks of different simulated hosts must reach each other by TCP, as on real hosts. With Open MPI's shared
# memory, each of 256 processes would map the memory of all others, and the start would take minutes.
ENVIRONMENT = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}
# So fast that only the measured costs limit the plan.
LINK_GBIT = 1e6
OPTIONS = ("rounds", "rows", "row_bytes", "prefetch", "paced_steps", "pace_ms", "idle_ms")  # of scale_job

Figures = dict[str, list[float]]


def built() -> Path:
    """Builds scale_job."""
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


def run(binary: Path, trainers: int, hosts: int, arguments: Any, **other: Any) -> Figures | None:
    """Runs one job. Returns the figures of its processes, the reader's first. `other`: more options of scale_job."""
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
            **other,
        }
        program = [str(binary.resolve()), *[f"{name}={value}" for name, value in given.items()]]
        command = [*shlex.split(arguments.mpirun), "-np", str(trainers + 1), *program]
        env = {**launch.ENVIRONMENT, **ENVIRONMENT, **os.environ}
        launch.run_job(command, env, arguments.limit, f"{trainers} trainers on {hosts} hosts")
        return json.loads(out.read_text()) if out.exists() else None


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
        "trainer": median(cpu[1:]) / steps,
        "waited": fmean(figures[f"{name}.waited"][1:]) / (steps - 1),
    }


def epochs(figures: Figures, kind: str, trainers: int, rounds: int) -> dict[str, float]:
    """The medians of the epochs of a kind."""
    found = [epoch(figures, f"{kind}{i}", trainers) for i in range(rounds)]
    return {what: median(one[what] for one in found) for what in found[0]}


def by_mpi(figures: Figures, steps: int, rounds: int) -> float:
    """Seconds of a step with the same rows, by MPI's own calls."""
    return median(
        (max(figures[f"mpi{i}.last"][1:]) - max(figures[f"mpi{i}.first"][1:])) / (steps - 1) for i in range(rounds)
    )


def told_of(figures: Figures, trainers: int, hosts: int, arguments: Any) -> Result:
    """The results of a job, from its figures. Times in s, memory in bytes."""
    seconds = median(grown(figures, "idle.before", "idle.after", "at"))
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
        "plain": epochs(figures, "plain", trainers, arguments.rounds),
        "verified": epochs(figures, "verified", trainers, arguments.rounds),
        "paced": epoch(figures, "paced", trainers),
        "mpi_step": by_mpi(figures, int(max(figures["plain0.steps"])), arguments.rounds),
        "reader_private": kib["anon"][0],
        "reader_shared": kib["shared"][0],
        "trainer_private": kib["anon"][-1],
        "trainer_pss": 1024 * median(figures["idle.after.pss"][1:]),
        "idle_reader": idle[0],
        "idle_trainer": median(idle[1:]),
    }


def cached_of(figures: Figures, trainers: int, hosts: int, arguments: Any) -> Result:
    """The counts of a job with cache="job", from its figures. A later epoch is the mean of all but the first."""

    def count(what: str, epochs: list[int]) -> float:
        return fmean(figures[f"cached{epoch}.{what}"][0] for epoch in epochs)

    first, later = [1], list(range(2, CACHED_EPOCHS + 1))
    data = count("rows", first) * arguments.row_bytes
    rows_over = count("rows_over", later) * arguments.row_bytes
    return {
        "trainers": trainers,
        "hosts": hosts,
        "rows": arguments.rows,
        "pieces": count("pieces", later) / CACHED_STEPS,
        "pieces_over": count("pieces_over", later) / CACHED_STEPS,
        "messages": count("messages", later) / CACHED_STEPS,
        "first": count("bytes", first) / data,
        "later": count("bytes", later) / data,
        "later_rows": rows_over / data,
        "beside": (count("bytes", later) - rows_over) / count("pieces_over", later),
    }


def exchanged(told: Result) -> float:
    """The messages of a host in a step, if keepers sent each other the rows for the other host's ranks.

    There is one message for up to 16 steps, with 4 rows at least.
    """
    rows = told["trainers"] * told["rows"] / told["hosts"] ** 2
    steps = next((steps for steps in (1, 2, 4, 8) if steps * rows >= 4), 16)
    return float((told["hosts"] - 1) / steps)


def sent(told: Result) -> float:
    """Processor seconds of the reader's communication thread for a batch to another host."""
    return float(told["plain"]["comm"] / (1 - 1 / told["hosts"]))


def busiest(told: Result) -> float:
    """Processor seconds of a step in the reader's busiest thread. On a cluster, a step takes at least as long."""
    return float(told["trainers"] * max(told["plain"]["comm"], told["plain"]["reader"] - told["plain"]["comm"]))


def memory(told: Result) -> float:
    return told["reader_private"] + told["reader_shared"]


def us(seconds: float) -> str:
    return f"{1e6 * seconds:,.1f}"


def kib(count: float) -> str:
    return f"{count / 1024:,.0f}"


def mib(count: float) -> str:
    return f"{count / 2**20:,.1f}"


COSTS: dict[str, Callable[[Result], float]] = {
    "start-up": lambda r: r["first"] / r["trainers"],
    "private memory of the reader": lambda r: r["reader_private"] / r["trainers"],
    "processor time of the reader for a batch": lambda r: r["plain"]["reader"],
    "of its communication thread for a batch of another host": sent,
    "processor time of all processes for a batch": lambda r: r["plain"]["all"],
    "time of a step": lambda r: r["plain"]["step"] / r["trainers"],
    "time of a step by MPI's own calls": lambda r: r["mpi_step"] / r["trainers"],
}


STARTED = {
    "trainers": lambda r: str(r["trainers"]),
    "hosts": lambda r: str(r["hosts"]),
    "MPI, s": lambda r: f"{r['mpi']:.1f}",
    "engine, ms": lambda r: f"{1e3 * r['engine']:,.0f}",
    "first step, ms": lambda r: f"{1e3 * r['first']:,.0f}",
    "first step per rank, ms": lambda r: f"{1e3 * r['first'] / r['trainers']:.2f}",
    "reader's private memory per rank, KiB": lambda r: kib(r["reader_private"] / r["trainers"]),
    "shared, KiB": lambda r: kib(r["reader_shared"] / r["trainers"]),
    "a trainer's private, KiB": lambda r: kib(r["trainer_private"]),
    "a trainer's part of all memory, MiB": lambda r: mib(r["trainer_pss"]),
    "reader idle, % of a core": lambda r: f"{100 * r['idle_reader']:.2f}",
    "a trainer idle, % of a core": lambda r: f"{100 * r['idle_trainer']:.2f}",
}
PER_RANK = {
    "trainers": lambda r: str(r["trainers"]),
    "time, us": lambda r: us(r["plain"]["step"] / r["trainers"]),
    "by MPI's own calls": lambda r: us(r["mpi_step"] / r["trainers"]),
    "time / that": lambda r: f"{r['plain']['step'] / r['mpi_step']:.2f}",
    "processor time of the reader": lambda r: us(r["plain"]["reader"]),
    "of its communication thread, for a batch of another host": lambda r: us(sent(r)),
    "of all processes": lambda r: us(r["plain"]["all"]),
    "verified: time": lambda r: us(r["verified"]["step"] / r["trainers"]),
    "verified: reader": lambda r: us(r["verified"]["reader"]),
    "verified: all processes": lambda r: us(r["verified"]["all"]),
    "paced: wait in GetNext": lambda r: us(r["paced"]["waited"]),
    "paced: reader": lambda r: us(r["paced"]["reader"]),
    "paced: a trainer": lambda r: us(r["paced"]["trainer"]),
}


CACHED = {
    "hosts": lambda r: str(r["hosts"]),
    "ranks": lambda r: str(r["trainers"]),
    "pieces of a step": lambda r: f"{r['pieces']:,.0f}",
    "to other hosts": lambda r: f"{r['pieces_over']:,.0f}",
    "of them by each host": lambda r: f"{r['pieces_over'] / r['hosts']:,.1f}",
    "by each host in an exchange": lambda r: f"{exchanged(r):,.1f}",
    "messages by MPI": lambda r: f"{r['messages']:,.0f}",
    "bytes between hosts, load and epoch 1": lambda r: f"{r['first']:.3f}",
    "later epoch": lambda r: f"{r['later']:.3f}",
    "its rows alone": lambda r: f"{r['later_rows']:.3f}",
    "1 - 1/H": lambda r: f"{1 - 1 / r['hosts']:.3f}",
    "bytes of a piece beside its rows": lambda r: f"{r['beside']:,.0f}",
}
CACHED_EPOCHS, CACHED_STEPS = 3, 50


def cached_part(results: list[Result]) -> list[str]:
    """The lines about cache="job"."""
    return [
        "",
        '**cache="job": what crosses the lines between hosts**',
        "",
        f"Jobs of their own, with a dedicated reader on the first host, `shuffle=True` and {CACHED_EPOCHS} epochs of {CACHED_STEPS} steps. "
        "These are counts, so they do not depend on the machine. Trainers check every row, and from which host it came.",
        *defined(
            {
                "Pieces": "what the trainers got: the keeper of each of H hosts sends each of N trainers a piece in each step, N x H. N of "
                "them stay on their hosts",
                "An exchange": "the other way to send these rows, by arithmetic alone. Each keeper sends each other keeper one message with "
                "the rows for all ranks of that host, for up to 16 steps at once. That keeper then deals them",
                "Messages by MPI": "all of the job in a step of a later epoch, with the answers of the trainers. Small headers for one host "
                "travel together",
                "Bytes": "all that MPI sent, divided by the bytes of all rows. 1 - 1/H of the rows are not on the reader's host, or not on "
                "the host of the rank that gets them",
            }
        ),
        "The rows that cross are the same in both ways. In an exchange a host sends fewer messages, H - 1 instead of N - N/H. But then every row "
        "from another host is copied once more, by one process, and a step waits for two messages in turn. Pieces need no protocol of "
        "their own, because a keeper deals as a reader does.",
        *table(results, CACHED),
    ]


def beside_the_plan(prefetch: int) -> dict[str, Callable[[Result], str]]:
    def plan(told: Result) -> Prediction:
        job = Job(
            ranks=told["trainers"],
            batch_bytes=told["bytes"],
            step_seconds=0,
            link_gbit=LINK_GBIT,
            ranks_per_host=told["trainers"] // told["hosts"],
            prefetch=prefetch,
        )
        return predict(job, Readers(dedicated=1, own_hosts=False))

    return {
        "trainers": lambda r: str(r["trainers"]),
        "a step of the reader's busiest thread, ms": lambda r: f"{1e3 * busiest(r):,.2f}",
        "planned, ms": lambda r: f"{1e3 * plan(r).delivery_seconds:,.2f}",
        "limited by": lambda r: plan(r).bound_by,
        "step / planned": lambda r: f"{busiest(r) / plan(r).delivery_seconds:.2f}",
        "memory of the reader, MiB": lambda r: mib(memory(r)),
        "planned, MiB": lambda r: mib(plan(r).reader_memory_bytes),
        "memory / planned": lambda r: f"{memory(r) / plan(r).reader_memory_bytes:.2f}",
    }


def main() -> int:
    # per_host: the most ranks on a host; there are two hosts at least. rows, row_bytes: of one rank's batch.
    # batches: of all ranks together, in an epoch. cached_hosts: of the jobs with cache="job", with two ranks on each
    # host.
    # pace_ms: a rank's sleep after each of its paced_steps. program: scale_job; "": build it.
    settings = {
        "trainers": [8, 32, 128, 256],
        "per_host": 32,
        "rows": 16,
        "row_bytes": 4096,
        "prefetch": 2,
        "batches": 8000,
        "cached_hosts": [2, 4, 8, 16],
    }
    settings |= {"paced_steps": 8, "pace_ms": 500, "idle_ms": 4000, "program": ""}
    quick = {"trainers": [8], "batches": 400, "cached_hosts": [2], "paced_steps": 3, "pace_ms": 20, "idle_ms": 200}
    arguments = launch.parsed(__doc__, quick, **{"limit": 400.0, "rounds": 3, **settings})
    binary = Path(arguments.program) if arguments.program else built()
    results: list[Result] = []
    for trainers in arguments.trainers:
        hosts = max(2, -(-trainers // arguments.per_host))
        figures = run(binary, trainers, hosts, arguments)
        if figures is not None:
            results.append(told_of(figures, trainers, hosts, arguments))
    cached: list[Result] = []
    for hosts in arguments.cached_hosts:
        options = {"rounds": 0, "by_mpi": 0, "paced_steps": 0, "steps": CACHED_STEPS, "cached_epochs": CACHED_EPOCHS}
        figures = run(binary, 2 * hosts, hosts, arguments, **options, idle_ms=0)
        if figures is not None:
            cached.append(cached_of(figures, 2 * hosts, hosts, arguments))
    batch = arguments.rows * arguments.row_bytes
    rows = sum(r["rows"] for r in results)
    text = [
        "One dedicated reader with a made-up source is on the host of some trainers. All other trainers are on simulated hosts, and "
        f"get batches by TCP. Batches have {size_name(batch)} per rank in {arguments.rows} rows, with `prefetch={arguments.prefetch}`. "
        f"All processes are on {len(os.sched_getaffinity(0))} cores, without TensorFlow. {rows:,.0f} rows were handed out, and "
        f"{sum(r['wrong'] for r in results):,.0f} of them were wrong, by their hashes.",
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
    parts = {"Start-up, memory, idle": STARTED, "A step, per rank": PER_RANK}
    parts["Beside the plan"] = beside_the_plan(arguments.prefetch)
    for title, columns in parts.items():
        text += ["", f"**{title}**", *table(results, columns)]
    if len(results) > 1:
        text += ["", "The largest increase of the cost of one more rank:", ""]
        for what, value in COSTS.items():
            times, where = max((value(b) / value(a), b["trainers"]) for a, b in zip(results, results[1:]))
            text.append(f"- {what}: {times:.2f} times per rank, to {where} trainers")
    text += cached_part(cached)
    return write("scale", arguments, text, results=results, cached=cached) or int(
        not rows or any(r["wrong"] for r in results)
    )


if __name__ == "__main__":
    sys.exit(main())
