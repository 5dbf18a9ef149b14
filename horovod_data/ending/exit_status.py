# SPDX-License-Identifier: Apache-2.0
"""Ends the job with the exit status of a process that fails.

After a failure, a rank must not leave other ranks waiting in a collective, and must not wait for them in MPI_Finalize.
So a failure ends the job by MPI_Abort, with the same status. There are three ways to end:

- An uncaught exception. Python calls sys.excepthook.
- An exit with a status. Python passes the status to no Python code, not even to atexit handlers. But at such an exit
  the interpreter reads the attribute `code` of the SystemExit, while no Python code runs. So this module replaces that
  attribute by a property that notes such a read. A program that catches the exception reads `code` from Python code, or
  never, and nothing is noted. (Before Python 3.12 the interpreter reads no attribute if sys.exit has made no object.
  Our sys.exit makes an object.)
- Any other end is a normal exit, which does shutdown(). So is an exit with a status on which all ranks have agreed.

Two exits are not noted. One is, with a Python older than 3.12, a call of a sys.exit that the program imported by name
before init(). The other is a subclass of SystemExit with its own `code`. The exit handler of the C++ core catches both.
It sees the status, but it runs after the atexit handlers of Python.

The process acts in an atexit handler. By then Python has printed the error, and newer handlers have run.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import ctypes
import gc
import re
import signal
import sys
import threading
import time
from types import CodeType, FrameType, TracebackType
from typing import Any, Callable, NoReturn, Optional

from ..errors import fork_check, message_of, names_place, show
from ..native import bindings

# An error often occurs on several ranks at once. MPI_Abort kills the other ranks, so they get this time to print their
# errors.
GRACE_SECONDS = 0.5
# Between the failure and the atexit handler, Python joins threads and runs other handlers. After this time the job ends
# anyway.
PATIENCE_SECONDS = 5.0

_INTERRUPTED = 130
# The error that other ranks raise after sys.exit() in a pipeline, a dataset function, or a model in predict().
_EXIT_ELSEWHERE = re.compile(
    r"^(?:(?:predict|distribute_dataset|loader)\(.*\) failed: )?SystemExit: (-?\d+)\s*$", re.MULTILINE
)

_CODE: Any = vars(SystemExit)["code"]  # the descriptor of the attribute

_forked: Optional[Callable[[], bool]] = None  # says whether this is a forked child of the process that called install()
_root: Optional[CodeType] = None  # identifies the program: the outermost code of the main thread
_status: Optional[int] = None  # the status of a failure; None: no failure
_together: Optional[int] = None  # see end_together()
_said = False  # the failure's text names the rank, or the user caused the failure
_on_exit: Callable[[], object] = lambda: None


def install(on_exit: Callable[[], object]) -> None:
    """From now on a failure of this process ends the job. A repeated call makes our atexit handler the newest, which
    runs first.

    Args:
      on_exit: a normal exit calls it, before Python's older atexit handlers run.
    """
    global _forked, _root, _on_exit
    _on_exit = on_exit
    if not in_charge():
        if _forked is None:
            _wrap_hooks()
        _forked = fork_check()
        _root = _outermost(sys._current_frames().get(threading.main_thread().ident or 0))
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


def in_charge() -> bool:
    """Says whether install() was called in this process. A call in the parent of a forked child does not count."""
    return _forked is not None and not _forked()


def failing() -> bool:
    """Says whether this process is about to end with a status other than 0."""
    return _status is not None


def end_together(status: int) -> None:
    """All ranks have agreed to end with this status. So an exit with it is a normal exit, which does shutdown().

    Call it on every rank, just before `raise SystemExit(status)`.
    """
    global _together
    _together = status
    bindings.end_together(status)


def ends_together(status: int) -> bool:
    """Says whether all ranks have agreed to end with this status."""
    return status == _together


def _wrap_hooks() -> None:
    previous_hook = sys.excepthook

    def excepthook(kind: type[BaseException], value: BaseException, trace: Optional[TracebackType]) -> Any:
        try:
            return previous_hook(kind, value, trace)
        finally:
            # A program may call the hook itself to print an error that it has caught. Then it is still running.
            if _may_end() and not (_root is not None and _outermost(sys._getframe()) is _root):
                _note_uncaught(value)

    sys.excepthook = excepthook
    previous_exit = sys.exit

    def exit(status: Any = None, /) -> NoReturn:  # the name shows in help() and tracebacks
        try:
            previous_exit(status)
        except SystemExit:  # `except` makes the object that sys.exit alone does not make before Python 3.12
            raise

    exit.__doc__ = previous_exit.__doc__
    sys.exit = exit
    _watch_code()


def _watch_code() -> None:
    """Makes the attribute `code` of SystemExit call _note() when the interpreter reads it to end the process."""

    def code(error: SystemExit) -> Any:
        value = _CODE.__get__(error)
        if sys._getframe().f_back is None and _may_end():
            _note(status_of(value))
        return value

    noted = property(code, _CODE.__set__, _CODE.__delete__, _CODE.__doc__)
    attributes = gc.get_referents(vars(SystemExit))
    if len(attributes) == 1 and isinstance(attributes[0], dict) and attributes[0].get("code") is _CODE:
        attributes[0]["code"] = noted
        # Python looks up attributes in a cache, which this clears
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(SystemExit))


def status_of(code: Any) -> int:
    """The exit status that Python makes of sys.exit(code)."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def show_text_of(exits: SystemExit) -> None:
    """Writes the text of sys.exit("text") to stderr, as Python does."""
    if exits.code is not None and not isinstance(exits.code, int):
        with contextlib.suppress(Exception):  # str() may fail
            show(str(exits.code))


