# SPDX-License-Identifier: Apache-2.0
"""A training that is killed again and again, and started again on other numbers of ranks. Ranks need no TensorFlow.

train_with_kills(folder, drawn(20, seed))   # the rows of each step, in order, and the final weights
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jobs import run_job

EPOCHS, STEPS, ROWS, EVERY = 3, 100, 12, 3

# Of a fault: a rank, and what happens to it when it has made so many steps since it began.
KINDS = ("step", "sync", "before the rename", "after the rename", "any time", "signal")

PROGRAM = """
import json, os, signal, sys, threading, time
import numpy as np
import horovod_data as hvdata
from horovod_data.backup import sets

folder, kind, victim, after = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
epochs, steps, rows, every = map(int, sys.argv[5:9])
hvdata.init()
from mpi4py import MPI

rank, made, begun = hvdata.rank(), 0, False
comm = MPI.COMM_WORLD.Split(0 if hvdata.is_trainer() else MPI.UNDEFINED)

def die():
    if rank == victim and made >= after:
        os.kill(os.getpid(), signal.SIGKILL)

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

loader = hvdata.loader(source, batch="global", remainder="partial", name="train", verify=True)
hvdata.serve()
weights = Weights()
with open(f"{folder}/rows.{rank}", "a") as log:
    with hvdata.Backup(f"{folder}/sets", every=every, seconds=None, weights=weights) as backup:
        print("begins at", backup.step, flush=True)
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
                if kind == "signal" and made == after and rank == victim:
                    os.kill(os.getpid(), signal.SIGUSR1)
                time.sleep(0.01)
    if rank == 0:
        print("weights", json.dumps(weights.value.tolist()), flush=True)
"""


class Trained(NamedTuple):
    rows: list[list[int]]  # of each step
    weights: list[float]
    begun: list[int]  # the step at which each start of the job began
    certificate: Path


def train_with_kills(folder: Path, kills: list[tuple[str, int, int, int]], readers: int = 0) -> Trained:
    """Runs the job once for each kill (the kind, the ranks, the victim, the steps until then), and once to its end."""
    folder.mkdir()
    got: dict[int, list[int]] = {}
    begun, weights = [], []
    certificate = folder / "certificate.json"
    for attempt, (kind, ranks, victim, after) in enumerate([*kills, ("none", 4, 0, 0)], 1):
        env = {"HOROVOD_DATA_ATTEMPT": str(attempt), "HOROVOD_DATA_CERTIFICATE": str(certificate)}
        for old in folder.glob("rows.*"):
            old.unlink()
        words = [str(folder), kind, str(victim), str(after), *map(str, (EPOCHS, STEPS, ROWS, EVERY))]
        job = run_job(PROGRAM, ranks, *words, env=env, readers=readers, timeout=120)
        first = [line for line in job.stdout[0].splitlines() if line.startswith("begins at ")]
        begun.append(int(first[0].split()[-1]) if first else -1)
        wanted = {"none": 0, "signal": 75}.get(kind)
        # A kill "in a write" may find no write left: then the job has come to its end.
        ended = any(line.startswith("weights") for line in job.stdout[0].splitlines())
        assert job.returncode == wanted if wanted is not None and not ended else ended or job.returncode != 0, (
            job.describe()
        )
        by_rank = [_rows_of(folder / f"rows.{rank}") for rank in range(ranks)]
        for step in sorted(set().union(*by_rank)):
            if all(step in of_rank for of_rank in by_rank):
                got[step] = [row for of_rank in by_rank for row in of_rank[step]]
        if ended:
            line = next(line for line in job.stdout[0].splitlines() if line.startswith("weights "))
            weights = json.loads(line[8:])
            break
    return Trained([got[step] for step in range(len(got))], weights, begun, certificate)


def _rows_of(path: Path) -> dict[int, Any]:
    """The rows of a rank by step. A killed rank may have written a part of its last line."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return dict(json.loads(line) for line in lines)


def drawn(count: int, seed: int) -> list[tuple[str, int, int, int]]:
    """Random kills, of a job of 4, 3, 4, ... ranks."""
    draw = random.Random(seed)
    kills = []
    for number in range(count):
        ranks = (4, 3)[number % 2]
        kind = KINDS[number % len(KINDS)]
        victim = 0 if "rename" in kind else draw.randrange(ranks)  # rank 0 alone renames
        kills.append((kind, ranks, victim, draw.randint(2, 9)))
    return kills


def same(trained: Trained, whole: Trained) -> None:
    """Asserts that a killed training has the rows, the weights and the certificate of an undisturbed one."""
    assert trained.rows == whole.rows and len(whole.rows) == EPOCHS * STEPS
    np.testing.assert_allclose(trained.weights, whole.weights, atol=1e-5)
    compared = [sys.executable, "-m", "horovod_data.certificate", str(trained.certificate), str(whole.certificate)]
    answer = subprocess.run(compared, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stdout.count("in the same order") == EPOCHS
