# SPDX-License-Identifier: Apache-2.0
"""Random jobs, one after another, for so many minutes: modes, shapes, types, readers, ways, epochs, breaks, checkpoints.

    make soak MINUTES=10
    python tests/soak/soak.py --minutes 10 [--seed 7] [--processes 5]
    python tests/soak/soak.py --seed 7 --job 3 --case 41      # what a finding says repeats it

Every batch is verified (verify=True) and compared with what plain Python says it must be (tests/oracle.py); every epoch's
certificate must be complete and, for the same rows, the same: over breaks, saves and restores, and where another job with
another number of ranks goes on. Of every process memory, shared memory, threads and open files are looked at between
cases, and must stay level. Status 1: something was found; the last lines say what, and what repeats it.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import usage  # noqa: E402
from ranks.launch import RunningJob  # noqa: E402
from ranks.worlds import CAN_NAME_HOSTS  # noqa: E402

PROGRAM = HERE / "soaking.py"
START = 180  # seconds that a job may need to import TensorFlow and to begin, on a slow machine
LAST_CASE = 240  # seconds after its time is over: the case that it is in, one more, and the end
# Else TensorFlow's allocator of builds with oneDNN takes regions that double, up to 64 MiB, and keeps them: they count as allocated.
GIVEN_BACK = {"TF_ENABLE_ONEDNN_OPTS": "0"}
FEWEST = 9  # cases of a job that memory is judged by


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
            "HOROVOD_DATA_ARENA_MB": str(usage.ARENA_MB),
            "HOROVOD_DATA_TIMEOUT": "150",
            "PYTHONMALLOC": "malloc",
            "MALLOC_MMAP_THRESHOLD_": "65536",
            **way,
        }

    def __str__(self) -> str:
        readers = f"{self.readers} dedicated reader{'s' * (self.readers > 1)}" if self.readers else "rank 0 reads"
        return f"{self.trainers} ranks, {readers}, {self.way}{', with Horovod' * self.horovod}"


def draw(seed: str, job: int, processes: int, most_readers: int) -> Setting:
    r = random.Random(f"{seed}/{job}")
    readers = min(r.choice([0, 0, 1, 1, 2]), processes - 1, most_readers)
    ways = ["auto", "arena", "message"] + ["two hosts"] * CAN_NAME_HOSTS
    return Setting(r.randint(1, min(4, processes - readers)), readers, r.choice(ways), r.random() < 0.25)


class Totals:
    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.memory = {
            "allocated": [0, 0],
            "private": [0, 0],
        }  # of the process that grew most: first and last third of its job
        self.jobs = self.cases = 0

    def add(self, told: Sequence[list[dict[str, Any]]]) -> None:
        self.jobs += 1
        for process, cases in enumerate(told):
            for case in cases:
                if case["rank"] is not None:
                    self.counts.update({what: case.get(what, 0) for what in ("steps", "rows")})
                if process == 0:
                    self.cases += 1
                    self.counts.update(
                        {what: case.get(what, 0) for what in ("epochs", "breaks", "saves", "restores", "resizes")}
                    )
            if len(cases) >= FEWEST:
                for what, worst in self.memory.items():
                    begin, end = usage.thirds(cases, what)
                    if not worst[1] or end - begin > worst[1] - worst[0]:
                        self.memory[what] = [begin, end]


def judge(setting: Setting, told: Sequence[list[dict[str, Any]]]) -> list[str]:
    """The figures that grow between a job's cases."""
    found = []
    for process, cases in enumerate(told):
        if len(cases) < FEWEST:
            continue
        for what, most in usage.LEVEL.items():
            begin, end = usage.thirds(cases, what)
            if end - begin > most(len(cases)):
                found.append(
                    f"process {process}: {what} went from {begin:,} to {end:,} over {len(cases)} cases, and may grow "
                    f"by {most(len(cases)):,}"
                )
        if held := cases[-1]["arena"]:
            found.append(f"process {process}: {held:,} bytes of shared memory are still in use after the last case")
    return found


