# SPDX-License-Identifier: Apache-2.0
"""Accelerator utilisation of MLPerf Storage's profiles, for all ways to feed the ranks, measured as in DLIO.

Settings: profiles (their keys), shrink (samples and computation so many times smaller), least (timed steps of an
epoch), directory.

A round of a way is an epoch of a new pipeline, so nothing is buffered during other ways' turns. The loop is DLIO's
(_train in main.py, compute_metrics_train in utils/statscounter.py): a rank takes its batch, sleeps for the
accelerator's computation time, and meets the other ranks. Utilisation is the sleep time over the whole time, without
the first step. Each rank measures it by its own clock, and the result is the mean. DLIO leaves out a rank's first step
up to the barrier. Here the barrier is also left out, because epochs are short, and a rank's late first batch would
count on all other ranks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import io
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rivals
from profiles import PROFILES, Profile

import horovod_data as hvdata
from ranks.in_step import InStep
from ranks.profile_data import ReadyMade, Stored, write
from ranks.setting import READER, Job
from ranks.start import cpu_seconds, horovod_running, meet, start, tell
from ranks.turns import Steps

BARE = 0.5  # seconds of reading
ALL_READ = (rivals.shard, rivals.own_files)  # ways with a pipeline on every rank
FEWEST = 2  # the fewest rounds of a slow way
SLOW = 1.0  # of a round's seconds: if a step takes so long, the first epoch counts, too


@dataclasses.dataclass
class Way:
    name: str
    rival: rivals.Way
    source: str
    horovod: bool = False  # True: Horovod's threads run meanwhile, and take processor time from all ranks
    steps: int = 0  # of a round
    rounds: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    report: str = ""  # the text of hvdata.report() about the last round

    def told(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.rival.kind,
            "source": self.source,
            "about": self.rival.about,
            "rounds": self.rounds,
            "report": self.report,
        }


def ways() -> list[Way]:
    found = []
    for source, nothing_delivered in (("files", rivals.own_files), ("ready-made", rivals.local)):
        ours = rivals.ours_per_rank
        found += [Way(ours.name, ours, source), Way(f"{ours.name}, beside Horovod", ours, source, horovod=True)]
        found += [
            Way(rival.name, rival, source, horovod=rival.name.startswith("hvd."))
            for rival in (rivals.service, rivals.broadcast, rivals.alltoall, rivals.shard, nothing_delivered)
        ]
    return [*found, Way(rivals.reader_alone.name, rivals.reader_alone, "files")]


def epoch(job: Job, ranks: InStep, elements: Steps, seconds: float, steps: int) -> dict[str, Any]:
    """Runs one untimed step and `steps` timed steps.

    `busy`: utilisation; `a_step`: seconds, of the slowest rank; `cpu`: seconds of all ranks.
    """
    meet(job.comm)
    used, slept, began = 0.0, 0.0, 0.0
    for step in range(1 + steps):
        batch = next(elements)
        computing = time.perf_counter()
        time.sleep(seconds)
        computed = time.perf_counter() - computing
        del batch
        ranks.meet()  # DLIO's barrier, which stands for an allreduce
        if step == 0:
            began, used = time.perf_counter(), cpu_seconds()
        else:
            slept += computed
    total = time.perf_counter() - began
    told = job.comm.allgather((slept / total, total, cpu_seconds() - used))
    return {
        "busy": statistics.fmean(busy for busy, *_ in told),
        "a_step": max(total for _, total, _ in told) / steps,
        "cpu": sum(used for *_, used in told),
    }


def alone(job: Job, elements: Steps | None, steps: int) -> dict[str, Any]:
    """Seconds of a step, if one process takes all ranks' batches from the pipeline, and does nothing else."""
    meet(job.comm)
    took = 0.0
    if elements is not None:
        next(elements)
        began = time.perf_counter()
        for _ in range(steps):
            next(elements)
        took = (time.perf_counter() - began) / steps
    meet(job.comm)
    return {"a_step": job.comm.bcast(took, root=READER)}


def bare(job: Job, paths: list[str], size: int) -> float:
    """GB/s of all ranks together that only read() the files, `size` bytes at a time into the same memory."""
    memory = bytearray(size)
    read, number = 0, job.rank
    meet(job.comm)
    began = time.perf_counter()
    while (took := time.perf_counter() - began) < BARE:
        with open(paths[number % len(paths)], "rb", buffering=0) as file:
            while count := file.readinto(memory):
                read += count
        number += 1
    return float(sum(job.comm.allgather(read / took)) / 1e9)


def reported() -> str:
    """The verdict of report() on the newest channel."""
    with contextlib.redirect_stdout(io.StringIO()):
        report = hvdata.report()
    newest = max(report.verdicts, key=lambda name: int(name.removeprefix("channel")))
    return report.verdicts[newest].text


def turn(job: Job, ranks: InStep, way: Way, batch: ReadyMade | Stored, steps: int) -> dict[str, Any]:
    with horovod_running() if way.horovod else contextlib.nullcontext():
        elements = way.rival.steps(job, batch)
        if way.rival is rivals.reader_alone:
            measured = alone(job, elements, steps)
        else:
            measured = epoch(job, ranks, elements, batch.profile.seconds, steps)
        if way.rival is rivals.ours_per_rank and job.reads:
            way.report = reported()
        meet(job.comm)
        if elements is not None:
            elements.close()
        meet(job.comm)
    return {**measured, "steps": steps}


def measure(
    job: Job, ranks: InStep, given: dict[str, Any], profile: Profile, directory: Path
) -> Iterator[dict[str, Any]]:
    """Yields the results so far, after each round."""
    stored, by_one = Stored(profile, directory), Stored(profile, directory, feeds=job.size)
    if job.reads:
        directory.mkdir()
        write(profile, directory)
    meet(job.comm)
    contestants = ways()
    read: list[float] = []
    for number in range(1 + given["rounds"]):  # the first round warms up, and finds how many steps fit
        if number == 1:
            gc.collect()
            gc.freeze()
        for way in contestants[:: 1 if number % 2 else -1]:
            spent = sum(done["a_step"] * done["steps"] for done in way.rounds)
            if len(way.rounds) >= FEWEST and spent > 1.5 * given["rounds"] * given["seconds"]:
                continue
            few = max(given["least"], round(given["seconds"] / profile.seconds / 10))
            from_files = stored if way.rival in ALL_READ else by_one
            batch = from_files if way.source == "files" else ReadyMade(profile)
            measured = turn(job, ranks, way, batch, way.steps or few)
            if not number:
                way.steps = job.comm.bcast(
                    max(given["least"], round(given["seconds"] / measured["a_step"])), root=READER
                )
            if number or measured["a_step"] > SLOW * given["seconds"]:
                way.rounds.append(measured)
        if number:
            read.append(bare(job, stored.paths, profile.read))
            yield {"ranks": job.size, "read": read, "ways": [way.told() for way in contestants]}
    gc.unfreeze()
    if job.reads:
        shutil.rmtree(directory)


def main() -> None:
    job, given = start()
    ranks = InStep(job.comm)
    results: dict[str, dict[str, Any]] = {}
    for key in given["profiles"]:
        for result in measure(job, ranks, given, PROFILES[key].shrunk(given["shrink"]), Path(given["directory"]) / key):
            results[key] = {"profile": key, "shrink": given["shrink"], **result}
            if job.reads:
                tell(given, list(results.values()))
                print(
                    f"[bench] {PROFILES[key].name}: round {len(result['read'])} of {given['rounds']}", file=sys.stderr
                )
    hvdata.shutdown()


if __name__ == "__main__":
    main()