def _status_of_uncaught(error: Optional[BaseException]) -> int:
    """The status of the job after an uncaught error."""
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED
    elsewhere = None if error is None else _EXIT_ELSEWHERE.search(message_of(error))
    return (int(elsewhere[1]) & 0xFF or 1) if elsewhere else 1


def _note_uncaught(error: Optional[BaseException]) -> None:
    global _said
    if error is not None and _status is None:
        _said = isinstance(error, KeyboardInterrupt) or names_place(error)
    _note(_status_of_uncaught(error))


def _note(status: int) -> None:
    """Remembers that this process is about to end with `status`, and limits the time until its end."""
    global _status
    if status in (0, _together) or not in_charge() or _status is not None:
        return
    _status = status
    if _alone():  # no other rank waits
        return

    def end() -> None:
        time.sleep(PATIENCE_SECONDS)
        _abort(status)

    # Thread.start() of `threading` would wait without end for a thread that has no memory to begin. If no thread can be
    # started, the alarm ends this process.
    with contextlib.suppress(RuntimeError):
        _thread.start_new_thread(end, ())
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE_SECONDS + 2)


def fail(status: int, said: bool) -> NoReturn:
    """Ends the job with `status`, from any thread. The other ranks get GRACE_SECONDS to print their errors.

    `said`: a log line has already said why and where the job ends.
    """
    global _said
    _said = said
    time.sleep(0 if _alone() else GRACE_SECONDS)
    _abort(status)
    raise AssertionError("abort() has returned")


def _at_exit() -> None:
    global _status
    if not in_charge():
        return
    try:
        if _status is None and _uncaught():
            _note_uncaught(getattr(sys, "last_value", None))
        if _status is None or _alone():
            _on_exit()
    except KeyboardInterrupt:
        _status = _status or _INTERRUPTED
    except SystemExit as error:  # raised by the handler of a signal
        _status = _status or status_of(error.code) or 1
        show_text_of(error)
    except BaseException:  # other ranks may wait for this process
        _status = _status or 1
        sys.__excepthook__(*sys.exc_info())
    if _status is not None and not _alone():
        time.sleep(GRACE_SECONDS)
        _abort(_status)


def _abort(status: int) -> None:
    flush()
    bindings.abort(status, said=_said)


def flush() -> None:
    """Writes out stdout and stderr, if they can be written."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # it is closed, a broken pipe, None, or an object of the program
            stream.flush()


def _alone() -> bool:
    """Says whether no other rank can wait for this process. Then MPI is not running, or the job has one process."""
    return not bindings.mpi_query().usable or bindings.comm_info(None)[1] == 1


def _may_end() -> bool:
    """Says whether an exception on this thread ends the program: only on the main thread, and not at a prompt."""
    interactive = bool(sys.flags.interactive) or hasattr(sys, "ps1")
    return threading.current_thread() is threading.main_thread() and not interactive


def _outermost(frame: Optional[FrameType]) -> Optional[CodeType]:
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code if frame is not None else None


def _uncaught() -> bool:
    """Says whether an exception ended the program and Python called another excepthook."""
    value = getattr(sys, "last_value", None)  # Python sets it before it calls the excepthook
    trace = getattr(value, "__traceback__", None)
    return _root is not None and trace is not None and trace.tb_frame.f_code is _root and _may_end()
