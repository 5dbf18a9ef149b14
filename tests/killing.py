# SPDX-License-Identifier: Apache-2.0
"""A training that is killed and started again many times, also on other numbers of ranks. Ranks need no TensorFlow.

train_with_kills(folder, drawn(20, seed))        # the rows of each step, in order, and the final weights
train_under_the_launcher(folder, drawn(20, 6, LAUNCHED))   # the same, where horovod-data-run starts it again
train_under_the_launcher(folder, drawn(20, 6, ON_HOSTS), bed=Bed(3))   # the same, on simulated hosts
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jobs import run_job
from launched import Launched, start_launcher

EPOCHS, STEPS, ROWS, EVERY = 3, 100, 12, 3

# The kinds of faults. A fault happens to a rank a number of steps after the rank's start:
# - SIGKILL: at the end of a step, after the rank has written its part of a set, before or after the rename that
#   makes a set current, or at any time.
# - SIGUSR1.
# - The disk is full from then on. The rank gets SIGKILL seven steps later.
# - SIGSTOP, which only the launcher ends.
# - The host of the last rank is cut off until the next attempt.
KINDS = ("step", "sync", "before the rename", "full disk", "after the rename", "any time", "signal")
LAUNCHED = ("stop", *(kind for kind in KINDS if kind != "signal"))  # after a signal the launcher ends, too
ON_HOSTS = ("cut", *LAUNCHED)
SILENT_SECONDS = 8  # so long a stopped rank may be silent

PROGRAM = """
import contextlib, json, os, signal, socket, sys, threading, time
import numpy as np
import horovod_data as hvdata
from horovod_data.backup import sets

folder, kills = sys.argv[1], json.loads(sys.argv[2])
epochs, steps, rows, every = map(int, sys.argv[3:7])
attempt = int(os.environ["HOROVOD_DATA_ATTEMPT"])
kind, _, victim, after = kills[attempt - 1] if attempt <= len(kills) else ("none", 4, 0, 0)
hvdata.init()
from mpi4py import MPI

rank, size, made = hvdata.rank(), hvdata.size() or 1, 0  # a dedicated reader has no rank, and knows no size
victim = size - 1 if kind == "cut" else victim % size
comm = MPI.COMM_WORLD.Split(0 if hvdata.is_trainer() else MPI.UNDEFINED)

def die(later=0, number=signal.SIGKILL):
    if rank == victim and made >= after + later:
        os.kill(os.getpid(), number)

ballast = f"{folder}/sets/ballast"
if rank == 0 and os.path.exists(ballast):
    os.remove(ballast)

def fill():
    with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))

def dying(function, at, first):
    def changed(*arguments):
        if at == kind and first:
            die()
        result = function(*arguments)
        if at == kind and not first:
            die()
        return result
    return changed

if kind == "sync":
    sets.Sets.sync = dying(sets.Sets.sync, "sync", True)
if kind.endswith("the rename"):
    os.rename = dying(os.rename, kind, kind.startswith("before"))
