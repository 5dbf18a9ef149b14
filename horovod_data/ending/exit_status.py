# SPDX-License-Identifier: Apache-2.0
"""How this process ends, and that the job ends with it.

A rank that fails must not leave the others waiting in a collective, nor wait for them itself in MPI_Finalize: so a
failure ends the job by MPI_Abort, with the same status. Three ways to end are told apart:

- An uncaught exception: sys.excepthook is told of it.
- An exit with a status: Python says nowhere which status it is about to exit with, atexit handlers included. But on
  its way out the interpreter reads the attribute `code` of the SystemExit, with no Python code running any more. So
  that attribute notes when it is read like that; a program that catches the exception reads it from Python code, or not
  at all, and nothing is noted. Whoever raises it, sys.exit, exit() or the program itself, raises the same SystemExit: it is
  its attribute that we replace, which for a built-in type means in the dictionary behind its read-only one. (Before Python
  3.12 the interpreter does without the attribute where sys.exit has made no object yet: ours has.)
- Anything else is a normal exit: shutdown().

What escapes this (before Python 3.12, a sys.exit imported by name before init; a class made of SystemExit that has a `code` of
its own) is caught by the exit handler of the C++
core, which sees the status but runs after the atexit handlers of Python.

The action is taken in an atexit handler rather than on the spot, so that Python has printed the error, and other
handlers that came later than ours have run. (mpi4py.run aborts on uncaught exceptions too, from the command line.)
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

from ..errors import show, text_of
from ..native import bindings
from .processes import fork_check

# An error usually strikes several ranks at once. MPI_Abort kills the others: give them this long to print theirs.
_GRACE_SECONDS = 0.5
# Between the failure and the atexit handler Python joins threads and runs other handlers. A hang there ends here.
_PATIENCE_SECONDS = 5.0

_INTERRUPTED = 130
_NAMES_A_PLACE = re.compile(r"\[(rank|reader) \d+ on ")
_EXIT_IN_PIPELINE = re.compile(r"\] SystemExit: (-?\d+)\s*$", re.MULTILINE)
_EXIT_IN_CALL = re.compile(r"\] (?:predict|distribute_dataset)\(.*\) failed: SystemExit: (-?\d+)$")

_CODE: Any = vars(SystemExit)["code"]  # the descriptor of the attribute

_forked: Optional[Callable[[], bool]] = None  # from the process that install() was called in: children end as they like
_root: Optional[CodeType] = None  # the outermost code that runs in the main thread: the program
_status: Optional[int] = None  # the status of a failure; None: no failure
_said = False  # the failure's own text says which rank it is, and how far it has come; or the user knows
_on_exit: Callable[[], object] = lambda: None


def install(on_exit: Callable[[], object]) -> None:
    """Takes care of this process's end. May be repeated: the atexit handler then becomes the newest, which runs first.

    Args:
      on_exit: what a normal exit does before Python's older atexit handlers run.
    """
    global _forked, _root, _on_exit
    _on_exit = on_exit
    if not in_charge():
        if _forked is None:
            _wrap_hooks()
        _forked, _root = fork_check(), _main_root()
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


def in_charge() -> bool:
    """Whether install() has been called in this process: then its failure is taken care of here."""
    return _forked is not None and not _forked()


def failing() -> bool:
    """Whether this process is about to end with a status other than 0."""
    return _status is not None


def _wrap_hooks() -> None:
    previous_hook = sys.excepthook

    def excepthook(kind: type[BaseException], value: BaseException, trace: Optional[TracebackType]) -> Any:
        try:
            return previous_hook(kind, value, trace)
        finally:
            # Programs also call the hook themselves to print an error that they have caught: then they are running.
            if _in_main() and not _interactive() and not _running():
                _note_uncaught(value)

    sys.excepthook = excepthook
    previous_exit = sys.exit

    def exit(status: Any = None, /) -> NoReturn:  # the name shows in help() and tracebacks
        try:
            previous_exit(status)
        except SystemExit:  # which makes an object of it
            raise

    exit.__doc__ = previous_exit.__doc__
    sys.exit = exit
    _watch_code()


def _watch_code() -> None:
    """SystemExit's attribute `code` is what it was, and calls _note when the interpreter reads it to end the process."""

    def code(error: SystemExit) -> Any:
        value = _CODE.__get__(error)
        if sys._getframe().f_back is None and _in_main() and not _interactive():
            _note(status_of(value))
        return value

    noted = property(code, _CODE.__set__, _CODE.__delete__, _CODE.__doc__)
    attributes = gc.get_referents(vars(SystemExit))
    if len(attributes) == 1 and isinstance(attributes[0], dict) and attributes[0].get("code") is _CODE:
        attributes[0]["code"] = noted
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(SystemExit))  # attributes are looked up in a cache


