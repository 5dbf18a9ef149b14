# SPDX-License-Identifier: Apache-2.0
"""The messages between the outer pytest and the pytests of the ranks: files in the job's folder.

plan.json        outer -> ranks: the node ids to run, in order
come.R           rank R -> ranks: rank R is about to begin test 0
go.I             outer -> ranks: every rank is done with test I-1, begin test I (none for test 0)
records.R.jsonl  rank R -> outer: one line when a test begins, one when it is done
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Outcome:
    """How one test went on one rank."""

    outcome: str  # passed, failed, skipped
    text: str = ""  # of a failure
    skip: list[Any] = field(default_factory=list)  # path, line, reason
    seconds: float = 0.0


@dataclass
class Begun:
    """The sizes of the rank's output files when the test began."""

    out: int
    err: int


class Records:
    """Reads a rank's records while it writes them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.begun: dict[int, Begun] = {}
        self.done: dict[int, Outcome] = {}

    def refresh(self) -> None:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            record = json.loads(line)
            if "begun" in record:
                self.begun[record["test"]] = Begun(**record["begun"])
            else:
                self.done[record["test"]] = Outcome(**record["done"])


def records_path(directory: Path, rank: int) -> Path:
    return directory / f"records.{rank}.jsonl"


def write_record(directory: Path, rank: int, test: int, **event: Begun | Outcome) -> None:
    ((name, value),) = event.items()
    with open(records_path(directory, rank), "a") as file:
        file.write(json.dumps({"test": test, name: asdict(value)}) + "\n")


def allow(directory: Path, test: int) -> None:
    (directory / f"go.{test}").touch()


def wait_for_all(directory: Path, rank: int, ranks: int, seconds: float) -> None:
    """On a rank: waits until all ranks are here, at most `seconds`. Imports take some ranks longer, and tests may limit
    times."""
    (directory / f"come.{rank}").touch()
    deadline = time.monotonic() + seconds
    while not all((directory / f"come.{one}").exists() for one in range(ranks)) and time.monotonic() < deadline:
        time.sleep(0.005)


def wait_until_allowed(directory: Path, test: int, seconds: float) -> bool:
    """Called on a rank. Returns False if the outer side has ended, because then no process reads the records."""
    go = directory / f"go.{test}"
    deadline = time.monotonic() + seconds
    while not go.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
