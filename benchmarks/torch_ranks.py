# SPDX-License-Identifier: Apache-2.0
"""Ranks without TensorFlow: an RLDS-like pipeline for PyTorch, the start of a job, and ready-made batches.

    python benchmarks/torch_ranks.py                 # about 10 minutes
    python benchmarks/torch_ranks.py --parts start   # one part
    python benchmarks/torch_ranks.py --docs          # and publish it in docs/

Rivals run in turns with hvdata.loader(). Without PyTorch, ranks take NumPy arrays, and rank 0 sends by MPI. Accelerate,
Grain and MosaicML Streaming take part if they are installed. Needs mpi4py, and with 4 ranks 13 GB of memory. Writes
torch_ranks.json, .md and .png to --out. Status 1: something failed or is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import delivery_report as report
import launch
import machine
from page import COLOURS, defined, prose, size_name, table, write
from ranks.broadcasts import NAME as BROADCAST

EPISODE = 50  # frames
PIPELINES = {
    "ours": "a dedicated reader and `loader`",
    "every_rank": "every rank runs the pipeline",
    "broadcast": "rank 0 runs it, broadcast + slice",
}
STARTS = {
    "numpy": "`loader`, numpy, a Python list on rank 0",
    "torch": "`loader`, torch, the same list",
    "tf.data": "`loader`, numpy, `tf.data` on a dedicated reader",
    "tensorflow": "`distribute_dataset`, `tf.data` on rank 0",
}
NUMPY, PYTHON, DATASET = "loader, numpy, tf.data", "loader, numpy, Python", "distribute_dataset, tf.data"
COMPARED = (
    (NUMPY, DATASET),
    (PYTHON, DATASET),
    (PYTHON, "distribute_dataset, from_generator"),
    (NUMPY, "broadcast + slice"),
    (NUMPY, "Accelerate, dispatch_batches"),
)
PACKAGES = ("torch", "accelerate", "grain", "mosaicml-streaming")
Result = dict[str, Any]
# Otherwise a shuffle buffer leaves gaps in the heaps of glibc: docs/memory.md.
HEAPS = {"MALLOC_MMAP_THRESHOLD_": "65536"}


def middle(results: list[Result], way: str, what: str) -> float:
    """The median of the rounds."""
    return float(statistics.median(result[what] for result in results if result["way"] == way))


def ranks_and_reader(
    module: str, arguments: argparse.Namespace, given: Result, reader: bool, **env: str
) -> list[Result]:
    """The results of a job of these ranks, with a dedicated reader or without."""
    env["HOROVOD_DATA_READERS"] = str(int(reader))
    return launch.run(module, arguments.ranks + reader, arguments, given, env=env)


def pipelines(arguments: argparse.Namespace) -> Iterator[Result]:
    """Each round has a job for each way."""
    episodes = arguments.frames // EPISODE
    steps = episodes * EPISODE // (arguments.rows * arguments.ranks)
    with tempfile.TemporaryDirectory(prefix="hvdata-bench-") as folder:
        data = [launch.HERE.parent / "examples" / "rlds_data.py", folder, episodes, EPISODE, arguments.side]
        env = {**launch.ENVIRONMENT, **os.environ}
        subprocess.run([sys.executable, *map(str, data)], check=True, env=env, stdout=sys.stderr)
        source = sum(path.stat().st_size for path in Path(folder).iterdir())
        given = {"folder": folder, "rows": arguments.rows, "buffer": arguments.buffer, "steps": steps}
        for _ in range(arguments.rounds_of_pipeline):
            for way in PIPELINES:
                for result in ranks_and_reader("rlds", arguments, {"way": way, **given}, way == "ours", **HEAPS):
                    yield {**result, "source": source}


def starts(arguments: argparse.Namespace) -> Iterator[Result]:
    ways = [way for way in STARTS if way != "torch" or machine.version("torch") != "none"]
    for _ in range(arguments.rounds_of_start):
        for way in ways:
            yield from ranks_and_reader("first_batch", arguments, {"way": way, "began": time.time()}, way == "tf.data")


def loading(arguments: argparse.Namespace) -> list[Result]:
    return launch.run("loading", arguments.ranks, arguments, {"bytes": arguments.bytes})


PARTS = {"pipeline": pipelines, "start": starts, "loading": loading}


def of_pipelines(results: list[Result]) -> list[str]:
    if not results:
        return []
    rows = []
    for way, name in PIPELINES.items():
        seconds, steps, imported = (middle(results, way, what) for what in ("seconds", "steps", "with_tensorflow"))
        read, memory = middle(results, way, "read") / middle(results, way, "source"), middle(results, way, "memory")
        figures = [
            f"{read:.2f}",
            f"{memory / 2**30:.2f}",
            f"{steps / seconds:.1f}",
            f"{seconds:.1f}",
            f"{imported:.0f}",
        ]
        rows.append([name, *figures])
    header = ["", "times the files are read", "GiB of the job", "steps/s", "seconds of the epoch"]
    return table([*header, "ranks with TensorFlow"], rows)


def of_starts(results: list[Result]) -> list[str]:
    if not results:
        return []
    slow = middle(results, "tensorflow", "first")
    rows = []
    for way, name in STARTS.items():
        if not any(result["way"] == way for result in results):
            rows.append([name, *["not installed"] * 5])
            continue
        first, init, memory = (middle(results, way, what) for what in ("first", "init", "resident"))
        imported = f"{middle(results, way, 'with_tensorflow'):.0f}"
        rows.append([name, f"{first:.2f}", f"{slow / first:.1f}x", f"{init:.2f}", f"{memory / 2**20:.0f}", imported])
    header = ["", "seconds to the first batch", "sooner", "seconds of import and `init`", "MiB of a rank then"]
    return table([*header, "ranks with TensorFlow"], rows)


def by_size(results: list[Result]) -> list[list[Result]]:
    sizes = dict.fromkeys(result["bytes"] for result in results)
    return [[result for result in results if result["bytes"] == size] for size in sizes]


def of_loading(results: list[Result]) -> list[str]:
    lines = []
    for group in by_size(results):
        base = report.named(group, DATASET)
        rows = []
        for result in group:
            if result["error"]:
                rows.append([result["name"], " ".join(result["error"].split())[:120], "", ""])
                continue
            part = f"{report.rate(result) / report.rate(base):.2f}x" if base else ""
            spread = f"({min(report.rates(result)):,.0f}-{max(report.rates(result)):,.0f})"
            moves = "yes" if result["moves"] else "no"
            rows.append([result["name"], f"{report.rate(result):,.0f} {spread}", part, moves])
        title = f"**{group[0]['ranks']} ranks, {size_name(group[0]['bytes'])} per rank**"
        lines += ["", title, *table(["", "steps/s", "relative to `distribute_dataset`", "one process feeds all"], rows)]
    return lines


def summary(told: Result) -> list[str]:
    rows = []
    if told["pipeline"]:
        other = {what: middle(told["pipeline"], "every_rank", what) for what in ("read", "memory", "seconds")}
        mine = {what: middle(told["pipeline"], "ours", what) for what in other}
        sent = middle(told["pipeline"], "broadcast", "seconds")
        rows += [
            [
                "bytes of the files that the job reads, relative to a pipeline on every rank",
                f"{mine['read'] / other['read']:.2f}",
            ],
            ["memory of the job, relative to a pipeline on every rank", f"{mine['memory'] / other['memory']:.2f}"],
            ["steps/s of the pipeline, relative to one on every rank", f"{other['seconds'] / mine['seconds']:.2f}"],
            ["steps/s of the pipeline, relative to rank 0 and a broadcast", f"{sent / mine['seconds']:.2f}"],
        ]
    if told["start"]:
        first = {way: middle(told["start"], way, "first") for way in ("numpy", "tensorflow")}
        init, resident = (middle(told["start"], "numpy", what) for what in ("init", "resident"))
        rows += [
            [
                "time to the first batch of a job without TensorFlow, relative to one with it",
                f"{first['numpy'] / first['tensorflow']:.2f}",
            ],
            ["seconds of `import horovod_data` and `init()` after `MPI_Init`", f"{init:.2f}"],
            ["MiB of a rank after `init()`", f"{resident / 2**20:.0f}"],
        ]
    for group in by_size(told["loading"]):
        size = size_name(group[0]["bytes"])
        for ours, other in COMPARED:
            mine, rival = report.named(group, ours), report.named(group, other)
            ratio = f"{report.rate(mine) / report.rate(rival):.2f}" if mine and rival else ""
            rows.append([f"steps/s of *{ours}*, relative to *{other}*, {size}", ratio])
    return table(["", "with `loader`"], rows)


def text(told: Result) -> list[str]:
    packages = ", ".join(f"{name} {version}" for name, version in told["packages"].items() if version != "none")
    frames = (
        f"{told['frames']:,} JPEG frames of {told['side']} x {told['side']} pixels, in episodes of {EPISODE} frames"
    )
    buffer = told["buffer"] * told["side"] ** 2 * 3 / 2**30
    return [
        f"Installed: {packages or 'NumPy alone'}. Figures are medians of rounds, in which all ways take turns.",
        "",
        "**An RLDS-like pipeline**",
        "",
        prose(
            f"The files have {frames}. The pipeline reads and parses episodes, decodes frames, and shuffles decoded frames in a buffer of "
            f"{told['buffer']:,}, which takes {buffer:.2f} GiB. A rank's batch has {told['rows']} frames. Nothing trains."
        ),
        *defined(
            {
                PIPELINES[
                    "every_rank"
                ]: "each rank reads and parses everything, and decodes and shuffles every N-th frame",
                PIPELINES[
                    "broadcast"
                ]: f"rank 0 sends all ranks' arrays to each rank, without the texts: {told['broadcast']}",
                "Times the files are read": "bytes that all processes asked the kernel for in the epoch (`/proc/PID/io`), divided by the size "
                "of the files",
                "GiB of the job": "the sum of all processes' memory, in which shared pages count once (`Pss`). The larger one of two "
                "measurements, with full buffers: after the first step, and in the middle of the epoch. All ways run with "
                f"`{' '.join(map('='.join, HEAPS.items()))}` ([why](memory.md#a-large-shuffle-buffer-takes-more-than-its-elements))",
            }
        ),
        *of_pipelines(told["pipeline"]),
        "**The start of a job**",
        "",
        "A job starts, and each rank takes one small batch. The slowest rank counts.",
        *defined(
            {
                "Seconds of import and `init`": "what follows after `MPI_Init`. With TensorFlow, its own import came before",
                "MiB of a rank then": "resident memory of the process, with mpi4py",
            }
        ),
        *of_starts(told["start"]),
        "**Ready-made batches**",
        "",
        prose(
            "Batches are float32 arrays of 32 rows. Rank 0 reads and trains. A Python source gives the same array again and again, and the reader copies "
            "it once. `tf.data` has the array in shared memory, and copies nothing."
        ),
        *defined(
            {
                "broadcast + slice": f"rank 0 sends the batches of all ranks to each rank: {told['broadcast']}",
                "Accelerate, dispatch_batches": "Hugging Face's `DataLoaderDispatcher`, which does the same",
                "DataLoader + DistributedSampler, Grain": "each rank takes its rows from an array in its own memory, one by one",
                "Streaming": "MosaicML Streaming. Each rank reads its rows from local files",
            }
        ),
        *of_loading(told["loading"]),
    ]


def drawn(told: Result) -> Any:
    def draw(pyplot: Any) -> Any:
        groups = by_size(told["loading"])
        figure, axes = pyplot.subplots(1, 1 + len(groups), figsize=(5 + 5 * len(groups), 3.4), squeeze=False)
        colours = dict(zip(PIPELINES, ("ours", "rival", "rival")))
        ways = [way for way in PIPELINES if told["pipeline"]][::-1]
        memory = [middle(told["pipeline"], way, "memory") / 2**30 for way in ways]
        axes[0][0].barh(
            [PIPELINES[way].replace("`", "") for way in ways], memory, color=[COLOURS[colours[way]] for way in ways]
        )
        axes[0][0].set_xlabel("GiB of the job, RLDS-like pipeline")
        for axis, group in zip(axes[0][1:], groups):
            report.bars(axis, [result for result in group if not result["error"]])
            axis.set_title(f"{group[0]['ranks']} ranks, {size_name(group[0]['bytes'])}, ready-made")
        return figure

    return draw


def complete(told: Result) -> bool:
    ways = {part: {result["way"] for result in told[part]} for part in ("pipeline", "start")}
    started = set(STARTS) - ways["start"] <= {"torch"}
    loaded = told["loading"] and all(not r["error"] or r["error"].endswith("not installed") for r in told["loading"])
    return ways["pipeline"] == set(PIPELINES) and started and bool(loaded)


def main() -> int:
    parser = launch.options(__doc__, limit=300)
    parser.add_argument(
        "--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="another one keeps its results in --out"
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--frames", type=int, default=64_000, help="in the files")
    parser.add_argument("--buffer", type=int, default=16_000, help="decoded frames in a shuffle buffer")
    parser.add_argument("--side", type=int, default=224, help="pixels of a frame's side")
    parser.add_argument("--rows", type=int, default=7, help="frames of one rank's batch; 7 of 224 x 224 are 1 MiB")
    parser.add_argument("--rounds-of-pipeline", type=int, default=3)
    parser.add_argument("--rounds-of-start", type=int, default=3)
    parser.add_argument("--bytes", type=int, nargs="+", default=[4 << 10, 1 << 20], help="per rank's batch, ready-made")
    quick = {"frames": 200, "buffer": 50, "side": 32, "rows": 4, "rounds_of_pipeline": 1, "rounds_of_start": 1}
    arguments = launch.parsed(parser, ranks=2, bytes=[4 << 10], **quick)
    before = arguments.out / "torch_ranks.json"
    told: dict[str, Any] = (
        json.loads(before.read_text()) if len(arguments.parts) < len(PARTS) and before.exists() else {}
    )
    told |= {name: getattr(arguments, name) for name in ("rounds", "ranks", "frames", "buffer", "side", "rows")}
    told |= {
        "broadcast": BROADCAST,
        "machine": machine.describe(),
        "packages": {name: machine.version(name) for name in PACKAGES},
    }
    told |= {part: told.get(part, []) for part in PARTS}
    for part in arguments.parts:
        told[part] = list(PARTS[part](arguments))
    write("torch_ranks", told, text(told), summary(told), arguments, drawn(told))
    return 0 if complete(told) else 1


if __name__ == "__main__":
    sys.exit(main())
