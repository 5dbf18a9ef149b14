# SPDX-License-Identifier: Apache-2.0
"""shutdown(): ends this process's part in the job. An exit of the program does the same."""

from __future__ import annotations

import sys
import threading
import time
from typing import Callable, Optional

from ..errors import explain, say, text_of
from ..job import handshake
from ..job.state import Job, joined, known
from ..native import bindings
from ..observe import times
from ..observe.progress import watch
from ..observe.report import report
from ..timeline import parts as timeline_parts
from . import exit_status, horovod

# When MPICH tells us that MPI_Finalize has begun, it takes no locks any more. If our communication thread were in a call of
# MPI then, it would keep a lock, and MPI_Finalize would fail. So ranks that end together have this long to end their threads
# first. The thread of a rank that ends before the others makes no call of MPI until MPI_Finalize has begun. From then on it
# is the only thread that calls MPI.
_TOGETHER_SECONDS = 1.0
_LOOK_SECONDS = 0.1

_endings: list[Callable[[], None]] = []
_last_things: list[Callable[[Callable[[], object]], None]] = []


def shutdown() -> None:
    """Ends this process's part in the job; also done at exit. A second call does nothing, nor does one before init().

    Not collective: ranks may call it at any time, in any order.

    A trainer tells the readers that it is done, and returns at once. Its iterators end. (If it has an audit(), it first makes
    the report of the epoch that ends here, together with the other ranks.) A reader serves until every trainer is done. If it
    trains as well, a line names the trainers that it waits for, after HOROVOD_DATA_STALL_SECONDS and then each minute. MPI and
    Horovod go on. Except: at exit Horovod ends within a second, because other ranks may wait for this one in a collective.
    This process can't join the job again.

    Where the main thread is handling an exception (in `finally:`, `except` or `with`), the error should be seen before this process
    waits for others. So it takes no more data, and its exit, or a second call, waits. (StopIteration and
    tf.errors.OutOfRangeError are ends, not errors.)

    Raises:
      RuntimeError: in a forked child.
      TimeoutError: on a reader that trains: for HOROVOD_DATA_TIMEOUT seconds no other trainer has taken a batch, or been done.
    """
    if (job := joined()) is None or known("shutdown()").ended:
        return
    error = _error_under_way()
    if (error is None and not exit_status.failing()) or (job.reader is None and not _last_things):
        _shut_down(exiting=not threading.main_thread().is_alive())  # an atexit handler of the program's
    elif error is not None and not job.waits_at_exit:
        _say_behind("hvdata.shutdown()", error, "This process serves the others until its exit, or a second shutdown()")
        job.waits_at_exit = True
        if bindings.state() == bindings.State.RUNNING:
            bindings.leave_channels()


def _error_under_way() -> Optional[BaseException]:
    """The exception that the main thread handles at this moment, and that may end the program."""
    error = sys.exc_info()[1]
    if threading.current_thread() is not threading.main_thread() or type(error).__name__ == "OutOfRangeError":
        return None
    return None if isinstance(error, (StopIteration, StopAsyncIteration, GeneratorExit)) else error


def _say_behind(call: str, error: BaseException, then: str = "") -> None:
    """Logs the error, because other ranks may end the job before the program prints it."""
    if (job := joined()) is not None and not (isinstance(error, SystemExit) and exit_status.status_of(error.code) == 0):
        say(explain(f"{call} is called behind {type(error).__name__}: {text_of(error)}", then, job.where))


def _shut_down(exiting: bool = False) -> None:
    if joined() is None:
        return
    job = known("shutdown()")
    if job.ended:
        return
    if _last_things and bindings.state() == bindings.State.RUNNING:
        bindings.leave_channels()  # so that the epochs of the other ranks end, which the last things wait for
    while _last_things and bindings.state() == bindings.State.RUNNING:
        _last_things.pop(0)(horovod.begin_to_end if exiting else lambda: None)
    watch.stop()
    if bindings.state() == bindings.State.RUNNING:
        bindings.bye()
        if job.reader is not None:
            if exiting and not bindings.wait_all_bye(_TOGETHER_SECONDS):
                horovod.begin_to_end()
            if not exiting and job.trainer is not None:
                _serve_on(job)
            bindings.wait_all_bye()
            if job.reader == 0 and job.settings.report and bindings.state() == bindings.State.RUNNING:
                _report(job)
        bindings.stop()
    if job.reader == 0 and job.settings.timeline and bindings.state() == bindings.State.SHUT_DOWN:
        indexes = zip(job.layout.trainer_index, job.layout.reader_index)
        timeline_parts.finish({one: job.name(rank) for rank, one in enumerate(indexes)})
    horovod.join_end()
    job.ended = True
    while _endings:
        _endings.pop()()


def _serve_on(job: Job) -> None:
    """Serves until every trainer is done. A trainer may wait for this rank in a collective, so the time limit holds.

    Except: at exit the collectives of Horovod fail on the other ranks, and the wait needs no limit.
    """
    limit, seen, since = job.settings.timeout_seconds, None, time.monotonic()
    while not bindings.wait_all_bye(_LOOK_SECONDS):
        readers = times.readers(times.own())
        moved = [(one.elements, one.untaken) for one in readers.values()], bindings.serves()
        if moved != seen:
            seen, since = moved, time.monotonic()
        elif limit and time.monotonic() - since >= limit:
            raise TimeoutError(
                explain(
                    f"shutdown() has waited {limit:g} s for {moved[1]}: no batch was taken, and there was no end",
                    "They may wait for this rank in a collective. Call shutdown() after the last collective, or leave it out, "
                    "because the exit of the program does the same. HOROVOD_DATA_TIMEOUT sets the limit",
                    job.where,
                )
            )


def end() -> bool:
    """Does shutdown() when the program ends, before MPI_Finalize. Returns whether the communication thread has ended."""
    if joined() is None and handshake.under_way():
        # init() was interrupted here. The other ranks have this rank in their job, and would wait for it.
        say(explain("The program ends in the middle of horovod_data.init(), and the job with it", where=""))
        exit_status.fail(1, said=True)
    _shut_down(exiting=True)
    return joined() is None or bindings.mpi_query().finalized or bindings.wait_left(_TOGETHER_SECONDS)


def _report(job: Job) -> None:
    try:
        report.at_end()
    except Exception as error:  # the job has ended well
        say(explain(f"there is no report: {type(error).__name__}: {text_of(error)}", where=job.where))


def hear_of_horovods_end() -> None:
    """Called by hvd.shutdown(), before it does our shutdown(). Logs an error that the program is handling."""
    if (job := joined()) is not None and not job.ended and (error := _error_under_way()) is not None:
        _say_behind("hvd.shutdown()", error)


def before_shutdown(last: Callable[[Callable[[], object]], None]) -> None:
    """Makes shutdown() call `last` after it has left its channels and before it leaves the job; the oldest first.

    `last` gets a function that it must call before it waits for other ranks for more than a moment.
    """
    _last_things.append(last)


def at_shutdown(ending: Callable[[], None]) -> None:
    """Makes shutdown() call `ending` when all sources have ended; the newest first. For joining threads."""
    _endings.append(ending)