def status_of(code: Any) -> int:
    """The status that Python makes of sys.exit(code)."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def _status_of_uncaught(error: Optional[BaseException]) -> int:
    """That of the job when nobody has caught this error. sys.exit in the pipeline, a generator say, reaches every rank as an
    error of TensorFlow's, whose text has the status; in a dataset function, or a model that predicts, it reaches the others as one that
    says so."""
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED
    of_tensorflow = type(error).__module__.startswith("tensorflow")
    told = (_EXIT_IN_PIPELINE if of_tensorflow else _EXIT_IN_CALL).search(text_of(error)) if error is not None else None
    return (int(told[1]) & 0xFF or 1) if told else 1


def _note_uncaught(error: Optional[BaseException]) -> None:
    global _said
    if error is not None and _status is None:
        _said = isinstance(error, KeyboardInterrupt) or bool(_NAMES_A_PLACE.search(text_of(error)))
    _note(_status_of_uncaught(error))


def _note(status: int) -> None:
    """This process is about to end with `status`."""
    global _status
    if status == 0 or not in_charge() or _status is not None:
        return
    _status = status
    if _alone():  # then Python ends as it likes
        return

    def end() -> None:
        time.sleep(_PATIENCE_SECONDS)
        _abort(status)

    # Not threading's: its start() waits for the thread, for ever if that one finds no memory to begin with. Where none can be
    # had at all the system ends this process.
    with contextlib.suppress(RuntimeError):
        _thread.start_new_thread(end, ())
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, _PATIENCE_SECONDS + 2)


def fail(status: int, said: bool) -> NoReturn:
    """Ends the job with `status`, from whatever thread: the others are given the time to print what they have to say. `said`: why it
    ends, and where."""
    global _said
    _said = said
    time.sleep(0 if _alone() else _GRACE_SECONDS)
    _abort(status)
    raise AssertionError("the process goes on")


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
    except SystemExit as error:  # of a signal's handler
        _status = _status or status_of(error.code) or 1
        if error.code is not None and not isinstance(error.code, int):
            with contextlib.suppress(Exception):  # it has no text
                show(str(error.code))
    except BaseException:  # the others may be waiting for this process: it can't just go
        _status = _status or 1
        sys.__excepthook__(*sys.exc_info())
    if _status is not None and not _alone():
        time.sleep(_GRACE_SECONDS)
        _abort(_status)


def _abort(status: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # closed, a broken pipe, None, or one of the program's own
            pass
    bindings.abort(status, said=_said)


def _alone() -> bool:
    """Nobody waits for this process: MPI is not running, or it is a job of one."""
    return not bindings.mpi_query().usable or bindings.comm_info(None)[1] == 1


def _in_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _interactive() -> bool:
    """An uncaught exception ends a program, but not a prompt."""
    return bool(sys.flags.interactive) or hasattr(sys, "ps1")


def _outermost(frame: Optional[FrameType]) -> Optional[CodeType]:
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code if frame is not None else None


def _main_root() -> Optional[CodeType]:
    return _outermost(sys._current_frames().get(threading.main_thread().ident or 0))


def _running() -> bool:
    return _root is not None and _outermost(sys._getframe()) is _root


def _uncaught() -> bool:
    """An exception left the program, though another excepthook than ours was told: Python sets sys.last_value first."""
    value = getattr(sys, "last_value", None)
    trace = getattr(value, "__traceback__", None)
    return _root is not None and trace is not None and trace.tb_frame.f_code is _root and not _interactive()
