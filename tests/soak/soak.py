# SPDX-License-Identifier: Apache-2.0
"""Runs random jobs, one after another, for a number of minutes.

The jobs differ in modes, shapes, types, readers, ways, epochs, breaks and checkpoints.

    make soak MINUTES=10
    python tests/soak/soak.py --minutes 10 [--seed 7] [--processes 5]
    python tests/soak/soak.py --seed 7 --job 3 --case 41      # repeats a finding

Every batch is verified (verify=True) and compared with plain Python (tests/oracle.py). Every epoch's certificate must
be complete. Equal rows must have equal certificates, with breaks, saves and restores, too. The memory, shared memory,
threads and open files of a process must not grow from case to case.

Status 1: something was found. The last lines name it, and the command that repeats it.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import random
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from ranks.launch import RunningJob  # noqa: E402
from ranks.worlds import CAN_NAME_HOSTS  # noqa: E402

MIB = 1 << 20
ARENA_MB = 64  # HOROVOD_DATA_ARENA_MB of the jobs
PROGRAM = HERE / "soaking.py"
START = 180  # seconds that a job may need to import TensorFlow and to begin, on a slow machine
LAST_CASE = 240  # seconds for the case after a job's time is over, one more, and the end
FEWEST = 9  # cases that a job needs, so that its memory is judged


@dataclasses.dataclass(frozen=True)
class Setting:
    """The properties that all cases of a job share."""

    trainers: int
    readers: int  # dedicated; 0: rank 0 reads
    way: str
    horovod: bool

    @property
    def processes(self) -> int:
        return self.trainers + self.readers

    @property
    def environment(self) -> dict[str, Optional[str]]:
        way = {"HVDATA_TEST_HOSTS": "2"} if self.way == "two hosts" else {"HOROVOD_DATA_PAYLOAD": self.way}
        return {
            "HOROVOD_DATA_ARENA_MB": str(ARENA_MB),
            "HOROVOD_DATA_TIMEOUT": "150",
            "PYTHONMALLOC": "malloc",
            "MALLOC_MMAP_THRESHOLD_": "65536",
            # With oneDNN, TensorFlow's allocator doubles its regions up to 64 MiB and keeps them. They count as
            # allocated.
            "TF_ENABLE_ONEDNN_OPTS": "0",
            **way,
        }

    def __str__(self) -> str:
        readers = f"{self.readers} dedicated reader{'s' * (self.readers > 1)}" if self.readers else "rank 0 reads"
        return f"{self.trainers} ranks, {readers}, {self.way}{', with Horovod' * self.horovod}"


def draw(seed: str, job: int, processes: int) -> Setting:
    r = random.Random(f"{seed}/{job}")
    readers = min(r.choice([0, 0, 1, 1, 2]), processes - 1)
    ways = ["auto", "arena", "message"] + ["two hosts"] * CAN_NAME_HOSTS
    return Setting(r.randint(1, min(4, processes - readers)), readers, r.choice(ways), r.random() < 0.25)


def thirds(samples: list[dict[str, int]], what: str) -> tuple[int, int]:
    """The median of the first third of the samples, and of the last."""
    part = max(1, len(samples) // 3)
    values = [sample[what] for sample in samples]
    return int(statistics.median(values[:part])), int(statistics.median(values[-part:]))


# How much the median of the last third of a job's cases may exceed that of the first third. In the first third,
# TensorFlow's pools, MPI's buffers and the largest batches are allocated.
LEVEL = {
    # Every channel leaves 1 to 5 KiB, as any dataset of TensorFlow does. A case makes several datasets, saves and
    # restores. It delivers 100 KiB to 18 MiB, so one kept batch per case would show.
    "allocated": lambda cases: 8 * MIB + cases * (64 << 10),
    # Freed memory between allocated memory stays. Thousands of short strings leave holes of some MiB.
    "private": lambda cases: 128 * MIB,
    "shared": lambda cases: (ARENA_MB + 8) * MIB,
    "threads": lambda cases: 10,  # TensorFlow's pools may still grow. A leak of a thread per case would make a hundred
    "files": lambda cases: 2,  # one that is being closed
}


class Totals:
    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        # Medians of the first and the last third of a job, of the process that grew most.
        self.memory = {"allocated": (0, 0), "private": (0, 0)}

    def add(self, told: Sequence[list[dict[str, Any]]]) -> None:
        self.counts["jobs"] += 1
        for process, cases in enumerate(told):
            for case in cases:
                of_all = [] if process else ["cases", "epochs", "cached epochs", "breaks", "saves", "restores"]
                of_trainers = [] if case["rank"] is None else ["steps", "rows"]
                self.counts.update({what: {"cases": 1, **case}.get(what, 0) for what in of_all + of_trainers})
            if len(cases) >= FEWEST:
                for what, (begin, end) in self.memory.items():
                    now = thirds(cases, what)
                    if not end or now[1] - now[0] > end - begin:
                        self.memory[what] = now

    def summarize(self, seed: str, seconds: float) -> None:
        c = self.counts
        memory = ""
        if self.memory["private"][1]:
            grown = [f"{what} {begin / MIB:.0f} to {end / MIB:.0f} MiB" for what, (begin, end) in self.memory.items()]
            memory = f"; of the process that grew most, first and last third of its job: {', '.join(grown)}"
        print(
            f"[soak] seed {seed}: {seconds / 60:.1f} minutes, {c['jobs']} jobs, {c['cases']:,} cases, {c['epochs']:,} epochs, "
            f"{c['steps']:,} steps and {c['rows']:,} rows verified, {c['breaks']:,} epochs broken off, {c['saves']:,} saves, "
            f"{c['restores']:,} restores, {c['cached epochs']:,} epochs from the job's memory{memory}"
        )


def judge(setting: Setting, told: Sequence[list[dict[str, Any]]]) -> list[str]:
    """Returns a line for each figure that grows from case to case of a job."""
    found = []
    for process, cases in enumerate(told):
        if len(cases) < FEWEST:
            continue
        for what, most in LEVEL.items():
            begin, end = thirds(cases, what)
            allowed = most(len(cases))
            if end - begin > allowed:
                grown = f"{what} went from {begin:,} to {end:,} over {len(cases)} cases"
                found.append(f"process {process}: {grown}, and may grow by {allowed:,}")
        if held := cases[-1]["arena"]:
            found.append(f"process {process}: {held:,} bytes of shared memory are still in use after the last case")
    return found


Told = list[list[dict[str, Any]]]  # what each process reports of each case


def run(setting: Setting, given: dict[str, Any], folder: Path, program: Path) -> tuple[list[str], Told]:
    """Runs one job. Returns what was found, and the reports."""
    directory = folder / f"job{given['job']}"
    env = {**setting.environment, "HOROVOD_DATA_CERTIFICATE": str(directory / "certificate.json")}
    command = [sys.executable, str(program), json.dumps(given)]
    job = RunningJob(command, setting.processes, directory, readers=setting.readers, env=env)
    found = []
    try:
        status = job.wait(START + given["seconds"] + LAST_CASE)
        outs = [job.read("out", process) for process in range(setting.processes)]
        found += dict.fromkeys(line for out in outs for line in re.findall("^FOUND (.*)", out, re.MULTILINE))
        if status is None:
            stacks = "".join(f"\n=== process {process} ===\n{text}" for process, text in job.stacks().items())
            found.append(f"the job had not ended in time{stacks}")
        elif status != 0 and not found:
            said = "\n".join(job.read("err", process)[-1500:] for process in range(setting.processes))
            found.append(f"the job ended with status {status}\n{job.log()[-1500:]}\n{said}")
    finally:
        job.kill()
    told = [[json.loads(line) for line in re.findall("^CASE (.*)", out, re.MULTILINE)] for out in outs]
    return found + (judge(setting, told) if not found else []), told


def main(argv: Optional[Sequence[str]] = None, program: Path = PROGRAM) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument(
        "--job-minutes", type=float, help="of each job; by default 4, or a quarter of all. Long jobs show slow leaks"
    )
    parser.add_argument("--seed", default=None, help="by default another one each time; it is printed")
    parser.add_argument("--processes", type=int, default=5, help="of a job, at most; 4 of them train at most")
    parser.add_argument("--job", type=int, help="this job alone")
    parser.add_argument("--case", type=int, help="and this case of it alone")
    parser.add_argument("--out", type=Path, help="where the jobs' output is kept")
    arguments = parser.parse_args(argv)
    seed = arguments.seed or f"{random.SystemRandom().randrange(10**6)}"
    folder = Path(tempfile.mkdtemp(prefix="hvdata-soak-", dir=arguments.out))
    begin, totals, found = time.monotonic(), Totals(), []
    seconds = 60 * arguments.minutes
    # The seconds of a job: enough for leaks to show, and few enough for several jobs in the shortest run.
    each = 60 * arguments.job_minutes if arguments.job_minutes else min(240.0, seconds / 4)
    number = arguments.job or 0
    while not found and time.monotonic() - begin < seconds:
        setting = draw(seed, number, arguments.processes)
        given = {
            "seed": seed,
            "job": number,
            "seconds": min(each, seconds - (time.monotonic() - begin)),
            "readers": setting.readers,
            "horovod": setting.horovod,
            "folder": str(folder),
            "cases": [] if arguments.case is None else [arguments.case],
        }
        print(f"[soak] {(time.monotonic() - begin) / 60:5.1f} min, job {number}: {setting}", flush=True)
        (folder / f"job{number}").mkdir(exist_ok=True)
        found, told = run(setting, given, folder, program)
        totals.add(told)
        totals.summarize(seed, time.monotonic() - begin)
        if arguments.job is not None or found:
            break
        shutil.rmtree(folder / f"job{number}")
        number += 1
    for one in found:
        print(f"[soak] FOUND in job {number} ({setting}): {one}")
    if found:
        print(
            f"[soak] to repeat it: python tests/soak/soak.py --seed {seed} --processes {arguments.processes} "
            f"--job {number} --minutes {max(1.0, each / 60):g}; a single case: with --case as well. Output of its ranks: {folder}"
        )
        return 1
    shutil.rmtree(folder)
    if not totals.counts["steps"]:
        print("[soak] nothing was delivered: give it more minutes")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
