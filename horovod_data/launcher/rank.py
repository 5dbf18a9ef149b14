# SPDX-License-Identifier: Apache-2.0
"""Runs a Python program on a rank. Ends the job when the program fails, also where MPI would wait for it.

    python -m horovod_data.launcher.rank train.py ARGUMENTS...
    python -m horovod_data.launcher.rank -m package.train ARGUMENTS...
    python -m horovod_data.launcher.rank -c CODE ARGUMENTS...

After horovod_data.init(), horovod_data/ending/exit_status.py does this. This module does it before init(), and for
programs that never call init(). The cases:

- An uncaught exception, or sys.exit with a status, after `from mpi4py import MPI` or hvd.init(). At exit mpi4py and
  Horovod call MPI_Finalize, which waits for the other ranks. So this module makes the process exit without
  MPI_Finalize.
- The same before MPI_Init. Open MPI's mpirun ends the job. Hydra leaves the other ranks waiting, so this module sends
  Hydra an abort.
- os._exit between MPI_Init and MPI_Finalize. Open MPI changes status 0 to status 1. Hydra ends the whole job with
  status 0, so this module sends Hydra another status.
- A program that has imported horovod_data and ends with status 0, without init() and without MPI. Ranks that have
  called init() would wait for it without end. So the process logs its rank, and fails.

To send Hydra an abort, this module writes to a connection that Hydra gave this process (PMI_FD). MPI_Abort sends the
same message.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import functools
import io
import os
import resource
import runpy
import signal
import stat
import sys
import threading
import time
import types
import zipfile
from typing import Any, Callable, NoReturn, Optional

from ..auditing import keras_fit
from ..ending.exit_status import GRACE_SECONDS, PATIENCE_SECONDS, flush, status_of
from ..errors import explain, fork_check, say, show
from ..job.launch_checks import place_before_mpi
from ..native.loader import mpi_libraries
from .notes import Writer

# A child process with this much memory may have been the rank. TensorFlow takes more memory, a tool takes less.
_LARGE_KIB = 100_000
_ASK = {"-h", "--help", "--version"}  # with these options a program ends without init(), on all ranks

_exit, _forked = os._exit, fork_check()
_notes = Writer(os.environ)
_is_tool = False  # True: the program is one of our own, for example the doctor


class Hydra:
    """The connection to Hydra's process on this host, which MPI_Finalize closes."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._identity = self._look()

    def _look(self) -> Optional[tuple[int, int]]:
        try:
            seen = os.fstat(self._descriptor)
        except OSError:
            return None
        return (seen.st_dev, seen.st_ino) if stat.S_ISSOCK(seen.st_mode) else None

    @property
    def is_open(self) -> bool:
        """True until MPI_Finalize, also before MPI_Init."""
        return self._identity is not None and self._look() == self._identity

    def abort(self, status: int) -> None:
        """Ends the whole job with `status`."""
        if self.is_open:
            try:
                os.write(self._descriptor, f"cmd=abort exitcode={status}\n".encode())
                # Hydra kills this process in this time. If this process exited, Hydra would use its exit status.
                time.sleep(GRACE_SECONDS)
            except OSError:
                pass


def main() -> None:
    hydra = Hydra(int(os.environ["PMI_FD"])) if os.environ.get("PMI_FD", "").isdigit() else None
    _watch_exits(hydra)
    _notes.begin()
    _notes.show_life()
    atexit.register(_rest)
    if "HOROVOD_DATA_ATTEMPT" in os.environ and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        # The launcher repeats this signal, which asks the ranks to save and leave, until the program has a handler.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if keras_fit.wanted(os.environ):
        keras_fit.install()
    for name in [name for name in sys.modules if name.partition(".")[0] == "horovod_data"]:
        del sys.modules[name]  # the program's sys.path may lead to another horovod_data
    words = sys.argv[1:]
    global _is_tool
    _is_tool = words[:1] == ["-m"] and words[1:2] != [] and words[1].partition(".")[0] == "horovod_data"
    try:
        _run(words)
        _prepare(0, hydra)
    except SystemExit as error:
        _prepare(status_of(error.code), hydra, error)
        raise
    except KeyboardInterrupt as error:
        _prepare(130, hydra, error)
        raise
    except BaseException as error:
        _prepare(1, hydra, error)
        raise


