# SPDX-License-Identifier: Apache-2.0
"""The job as this process sees it, from init() on. Every public call first gets the job here."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from typing import Any, Callable, Iterator, Optional

from ..errors import explained, forked
from ..native import bindings
from .layout import Layout
from .settings import Settings


@dataclasses.dataclass
class Job:
    """The job as this process sees it. Ranks are ranks of the communicator that was passed to init()."""

    settings: Settings
    comm: Any  # the mpi4py communicator that was passed to init(); None: MPI_COMM_WORLD
    comm_rank: int
    hosts: tuple[str, ...]
    layout: Layout
    forked: Callable[[], bool]
    environ: dict[str, str]  # the HOROVOD_DATA_* variables at the time of init()
    waits_at_exit: bool = False  # shutdown() was called while an exception was handled: the exit waits for other ranks
    ended: bool = False
    keeps: bool = False  # this process keeps rows of a channel with cache="job"

    @property
    def reader(self) -> Optional[int]:
        """This process's number among the readers. None if it doesn't read."""
        index = self.layout.reader_index[self.comm_rank]
        return index if index >= 0 else None

    @property
    def trainer(self) -> Optional[int]:
        """This process's number among the trainers. None if it doesn't train."""
        index = self.layout.trainer_index[self.comm_rank]
        return index if index >= 0 else None

    @property
    def serves(self) -> bool:
        """Says whether this process sends batches to trainers, until all trainers are done."""
        return self.reader is not None or self.keeps

    def name(self, comm_rank: int) -> str:
        """The `where` of a process of the communicator, in texts."""
        return self.layout.name(comm_rank, self.hosts[comm_rank])

    @property
    def where(self) -> str:
        """The `where` of this process, in texts."""
        return self.name(self.comm_rank)


_job: Optional[Job] = None
_reads = threading.local()


def begin(job: Job) -> None:
    """Remembers the job that this process has joined."""
    global _job
    _job = job


def joined() -> Optional[Job]:
    """The job that this process has joined.

    It also answers after the job's end and in a forked child. None before init().
    """
    return _job


def current(what: str) -> Job:
    """The running job. `what` is the call that needs it, as the user wrote it.

    Raises:
      RuntimeError: before init(), after shutdown(), in a forked child, or in a dataset function.
    """
    job = known(what)
    if getattr(_reads, "now", False) and what != "init()":
        to_do = "Make all calls that ranks make together outside of it"
        raise explained(RuntimeError, f"{what} was called in a dataset function, which runs on readers only", to_do)
    if job.ended or job.waits_at_exit or bindings.state() == bindings.State.SHUT_DOWN:
        raise explained(
            RuntimeError,
            f"{what} was called after the end of the job: horovod_data.shutdown() has been called, or MPI has been "
            "finalised (by hvd.shutdown(), say)",
            "Call shutdown() after the last use of horovod_data; a process can't join again",
        )
    return job


def known(what: str) -> Job:
    """The job. It also answers after the job's end.

    Raises:
      RuntimeError: before init(), or in a forked child.
    """
    if _job is None:
        raise explained(RuntimeError, f"{what} was called before horovod_data.init()", "Call horovod_data.init() first")
    if _job.forked():
        raise RuntimeError(forked(what))
    return _job


@contextlib.contextmanager
def reads() -> Iterator[None]:
    """Marks this thread as being in a dataset function. There, calls that all ranks make together raise."""
    before = getattr(_reads, "now", False)
    _reads.now = True
    try:
        yield
    finally:
        _reads.now = before