def run(
    setting: Setting, given: dict[str, Any], folder: Path, program: Path
) -> tuple[list[str], list[list[dict[str, Any]]]]:
    """One job: what was found, and what each process told of each case."""
    directory = folder / f"job{given['job']}"
    command = [sys.executable, str(program), json.dumps(given)]
    job = RunningJob(
        command,
        setting.processes,
        directory,
        readers=setting.readers,
        env={**GIVEN_BACK, **setting.environment, "HOROVOD_DATA_CERTIFICATE": str(directory / "certificate.json")},
    )
    found = []
    try:
        status = job.wait(START + given["seconds"] + LAST_CASE)
        outs = [job.read("out", process) for process in range(setting.processes)]
        lines = [line for out in outs for line in out.splitlines() if line.startswith("FOUND ")]
        found += dict.fromkeys(line.removeprefix("FOUND ") for line in lines)
        if status is None:
            stacks = "".join(f"\n=== process {process} ===\n{text}" for process, text in job.stacks().items())
            found.append(f"the job had not ended in time{stacks}")
        elif status != 0 and not found:
            said = "\n".join(job.read("err", process)[-1500:] for process in range(setting.processes))
            found.append(f"the job ended with status {status}\n{job.log()[-1500:]}\n{said}")
    finally:
        job.kill()
    told = [
        [json.loads(line.removeprefix("CASE ")) for line in out.splitlines() if line.startswith("CASE ")]
        for out in outs
    ]
    return found + (judge(setting, told) if not found else []), told


def main(argv: Optional[Sequence[str]] = None, program: Path = PROGRAM) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument(
        "--job-minutes",
        type=float,
        help="of each job; by default 4, or a quarter of all. A leak that is slow shows in a long one",
    )
    parser.add_argument("--seed", default=None, help="by default another one each time; it is told")
    parser.add_argument("--processes", type=int, default=5, help="of a job, at most; 4 of them train at most")
    parser.add_argument("--readers", type=int, default=2, help="dedicated ones, at most")
    parser.add_argument("--job", type=int, help="this job alone")
    parser.add_argument("--case", type=int, help="and this case of it alone")
    parser.add_argument("--out", type=Path, help="where the jobs' output is kept")
    arguments = parser.parse_args(argv)
    seed = arguments.seed or f"{random.SystemRandom().randrange(10**6)}"
    folder = Path(tempfile.mkdtemp(prefix="hvdata-soak-", dir=arguments.out))
    begin, totals, found, handed_on = time.monotonic(), Totals(), [], ""
    seconds = 60 * arguments.minutes
    # A job each: long enough for memory to show, and some jobs in the shortest run.
    each = 60 * arguments.job_minutes if arguments.job_minutes else min(240.0, seconds / 4)
    number = arguments.job or 0
    while not found and time.monotonic() - begin < seconds:
        setting = draw(seed, number, arguments.processes, arguments.readers)
        one_state = setting.readers < 2  # with two readers whose turn it is depends on the number of ranks
        given = {
            "seed": seed,
            "job": number,
            "seconds": min(each, seconds - (time.monotonic() - begin)),
            "readers": setting.readers,
            "horovod": setting.horovod,
            "folder": str(folder),
            "cases": [] if arguments.case is None else [arguments.case],
            "goes_on": bool(one_state and handed_on),
            "hands_on": f"{seed}/handed on by {number}" if one_state else "",
        }
        print(f"[soak] {(time.monotonic() - begin) / 60:5.1f} min, job {number}: {setting}", flush=True)
        (folder / f"job{number}").mkdir(exist_ok=True)
        found, told = run(setting, given, folder, program)
        totals.add(told)
        summarize(totals, seed, time.monotonic() - begin)
        if one_state:
            handed_on = given["hands_on"]
        if arguments.job is not None or found:
            break
        shutil.rmtree(folder / f"job{number}")
        number += 1
    for one in found:
        print(f"[soak] FOUND in job {number} ({setting}): {one}")
    if found:
        print(
            f"[soak] to repeat it: python tests/soak/soak.py --seed {seed} --processes {arguments.processes} "
            f"--readers {arguments.readers} --job {number} "
            f"--minutes {max(1.0, each / 60):g}; a single case: with --case as well. Output of its ranks: {folder}"
        )
        return 1
    shutil.rmtree(folder)
    if not totals.counts["steps"]:
        print("[soak] nothing was delivered: give it more minutes")
        return 1
    return 0


def summarize(totals: Totals, seed: str, seconds: float) -> None:
    c = totals.counts
    memory = ""
    if totals.memory["private"][1]:
        memory = "; memory of the process that grew most, from the first third of its job to the last: " + ", ".join(
            f"{what} {begin / usage.MIB:.0f} to {end / usage.MIB:.0f} MiB"
            for what, (begin, end) in totals.memory.items()
        )
    print(
        f"[soak] seed {seed}: {seconds / 60:.1f} minutes, {totals.jobs} jobs, {totals.cases:,} cases, {c['epochs']:,} epochs, "
        f"{c['steps']:,} steps and {c['rows']:,} rows verified, {c['breaks']:,} epochs broken off, {c['saves']:,} saves, "
        f"{c['restores']:,} restores, {c['resizes']:,} of them on another number of ranks{memory}"
    )


if __name__ == "__main__":
    sys.exit(main())
