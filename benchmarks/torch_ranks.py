# SPDX-License-Identifier: Apache-2.0
"""Ranks without TensorFlow: an RLDS-like pipeline for PyTorch, the start of a job, and ready-made batches.

    python benchmarks/torch_ranks.py                 # about 20 minutes
    python benchmarks/torch_ranks.py --docs          # and publish it in docs/

Each way has jobs of its own, in turns. Without PyTorch, ranks take NumPy arrays, and rank 0 sends by MPI. Accelerate,
Grain and MosaicML Streaming take part if they are installed. Needs mpi4py, and with 4 ranks 13 GB of memory. Writes
torch_ranks.json and .md to --out. Status 1: something failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import launch
import machine
from page import Result, defined, named, rate, rates, size_name, spread, table, write
from ranks.broadcasts import NAME as BROADCAST

EPISODE = 50  # frames
PIPELINES = {
    "ours": "a dedicated reader and `loader`",
    "every_rank": "every rank runs the pipeline",
    "broadcast": "rank 0 runs it, broadcast + slice",
    "alone": "rank 0 runs it, and sends nothing",
}
STARTS = {
    "numpy": "`loader`, numpy, a Python list on rank 0",
    "torch": "`loader`, torch, the same list",
    "tf.data": "`loader`, numpy, `tf.data` on a dedicated reader",
    "tensorflow": "`distribute_dataset`, `tf.data` on rank 0",
}
# Ready-made batches: the kind of each way, whether batches go from one process to all ranks, and the module that it
# needs.
LOADING = {
    "loader, numpy, tf.data": ("ours", True, "horovod_data"),
    "loader, torch, tf.data": ("ours", True, "torch"),
    "loader, numpy, Python": ("ours", True, "horovod_data"),
    "distribute_dataset, tf.data": ("limit", True, "horovod_data"),
    "distribute_dataset, from_generator": ("limit", True, "horovod_data"),
    "broadcast + slice": ("rival", True, "horovod_data"),
    "Accelerate, dispatch_batches": ("rival", True, "accelerate"),
    "DataLoader + DistributedSampler": ("rival", False, "torch"),
    "Grain": ("rival", False, "grain"),
    "Streaming": ("rival", False, "streaming"),
}
PACKAGES = ("torch", "accelerate", "grain", "mosaicml-streaming")
# Otherwise a shuffle buffer leaves gaps in the heaps of glibc: docs/memory.md.
HEAPS = {"MALLOC_MMAP_THRESHOLD_": "65536"}


def middle(results: list[Result], way: str, what: str) -> float:
    """The median of the rounds."""
    return float(median(result[what] for result in results if result["way"] == way))


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
    """Each round has a job for each way, so no way is slowed down by threads and memory of another."""
    results = []
    for size in arguments.bytes:
        window = max(2, min(64, (64 << 20) // (arguments.ranks * size)))  # the default
        for name, (kind, moves, module) in LOADING.items():
            about = "" if importlib.util.find_spec(module) else f"{module} is not installed"
            ahead = 2 if kind == "rival" else window
            base = {"name": name, "kind": kind, "moves": moves, "ranks": arguments.ranks, "bytes": size, "ahead": ahead}
            results.append({**base, "steps": 1, "seconds": [], "error": "", "about": about})
    for _ in range(arguments.rounds):
        for result in results:
            if not result["about"]:
                given = {"way": result["name"], "bytes": result["bytes"], "ahead": result["ahead"]}
                for told in launch.run("loading", arguments.ranks, arguments, given):
                    result["seconds"] += [seconds / told["steps"] for seconds in told["seconds"]]
                    result["error"] = result["about"] = told["error"]
    return results


def of(results: list[Result], what: str) -> Callable[[str], float]:
    return lambda way: middle(results, way, what)


def of_pipelines(results: list[Result]) -> list[str]:
    read, source, memory = of(results, "read"), of(results, "source"), of(results, "memory")
    steps, seconds, imported = of(results, "steps"), of(results, "seconds"), of(results, "with_tensorflow")
    columns = {
        "": PIPELINES.__getitem__,
        "times the files are read": lambda way: f"{read(way) / source(way):.2f}",
        "GiB of the job": lambda way: f"{memory(way) / 2**30:.2f}",
        "steps/s": lambda way: f"{steps(way) / seconds(way):.1f}",
        "seconds of the epoch": lambda way: f"{seconds(way):.1f}",
        "ranks with TensorFlow": lambda way: f"{imported(way):.0f}",
    }
    return table(PIPELINES if results else [], columns)


def of_starts(results: list[Result]) -> list[str]:
    measured = {result["way"] for result in results}
    first = of(results, "first")

    def cell(show: Callable[[str], str]) -> Callable[[str], str]:
        return lambda way: show(way) if way in measured else "not installed"

    columns = {
        "": STARTS.__getitem__,
        "seconds to the first batch": cell(lambda way: f"{first(way):.2f}"),
        "sooner": cell(lambda way: f"{first('tensorflow') / first(way):.1f}x"),
        "seconds of import and `init`": cell(lambda way: f"{middle(results, way, 'init'):.2f}"),
        "MiB of a rank then": cell(lambda way: f"{middle(results, way, 'resident') / 2**20:.0f}"),
        "ranks with TensorFlow": cell(lambda way: f"{middle(results, way, 'with_tensorflow'):.0f}"),
    }
    return table(STARTS if results else [], columns)


def of_loading(results: list[Result]) -> list[str]:
    lines = []
    for size in dict.fromkeys(result["bytes"] for result in results):
        group = [result for result in results if result["bytes"] == size]
        base = named(group, "distribute_dataset, tf.data")
        columns = {
            "": lambda r: r["name"],
            "steps/s": lambda r: spread(rates(r)) if r["seconds"] else " ".join(r["about"].split())[:120],
            "relative to `distribute_dataset`": lambda r: (
                f"{rate(r) / rate(base):.2f}x" if base and r["seconds"] else ""
            ),
            "one process feeds all": lambda r: ("yes" if r["moves"] else "no") if r["seconds"] else "",
        }
        lines += ["", f"**{group[0]['ranks']} ranks, {size_name(size)} per rank**", *table(group, columns)]
    return lines


def main() -> int:
    # frames: in the files. buffer: decoded frames in a shuffle buffer. side: pixels of a frame's side. rows: frames of
    # one rank's batch; 7 of 224 x 224 are 1 MiB. bytes: per rank's batch, ready-made.
    settings = {"ranks": 4, "frames": 64_000, "buffer": 16_000, "side": 224, "rows": 7, "bytes": [4 << 10, 1 << 20]}
    settings |= {"rounds": 5, "rounds_of_job": 3, "rounds_of_pipeline": 3, "rounds_of_start": 3}
    quick = {"ranks": 2, "frames": 200, "buffer": 50, "side": 32, "rows": 4, "bytes": [4 << 10]}
    quick |= {"rounds_of_job": 1, "rounds_of_pipeline": 1, "rounds_of_start": 1}
    arguments = launch.parsed(__doc__, quick, limit=300.0, **settings)
    versions = {name: machine.version(name) for name in PACKAGES}
    told = {
        "pipeline": list(pipelines(arguments)),
        "start": list(starts(arguments)),
        "loading": loading(arguments),
    }
    packages = ", ".join(f"{name} {version}" for name, version in versions.items() if version != "none")
    buffer = arguments.buffer * arguments.side**2 * 3 / 2**30
    text = [
        f"Installed: {packages or 'NumPy alone'}. Figures are medians of rounds. In a round each way has a job of its own, one after the other.",
        "",
        "**An RLDS-like pipeline**",
        "",
        f"The files have {arguments.frames:,} JPEG frames of {arguments.side} x {arguments.side} pixels, in episodes of "
        f"{EPISODE} frames. The pipeline reads and parses episodes, decodes frames, and shuffles decoded frames in a buffer of "
        f"{arguments.buffer:,}, which takes {buffer:.2f} GiB. A rank's batch has {arguments.rows} frames. Nothing trains.",
        *defined(
            {
                PIPELINES[
                    "every_rank"
                ]: "each rank reads and parses everything, and decodes and shuffles every N-th frame",
                PIPELINES["broadcast"]: f"rank 0 sends all ranks' arrays to each rank, without the texts: {BROADCAST}",
                PIPELINES["alone"]: "so no way with one reader on these cores can be faster",
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
        "Batches are float32 arrays of 32 rows. Rank 0 reads and trains. A Python source gives the same array again and again, and the reader copies "
        "it into shared memory for each rank. `tf.data` keeps its array. So the reader copies it for each other rank, and not for itself.",
        *defined(
            {
                "broadcast + slice": f"rank 0 sends the batches of all ranks to each rank: {BROADCAST}",
                "Accelerate, dispatch_batches": "Hugging Face's `DataLoaderDispatcher`, which does the same",
                "DataLoader + DistributedSampler, Grain": "each rank takes its rows from an array in its own memory, one by one",
                "Streaming": "MosaicML Streaming. Each rank reads its rows from local files",
            }
        ),
        *of_loading(told["loading"]),
    ]
    return write("torch_ranks", arguments, text, broadcast=BROADCAST, packages=versions, **told)


if __name__ == "__main__":
    sys.exit(main())
