# SPDX-License-Identifier: Apache-2.0
"""How this process's part in the job ends: shutdown(), and what an exit does of it."""

from __future__ import annotations

import sys
import threading
from typing import Callable, Optional

from ..errors import explain, say, text_of
from ..job.state import Job, joined, known
from ..native import bindings
from ..observe.progress import watch
from ..observe.report import report
from . import exit_status, horovod, siblings

# MPICH's MPI_Finalize takes no locks any more by the time it tells us that it has begun: a call of our communication
# thread that is under way then would keep one, and MPI_Finalize would fail. Ranks that end together, as they do, have
# this long to bring their threads to an end first. Of one that ends before the others the thread keeps away from MPI
# until it is told that MPI_Finalize has begun; from then on it is the only one to call MPI.
_TOGETHER_SECONDS = 1.0

_endings: list[Callable[[], None]] = []
_last_things: list[Callable[[Callable[[], object]], None]] = []


def shutdown() -> None:
    """Ends this process's part in the job; also done at exit. A second call does nothing, nor does one before init().

    Not collective: ranks may call it at any time, in any order.

    A trainer says that it is done and returns at once: its iterators end. (One with an audit() first makes the report of
    the epoch that ends here, for which it waits for the others, as long as they are there.) A process that reads serves
    until every trainer has said so; after HOROVOD_DATA_STALL_SECONDS, and then each minute, one that trains as well says
    for whom. MPI and Horovod go on, but at exit: others may wait for this rank in a collective, and Horovod ends here within
    a second. After it the job can't be joined again by this process.

    Where an exception is under way in the main thread, in a `finally:`, an `except` or a `with` say, a process that would wait here
    for others takes no more data, but leaves the wait to its exit, or to a second call: nobody would see the error meanwhile.
    (StopIteration and tf.errors.OutOfRangeError are ends, and no errors.)

    Raises:
      RuntimeError: in a forked child.
    """
    if (job := joined()) is None or known("shutdown()").ended:
        return
    error = _error_under_way()
    if (error is None and not exit_status.failing()) or (job.reader is None and not _last_things):
        _shut_down(exiting=not threading.main_thread().is_alive())  # an atexit handler of the program's
    elif error is not None and not job.left:
        _say_behind("hvdata.shutdown()", error, "This process serves the others until its exit, or a second shutdown()")
        job.left = True
        if bindings.state() == bindings.State.RUNNING:
            bindings.leave_channels()


def _error_under_way() -> Optional[BaseException]:
    """What the main thread's program handles or raises at this moment, and may end with."""
    error = sys.exc_info()[1]
    if threading.current_thread() is not threading.main_thread() or type(error).__name__ == "OutOfRangeError":
        return None
    return None if isinstance(error, (StopIteration, StopAsyncIteration, GeneratorExit)) else error


def _say_behind(call: str, error: BaseException, then: str = "") -> None:
    """Others may end the job before anybody prints it."""
    if (job := joined()) is not None and not (isinstance(error, SystemExit) and exit_status.status_of(error.code) == 0):
        say(explain(f"{call} is called behind {type(error).__name__}: {text_of(error)}", then, job.where))


def _shut_down(exiting: bool = False) -> None:
    if joined() is None:
        return
    job = known("shutdown()")
    if job.ended:
        return
    if _last_things and bindings.state() == bindings.State.RUNNING:
        bindings.leave_channels()  # so that the others come to the ends of their epochs, which these wait for
    while _last_things and bindings.state() == bindings.State.RUNNING:
        _last_things.pop(0)(horovod.begin_to_end if exiting else lambda: None)
    watch.stop()
    if bindings.state() == bindings.State.RUNNING:
        bindings.bye()
        if job.reader is not None:
            if exiting and not bindings.wait_all_bye(_TOGETHER_SECONDS):
                horovod.begin_to_end()
            bindings.wait_all_bye()
            if job.reader == 0 and job.settings.report and bindings.state() == bindings.State.RUNNING:
                _report(job)
        bindings.stop()
    horovod.join_end()
    job.ended = True
    while _endings:
        _endings.pop()()


def end() -> bool:
    """shutdown() where the program ends, and somebody may finalise MPI next. Whether our thread has ended."""
    if joined() is None:  # init() has failed here, and the program goes without: the others wait in theirs
        siblings.tell_end()
    _shut_down(exiting=True)
    return joined() is None or bindings.mpi_query().finalized or bindings.wait_left(_TOGETHER_SECONDS)


def _report(job: Job) -> None:
    try:
        report.at_end()
    except Exception as error:  # the job has come to its end all the same
        say(explain(f"there is no report: {type(error).__name__}: {text_of(error)}", where=job.where))


def hear_of_horovods_end() -> None:
    """hvd.shutdown() is called, which does ours: an error that is under way may be the last that is seen of this program."""
    if (job := joined()) is not None and not job.ended and (error := _error_under_way()) is not None:
        _say_behind("hvd.shutdown()", error)


def before_shutdown(last: Callable[[Callable[[], object]], None]) -> None:
    """Has shutdown() call `last` while this process still is a part of the job, but for its channels; the oldest comes first. It
    is given what it must call if it waits for other ranks for more than a moment."""
    _last_things.append(last)


def at_shutdown(ending: Callable[[], None]) -> None:
    """Has shutdown() call `ending` when all sources have ended; the newest comes first. For joining threads."""
    _endings.append(ending)