def _run(words: list[str]) -> None:
    """Runs the words as Python itself runs `-m MODULE`, `-c CODE`, a file, or a folder or archive with a
    __main__.py."""
    if words in ([], ["-m"], ["-c"]):
        print("usage: python -m horovod_data.launcher.rank FILE | -m MODULE | -c CODE [ARGUMENTS...]", file=sys.stderr)
        sys.exit(2)
    # With python -P (from 3.11) and python -I, sys.path does not begin with a folder of the program.
    safe_path = getattr(sys.flags, "safe_path", False) or sys.flags.isolated
    if words[:1] == ["-m"]:
        sys.argv[:] = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    if words[:1] == ["-c"]:
        sys.argv[:], first, text = ["-c", *words[2:]], "", words[1]
        code = compile(text, "<string>", "exec", dont_inherit=True)  # without the future statements of this module
    else:
        sys.argv[:], first = words, os.path.dirname(os.path.realpath(words[0]))
        if not os.path.isfile(words[0]) or zipfile.is_zipfile(words[0]):
            if not safe_path:
                del sys.path[0]  # because run_path() puts the folder or archive there
            runpy.run_path(words[0], run_name="__main__")
            return
        path = os.path.abspath(words[0])
        with io.open_code(path) as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
    if not safe_path:
        sys.path[0] = first
    main_module = types.ModuleType("__main__")  # stays after the run, because threads and exit handlers may use it
    main_module.__dict__.update(__builtins__=builtins, __spec__=None)
    if words[0] != "-c":
        main_module.__file__ = path
    sys.modules["__main__"] = main_module
    exec(code, main_module.__dict__)


def _prepare(status: int, hydra: Optional[Hydra], error: Optional[BaseException] = None) -> None:
    """Called when the program ends. After a failure, makes the process exit without a wait for other ranks."""
    exit_status: Any = sys.modules.get("horovod_data.ending.exit_status")  # of the program
    agreed = exit_status is not None and exit_status.ends_together(status)
    if status != 0 and not agreed and not _forked():
        _notes.fail(status, error)
    if exit_status is not None and exit_status.in_charge():
        return
    if forked := _forked():
        hydra = None  # a child is no rank: the job goes on

    def leave() -> NoReturn:
        time.sleep(GRACE_SECONDS)
        flush()
        if hydra is not None:
            hydra.abort(status)
        _exit(status)

    def leave_late() -> None:
        time.sleep(PATIENCE_SECONDS)
        leave()

    def leave_without_init() -> None:
        nonlocal status
        exit_status: Any = sys.modules.get("horovod_data.ending.exit_status")
        if not (exit_status is not None and exit_status.in_charge()) and _lacks_init():
            status = 1
            _notes.fail(status)
            leave()

    if status == 0:
        if not forked:
            # Python first waits for other threads, which may still call init(). It runs exit handlers after that.
            atexit.register(leave_without_init)
        return
    atexit.register(leave)  # the newest handler runs first: after Python has printed the error, before MPI_Finalize
    threading.Thread(target=leave_late, name="horovod_data exit", daemon=True).start()


def _watch_exits(hydra: Optional[Hydra]) -> None:
    def exit(status: int) -> NoReturn:
        if _forked():
            _exit(status)
        _rest()
        if status == 0 and not _mpi_initialized():
            if not _lacks_init():
                _exit(0)
            status = 1
            time.sleep(GRACE_SECONDS)
        if status != 0:
            _notes.fail(status)
        if hydra is not None and hydra.is_open:
            if status == 0:
                what = (
                    "a rank left by os._exit(0) without MPI_Finalize: that is an error, because it ends the other ranks"
                )
                to_do = "Let the program run to its end, or call MPI's Finalize (hvd.shutdown()) first"
                show(f"horovod-data-run: {what}. {to_do}.")
            time.sleep(GRACE_SECONDS)  # by then Hydra has passed on the output that it has read
            hydra.abort(status or 1)
            _exit(status or 1)
        _exit(status)

    os._exit = exit
    for name in "execv", "execve":
        setattr(os, name, _resting(getattr(os, name)))


def _rest() -> None:
    if not _forked():
        _notes.rest()


def _resting(execute: Callable[..., Any]) -> Callable[..., Any]:
    """Calls os.execv or os.execve, and ends the signs of life before, because the new program gives none."""

    @functools.wraps(execute)
    def call(*arguments: Any, **named: Any) -> Any:
        _rest()
        return execute(*arguments, **named)

    return call


def _lacks_init() -> bool:
    """Says whether the program uses horovod_data and ends without init(), which initialises MPI. Logs it."""
    if "horovod_data" not in sys.modules or _is_tool or _mpi_initialized() or not _ASK.isdisjoint(sys.argv):
        return False
    # If a child process was large, it may have been the rank. Until a child has called exec(), its memory includes that
    # of its parent.
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss > max(_LARGE_KIB, 1.2 * own):
        return False
    what = "This program has come to its end without having called horovod_data.init()"
    why = "ranks that have called it would wait for this rank for ever"
    to_do = (
        "Find what ends this rank's program before that call (a return, sys.exit, os._exit), or start fewer processes"
    )
    say(explain(f"{what}: {why}", to_do, place_before_mpi(os.environ)))
    return True


def _mpi_initialized() -> bool:
    """Says whether an MPI library in this process has been initialised. MPI allows this question at any time."""
    answer = ctypes.c_int()
    for path in mpi_libraries():
        ctypes.CDLL(path).MPI_Initialized(ctypes.byref(answer))
        if answer.value:
            return True
    return False


if __name__ == "__main__":
    main()
