# SPDX-License-Identifier: Apache-2.0
"""shutdown(): ends this process's part in the job. An exit of the program does the same."""

from __future__ import annotations

import sys
import threading
import time
from typing import Callable, Optional

from ..errors import explain, explained, say, text_of
from ..job.state import Job, joined, known
from ..native import bindings
from . import exit_status, horovod

# By the time MPICH says that MPI_Finalize has begun, MPICH takes no locks any more. If our communication thread were
# in an MPI call at that time, the thread would keep a lock, and MPI_Finalize would fail. So ranks that end together get
# this time to end their threads first. If a rank ends earlier than the others, its thread makes no MPI call until
# MPI_Finalize has begun. From then on the thread is the only caller of MPI.
_TOGETHER_SECONDS = 1.0
_LOOK_SECONDS = 0.1

_endings: list[Callable[[], None]] = []
_last_things: list[Callable[[Callable[[], object]], None]] = []


def shutdown() -> None:
    """Ends this process's part in the job. An exit does the same. Before init(), and in a second call, it does nothing.

    Not collective: ranks may call it at any time, in any order. This process can't join the job again. MPI and Horovod
    continue to run. At exit, Horovod ends within a second, because other ranks may wait for this rank in a collective.

    - A trainer sends the readers a message that it is done, and returns at once. Its iterators end. If it has an
      audit(), all ranks together first make the report of the last epoch. If a set of Backup or BackupAndRestore is
      being written, the call first waits for it, after an error for 3 seconds at most.
    - A reader serves until every trainer is done. So does a process that keeps rows for cache="job". If it also trains,
      a log line names the trainers for which it waits, after HOROVOD_DATA_STALL_SECONDS and then each minute.
    - While the main thread handles an exception (in `finally:`, `except` or `with`), the call does not wait for other
      ranks, so that the error is seen first. This process takes no more data. Its exit, or a second call, waits.
      (StopIteration and tf.errors.OutOfRangeError do not count as errors.)

    Raises:
      RuntimeError: in a forked child.
      TimeoutError: on a reader (or keeper of rows) that trains: no trainer has taken a batch or ended for
        HOROVOD_DATA_TIMEOUT seconds.
    """
    if (job := joined()) is None or known("shutdown()").ended:
        return
    error = _error_under_way()
    if (error is None and not exit_status.failing()) or (not job.serves and not _last_things):
        _shut_down(exiting=not threading.main_thread().is_alive())  # called by an atexit handler of the program
    elif error is not None and not job.waits_at_exit:
        _say_during("hvdata.shutdown()", error, "This process serves the others until its exit, or a second shutdown()")
        job.waits_at_exit = True
        if bindings.state() == bindings.State.RUNNING:
            bindings.leave_channels()


def _error_under_way() -> Optional[BaseException]:
    """The exception that the main thread handles at this moment, if it may end the program. Otherwise None."""
    error = sys.exc_info()[1]
    if threading.current_thread() is not threading.main_thread() or type(error).__name__ == "OutOfRangeError":
        return None
    return None if isinstance(error, (StopIteration, StopAsyncIteration, GeneratorExit)) else error


def _is_failure(error: Optional[BaseException]) -> bool:
    return error is not None and not (isinstance(error, SystemExit) and exit_status.status_of(error.code) == 0)


def _say_during(call: str, error: BaseException, then: str = "") -> None:
    """Logs the error, because other ranks may end the job before the program prints it."""
    if joined() is not None and _is_failure(error):
        say(explain(f"{call} is called during {type(error).__name__}: {text_of(error)}", then))


def _shut_down(exiting: bool) -> None:
    if joined() is None or (job := known("shutdown()")).ended:
        return
    if (together := sys.modules.get("horovod_data.backup.together")) is not None:
        # The threads of all ranks write the last set, and need the core. HOROVOD_DATA_TIMEOUT limits their exchange.
        together.wait_at_end(exit_status.failing() or _is_failure(_error_under_way()))
    if _last_things and bindings.state() == bindings.State.RUNNING:
        # This ends the epochs of the other ranks. The functions of before_shutdown() wait for that.
        bindings.leave_channels()
    while _last_things and bindings.state() == bindings.State.RUNNING:
        _last_things.pop(0)(horovod.begin_to_end if exiting else lambda: None)
    if job.trainer == 0:
        from ..observe.progress import watch  # start.py imports it here and not at the top, too

        watch.stop()
    if bindings.state() == bindings.State.RUNNING:
        bindings.bye()
        if job.serves:
            if exiting and not bindings.wait_all_bye(_TOGETHER_SECONDS):
                horovod.begin_to_end()
            if not exiting and job.trainer is not None:
                _serve_on(job)
            bindings.wait_all_bye()
            if job.reader == 0 and job.settings.report and bindings.state() == bindings.State.RUNNING:
                from ..observe.report import report

                report.at_end()
        bindings.stop()
    if job.reader == 0 and job.settings.timeline and bindings.state() == bindings.State.SHUT_DOWN:
        from ..timeline import parts

        indexes = zip(job.layout.trainer_index, job.layout.reader_index)
        names = {one: job.name(rank) for rank, one in enumerate(indexes)}
        parts.finish(names, job.settings.attempt)
    horovod.join_end()
    job.ended = True
    while _endings:
        _endings.pop()()


def _serve_on(job: Job) -> None:
    """Serves until every trainer is done. A trainer may wait for this rank in a collective, so the time limit holds.

    At exit the collectives of Horovod fail on the other ranks, so the wait needs no limit.
    """
    from ..observe import times

    limit, seen, since = job.settings.timeout_seconds, None, time.monotonic()
    while not bindings.wait_all_bye(_LOOK_SECONDS):
        readers = times.readers(times.own())
        waits_for = bindings.serves()
        progress = [(one.elements, one.untaken) for one in readers.values()], waits_for
        if progress != seen:
            seen, since = progress, time.monotonic()
        elif limit and time.monotonic() - since >= limit:
            raise explained(
                TimeoutError,
                f"shutdown() has waited {limit:g} s for {waits_for}: no trainer has taken a batch or ended",
                "They may wait for this rank in a collective. Call shutdown() after the last collective, or leave it out, "
                "because the exit of the program does the same. HOROVOD_DATA_TIMEOUT sets the limit",
            )


def end() -> bool:
    """Does shutdown() at the end of the program, before MPI_Finalize.

    Returns whether the communication thread has ended.
    """
    _shut_down(exiting=True)
    return joined() is None or bindings.mpi_query().finalized or bindings.wait_left(_TOGETHER_SECONDS)


def hear_of_horovods_end() -> None:
    """Logs the error that the program handles at this moment. hvd.shutdown() calls it before our shutdown()."""
    if (job := joined()) is not None and not job.ended and (error := _error_under_way()) is not None:
        _say_during("hvd.shutdown()", error)


def before_shutdown(last: Callable[[Callable[[], object]], None]) -> None:
    """Makes shutdown() call `last` between departing from the channels and departing from the job.

    If there are several such functions, the oldest is called first. `last` gets a function as its argument, and must
    call that before a long wait for other ranks.
    """
    _last_things.append(last)


def at_shutdown(ending: Callable[[], None]) -> None:
    """Makes shutdown() call `ending`, which joins threads, after all sources have ended. The newest comes first."""
    _endings.append(ending)
