# SPDX-License-Identifier: Apache-2.0
"""The places where tests try the faults of docs/guarantees.md, and a check that nothing is left of a job.

A place is a verified job of 2 to 4 ranks, with rank 0 or a dedicated reader, and a way of the batches.

    @everywhere((2, 0, "arena"), (3, 1, "message"))     # these places, or all of them with HVDATA_TEST_ALL_FAULTS=1
    def test_a_fault(where, tried):
        job = tried.run(SCRIPT, where)
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from jobs import SOON, Job, start_job
from ranks.launch import until

PROGRAMS = Path(__file__).parent / "programs"
WAYS = {  # KiB of an element, and how it must travel
    "arena": ("64", {"HOROVOD_DATA_PAYLOAD": "arena"}),
    "message": ("64", {"HOROVOD_DATA_PAYLOAD": "message"}),
    "inline": ("0.0625", {}),
}


class Place(NamedTuple):
    trainers: int
    readers: int  # dedicated ones; 0: rank 0 reads
    way: str

    def __str__(self) -> str:
        return f"{self.trainers}-{'dedicated' if self.readers else 'embedded'}-{self.way}"

    @property
    def reader(self) -> int:
        """The process that reads."""
        return self.trainers if self.readers else 0

    @property
    def kib(self) -> str:
        return WAYS[self.way][0]

    @property
    def env(self) -> dict[str, str]:
        return {
            **WAYS[self.way][1],
            "HVDATA_TEST_TRAINERS": str(self.trainers),
            "HVDATA_TEST_KIB": self.kib,
            "HOROVOD_DATA_VERIFY": os.environ.get("HOROVOD_DATA_VERIFY", "1"),
        }


ALL = [Place(trainers, readers, way) for trainers in (2, 3, 4) for readers in (0, 1) for way in WAYS]


def all_places() -> bool:
    return bool(os.environ.get("HVDATA_TEST_ALL_FAULTS"))


def places(*few: tuple[int, int, str]) -> list[Place]:
    return ALL if all_places() else [Place(*one) for one in few]


def everywhere(*few: tuple[int, int, str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("where", places(*few), ids=str)


class Tried:
    """Jobs with folders of their own, in which no file may stay.

    The folders' names are short, because MPI makes sockets there.
    """

    def __init__(self, folder: Path) -> None:
        self._cwd, self._tmp = folder / "cwd", folder / "tmp"
        self._cwd.mkdir()
        self._tmp.mkdir()
        self._names = _shared_names()

    @contextlib.contextmanager
    def start(
        self, script: str | Path, where: Place, *args: str, env: Mapping[str, str | None] | None = None, **more: Any
    ) -> Iterator[Job]:
        """Starts a job, as jobs.start_job() does. The body of `with` must wait for the job's end."""
        with start_job(
            script,
            where.trainers,
            *args,
            readers=where.readers,
            cwd=self._cwd,
            env={**where.env, "TMPDIR": str(self._tmp), **(env or {})},
            **more,
        ) as job:
            yield job
            assert job.returncode is not None, "the job has not been waited for"
        self._nothing_left()

    def run(self, script: str | Path, where: Place, *args: str, timeout: float = 120, **more: Any) -> Job:
        """Runs a job to its end, whose status must be 0."""
        with self.start(script, where, *args, **more) as job:
            assert job.finish(timeout) == 0, job.describe()
        return job

    def _nothing_left(self) -> None:
        """Asserts that the job leaves no named shared memory and no file. start_job() looks for processes.

        Files of MPI's launcher, and functions that TensorFlow's AutoGraph has rewritten, may stay.
        """
        files = [path.name for folder in (self._cwd, self._tmp) for path in folder.iterdir()]
        of_others = r"ompi|openmpi|pmix|prte|\.?hydra|__autograph_generated_file|__pycache__$"
        assert not [name for name in files if not re.match(of_others, name)], files
        assert until(lambda: not _shared_names() - self._names, SOON), _shared_names() - self._names


def _shared_names() -> set[str]:
    """The names of shared memory, without those of Open MPI and multiprocessing."""
    return {
        path.name
        for path in Path("/dev/shm").iterdir()
        if not any(of_others in path.name for of_others in ("mpi", "vader", "sem.mp-"))
    }
