#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Measures the parts of the time from a loss to the next step. It prints the table in docs/long-jobs.md.

    python tests/soak/restart_times.py          # about 3 minutes; root, for the simulated hosts

The job is that of tests/restarted.py: Keras with TensorFlow on 3 ranks.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS), str(TESTS / "cluster")]

import restarted  # noqa: E402
from bed import Bed  # noqa: E402
from launched import Launched, start_launcher  # noqa: E402

SILENT = 10  # HOROVOD_DATA_TIMEOUT, in seconds
PAUSE = 1.0  # of the launcher, before the second attempt
PARTS = ["noticed", "pause and probe", "mpirun", "imports", "init", "restore, first step", "sum"]
NOTICED = (
    "noticed that process",
    "BAD TERMINATION",
    "Remote daemon",
    "ORTE has lost communication",
    "terminated by signal",
)


def watched(job: Launched, lost: float, folder: Path) -> list[float]:
    """The seconds of each part, from the loss to the first step of attempt 2."""
    noticed = started = 0.0
    while not started:
        assert job.poll() is None and time.time() < lost + 120, job.output
        text = job.output
        if not noticed and any(one in text for one in NOTICED):
            noticed = time.time()
        if "Attempt 2 starts" in text:
            started = time.time()
        time.sleep(0.01)
    assert job.finish(120) == 0, job.output
    began, imported, joined = json.loads((folder / "times.2").read_text())
    first = min(json.loads(line)[3] for line in (folder / "rows.2.0").read_text().splitlines())
    noticed = noticed or started - PAUSE  # mpirun did not name the loss, and no other host was asked
    at = [lost, noticed, started, began, imported, joined, first]
    return [after - before for before, after in zip(at, at[1:])] + [first - lost]


def by_signal(folder: Path, name: str) -> list[float]:
    options = ["-np", "3", "--state", str(folder / "state"), "--max-restarts", "2", sys.executable]
    words = [*options, *restarted.write(folder), f"1:1:6:{name}", "0.1"]
    with start_launcher(*words, env={"HOROVOD_DATA_TIMEOUT": str(SILENT)}, cwd=folder) as job:
        killed = folder / "killed.1"
        job.wait_until(lambda: killed.exists() and bool(killed.read_text()), f"no rank has got {name}")
        return watched(job, float(killed.read_text()), folder)


def cut_off(folder: Path) -> list[float]:
    with Bed(3) as bed:
        hosts = ",".join(f"{name}:{slots}" for name, slots in zip(bed.names, (2, 1, 1)))
        options = ["-np", "4", "--min-np", "3", "-H", hosts, "--state", str(folder / "state"), "--max-restarts", "2"]
        words = [*options, sys.executable, *restarted.write(folder), "", "0.2"]
        with start_launcher(*words, cwd=folder, bed=bed) as job:
            job.wait_until(lambda: 6 in restarted.trained(folder).get(1, {}), "no rank has made step 6")
            bed.cut(2)
            return watched(job, time.time(), folder)


def main() -> None:
    print(f"| | {' | '.join(PARTS)} |\n|---|{'--:|' * len(PARTS)}")
    for what, run in (
        ("SIGKILL", lambda folder: by_signal(folder, "SIGKILL")),
        (f"SIGSTOP, with HOROVOD_DATA_TIMEOUT={SILENT}", lambda folder: by_signal(folder, "SIGSTOP")),
        ("a host is cut off", cut_off),
    ):
        with tempfile.TemporaryDirectory() as folder:
            print(f"| {what} | {' | '.join(f'{seconds:.1f}' for seconds in run(Path(folder)))} |", flush=True)


if __name__ == "__main__":
    main()