if kind == "any time" and rank == victim:
    threading.Timer(0.02 * after, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()

class Weights:
    def __init__(self):
        self.value = np.zeros(4)
    def state_dict(self):
        return {"value": self.value.copy()}
    def load_state_dict(self, state):
        self.value = state["value"]

def source(epoch):
    draw = np.random.default_rng(epoch)
    order = draw.permutation(steps * rows)
    return [order[at : at + rows] for at in range(0, steps * rows, rows)]

loader = hvdata.loader(source, batch="global", remainder="partial", name="train", verify=True, shard="auto")
hvdata.serve()
weights = Weights()
with open(f"{folder}/rows.{attempt}.{rank}.{hvdata.size()}", "w") as log:
    with hvdata.Backup(f"{folder}/sets", every=every, seconds=None, weights=weights) as backup:
        if rank == 0:
            with open(f"{folder}/begun.{attempt}", "w") as file:
                file.write(str(backup.step))
        for epoch in backup.epochs(epochs):
            for share in backup.steps(loader):
                log.write(json.dumps([backup.step, share.tolist()]) + "\\n")
                log.flush()
                x = np.stack([np.cos((i + 1.0) * share) for i in range(4)], 1)
                gradient = comm.allreduce(x.T @ (x @ weights.value - np.sin(share)))
                weights.value = weights.value - 0.05 / rows * gradient
                made += 1
                if kind == "step":
                    die()
                if kind == "stop":
                    die(0, signal.SIGSTOP)
                if kind == "full disk" and made == after and rank == victim:
                    fill()
                if kind == "full disk":
                    die(7)
                if kind == "cut" and made == after and rank == victim:
                    with open(f"{folder}/cut.{attempt}.new", "w") as file:
                        file.write(socket.gethostname())
                    os.rename(file.name, f"{folder}/cut.{attempt}")
                if kind == "signal" and made == after and rank == victim:
                    os.kill(os.getpid(), signal.SIGUSR1)
                time.sleep(0.01)
    if rank == 0:
        with open(f"{folder}/weights", "w") as file:
            json.dump(weights.value.tolist(), file)
"""


class Trained(NamedTuple):
    rows: list[list[int]]  # of each step
    weights: list[float]
    sizes: list[int]  # the numbers of trainers of all starts in which every rank began its loop
    begun: list[int]  # the step at which each start of the job began
    certificate: Path
    output: str


def train_with_kills(folder: Path, kills: list[tuple[str, int, int, int]], readers: int = 0) -> Trained:
    """Runs the job once for each kill (the kind, the ranks, the victim, the steps until then), and once to its end."""
    output = ""
    with _folder(folder):
        for attempt, (kind, ranks, _, _) in enumerate([*kills, ("none", 4, 0, 0)], 1):
            env = {"HOROVOD_DATA_ATTEMPT": str(attempt), "HOROVOD_DATA_CERTIFICATE": str(folder / "certificate.json")}
            job = run_job(PROGRAM, ranks, *_words(folder, kills), env=env, readers=readers, timeout=120, status=None)
            output += job.describe()
            wanted = {"none": 0, "signal": 75}.get(kind)
            # A kill "in a write" may find no write left: then the job has come to its end.
            ended = (folder / "weights").exists()
            assert job.returncode == wanted if wanted is not None and not ended else ended or job.returncode != 0, (
                job.describe()
            )
            if ended:
                break
        return _trained(folder, output)


def train_under_the_launcher(
    folder: Path, kills: list[tuple[str, int, int, int]], *options: str, bed: Any = None, slots: tuple[int, ...] = ()
) -> Trained:
    """Runs the job once, with 4 trainers. horovod-data-run starts it again after each kill.

    options: more options of the launcher. bed: the job runs on these hosts, which have so many slots each.
    """
    with _folder(folder), bed or contextlib.nullcontext():
        (folder / "train.py").write_text(PROGRAM)
        words = ["-np", "4", "--state", str(folder / "sets"), "--max-restarts", str(len(kills) + 1), *options]
        if bed is not None:
            words += ["-H", ",".join(f"{name}:{count}" for name, count in zip(bed.names, slots))]
        words += [sys.executable, str(folder / "train.py"), *_words(folder, kills)]
        env = {
            "HOROVOD_DATA_CERTIFICATE": str(folder / "certificate.json"),
            "HOROVOD_DATA_TIMEOUT": str(SILENT_SECONDS),
        }
        with start_launcher(*words, env=env, bed=bed) as job:
            if bed is not None:
                _cut(bed, folder, job)
            assert job.finish(60 + 60 * len(kills)) == 0, job.output
        return _trained(folder, job.output)


def _cut(bed: Any, folder: Path, job: Launched) -> None:
    """Cuts off each host that the program names, until the next attempt starts or the launcher waits for the host."""
    while job.poll() is None:
        for asked in folder.glob("cut.*[0-9]"):
            host, said = bed.names.index(asked.read_text()), len(job.output)
            asked.unlink()
            bed.cut(host)
            while not re.search(r"Attempt \d+ starts|The launcher waits", job.output[said:]):
                assert job.poll() is None, job.output
                time.sleep(0.05)
            bed.reconnect(host)
        time.sleep(0.05)


def _words(folder: Path, kills: list[tuple[str, int, int, int]]) -> list[str]:
    return [str(folder), json.dumps(kills), *map(str, (EPOCHS, STEPS, ROWS, EVERY))]


@contextlib.contextmanager
def _folder(folder: Path) -> Iterator[None]:
    """The sets are on a file system of 1 MiB, if this process may mount one. Otherwise no disk is full."""
    (folder / "sets").mkdir(parents=True)
    mounted = os.geteuid() == 0 and not subprocess.call(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder / "sets")], stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        if mounted:
            subprocess.call(["umount", "--lazy", str(folder / "sets")])


def _trained(folder: Path, output: str) -> Trained:
    got: dict[int, list[int]] = {}
    begun, sizes = [], []
    for attempt in range(1, 1 + max(int(path.name.split(".")[1]) for path in folder.glob("rows.*"))):
        path = folder / f"begun.{attempt}"
        begun.append(int(path.read_text()) if path.exists() else -1)
        logs = sorted(folder.glob(f"rows.{attempt}.*"), key=lambda path: int(path.name.split(".")[2]))
        if not logs or len(logs) < int(logs[0].name.split(".")[3]):
            continue  # a rank was killed before its first step
        sizes.append(len(logs))
        by_rank = [_rows_of(path) for path in logs]
        for step in sorted(set().union(*by_rank)):
            if all(step in of_rank for of_rank in by_rank):
                got[step] = [row for of_rank in by_rank for row in of_rank[step]]
    weights = json.loads((folder / "weights").read_text())
    rows = [got[step] for step in range(len(got))]
    return Trained(rows, weights, sizes, begun, folder / "certificate.json", output)


def _rows_of(path: Path) -> dict[int, Any]:
    """The rows of a rank by step. A killed rank may have written a part of its last line."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return dict(json.loads(line) for line in lines)


def drawn(
    count: int, seed: int, kinds: tuple[str, ...] = KINDS, sizes: tuple[int, int] = (4, 3)
) -> list[tuple[str, int, int, int]]:
    """Random kills, of a job of 4, 3, 4, ... ranks. 20 of them are spread over the epochs."""
    draw = random.Random(seed)
    kills = []
    for number in range(count):
        ranks = sizes[number % 2]
        kind = kinds[number % len(kinds)]
        victim = 0 if "rename" in kind else draw.randrange(ranks)  # rank 0 alone renames
        kills.append((kind, ranks, victim, draw.randint(2, 24)))
    return kills


def same(trained: Trained, whole: Trained) -> None:
    """Asserts that a killed training has the rows, the weights and the certificate of an undisturbed one."""
    assert trained.rows == whole.rows and sum(map(len, whole.rows)) == EPOCHS * STEPS * ROWS
    np.testing.assert_allclose(trained.weights, whole.weights, atol=1e-5)
    compared = [sys.executable, "-m", "horovod_data.certificate", str(trained.certificate), str(whole.certificate)]
    answer = subprocess.run(compared, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stdout.count("in the same order") == EPOCHS


def same_after_all(trained: Trained, whole: Trained, kills: list[tuple[str, int, int, int]]) -> None:
    """Asserts that each kill has ended an attempt, the last of them after the first epoch. Then asserts same()."""
    assert len(trained.begun) == len(kills) + 1 and max(trained.begun) >= STEPS * 3 // 2, trained.begun
    if os.geteuid() == 0:  # only root can make a disk that is full
        assert "No space left on device" in trained.output, trained.output
    # The launcher finds a stopped rank, unless other ranks wait for it in this library. Then they find it first.
    found = rf"horovod-data-run: .*(no sign of life for|has waited) {SILENT_SECONDS} s.*Attempt"
    assert len(re.findall(found, trained.output)) == sum(kind == "stop" for kind, *_ in kills), trained.output
    same(trained, whole)
