# SPDX-License-Identifier: Apache-2.0
"""Runs a Python program on a rank, so that the rank's failure ends the job also where MPI would wait for it.

    python -m horovod_data.launcher.rank train.py ARGUMENTS...
    python -m horovod_data.launcher.rank -m package.train ARGUMENTS...
    python -m horovod_data.launcher.rank -c CODE ARGUMENTS...

From horovod_data.init() on, horovod_data.exits does that. This is for what comes before, and for programs that don't come
to init() at all:

- An uncaught exception, or sys.exit with a status, after `from mpi4py import MPI` or hvd.init(): at exit these call
  MPI_Finalize, which waits for the other ranks, which wait for this one. So the process leaves without it.
- The same before MPI has been initialised: Open MPI's mpirun ends the job by itself; Hydra leaves the others waiting, so
  it is told.
- os._exit between MPI_Init and MPI_Finalize: Open MPI makes status 1 of status 0, Hydra ends the whole job with status 0.
  So it is told as well.
- The end of the program, with status 0, after MPI has been initialised and before horovod_data.init(): MPI_Finalize waits for
  ranks that wait in init() for this one. Those on this host are told (horovod_data/ending/siblings.py).
- The same, or os._exit(0), before MPI has been initialised: if the job has other hosts, and the program has imported
  horovod_data, the ranks there are told as well (horovod_data/ending/leaving.py), and if one of them waits this is a failure.

Hydra is told through the connection that it gave this process (PMI_FD), by the line with which MPI_Abort does it.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import importlib
import io
import os
import runpy
import stat
import sys
import threading
import time
import types
import zipfile
from typing import Any, NoReturn, Optional

from ..auditing import keras_fit
from ..ending.processes import fork_check
from ..ending.siblings import stay_silent, tell_end
from ..errors import show
from ..native.loader import mpi_libraries

_PATIENCE_SECONDS = 5.0  # Python joins threads before it comes to our exit handler; a hang there ends here
_GRACE_SECONDS = 0.5  # the others may fail from the same cause: let them print their errors before they are killed


class Hydra:
    """The connection to the launcher's process on this host, as long as MPI has not closed it in MPI_Finalize."""

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
        """Whether MPI has not been finalised, or not even been initialised."""
        return self._identity is not None and self._look() == self._identity

    def abort(self, status: int) -> None:
        """Has the whole job ended with `status`."""
        if self.is_open:
            try:
                os.write(self._descriptor, f"cmd=abort exitcode={status}\n".encode())
                time.sleep(_GRACE_SECONDS)  # to be killed in: an exit with another status would be counted as well
            except OSError:
                pass


def main() -> None:
    hydra = Hydra(int(os.environ["PMI_FD"])) if os.environ.get("PMI_FD", "").isdigit() else None
    _watch_exits(hydra)
    if keras_fit.wanted(os.environ):
        keras_fit.install()
    stay_silent()  # what is said at the program's end is said below
    for name in [name for name in sys.modules if name.partition(".")[0] == "horovod_data"]:
        del sys.modules[name]  # the program finds its own, which is another one if it doesn't look in this folder
    try:
        _run(sys.argv[1:])
        _prepare(0, hydra)
    except SystemExit as error:
        _prepare(_status_of(error.code), hydra)
        raise
    except KeyboardInterrupt:
        _prepare(130, hydra)
        raise
    except BaseException:
        _prepare(1, hydra)
        raise


def _run(words: list[str]) -> None:
    """As Python itself runs `-m MODULE`, `-c CODE`, a file, or a folder or archive with a __main__.py."""
    if words in ([], ["-m"], ["-c"]):
        print("usage: python -m horovod_data.launcher.rank FILE | -m MODULE | -c CODE [ARGUMENTS...]", file=sys.stderr)
        sys.exit(2)
    # python -P (from 3.11 on) and python -I: no folder of ours stands first.
    safe_path = getattr(sys.flags, "safe_path", False) or sys.flags.isolated
    if words[:1] == ["-m"]:
        sys.argv[:] = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    if words[:1] == ["-c"]:
        sys.argv[:], first, text = ["-c", *words[2:]], "", words[1]
        code = compile(text, "<string>", "exec", dont_inherit=True)  # our future statements
    else:
        sys.argv[:], first = words, os.path.dirname(os.path.realpath(words[0]))
        if not os.path.isfile(words[0]) or zipfile.is_zipfile(words[0]):
            if not safe_path:
                del sys.path[0]  # what runs a folder or an archive puts it there
            runpy.run_path(words[0], run_name="__main__")
            return
        path = os.path.abspath(words[0])
        with io.open_code(path) as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
    if not safe_path:
        sys.path[0] = first
    main_module = types.ModuleType("__main__")  # which stays: threads and exit handlers may look for it later
    main_module.__dict__.update(__builtins__=builtins, __spec__=None)
    if words[0] != "-c":
        main_module.__file__ = path
    sys.modules["__main__"] = main_module
    exec(code, main_module.__dict__)


def _status_of(code: Any) -> int:
    """The status that Python makes of sys.exit(code)."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def _prepare(status: int, hydra: Optional[Hydra]) -> None:
    """This process is about to end with `status`: if that is a failure, it goes without waiting for anybody."""
    exits: Any = sys.modules.get("horovod_data.exits")
    if exits is not None and exits.in_charge():
        return
    if forked := _forked():
        hydra = None  # no rank: the job does not end with it
    if status == 0:
        if forked:
            return
        if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.current_thread()):
            return  # Python waits for these, and they may still come to init()
        tell_end()
        if not _left_waiting():
            return
        status = 1

    def leave() -> NoReturn:
        time.sleep(_GRACE_SECONDS)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:  # closed, a broken pipe, None, or one of the program's own
                pass
        if hydra is not None:
            hydra.abort(status)
        _exit(status)

    def leave_late() -> None:
        time.sleep(_PATIENCE_SECONDS)
        leave()

    atexit.register(leave)  # the newest: it runs before those that finalise MPI, and after Python has printed the error
    threading.Thread(target=leave_late, name="horovod_data exit", daemon=True).start()


_exit, _forked = os._exit, fork_check()


def _watch_exits(hydra: Optional[Hydra]) -> None:
    forked = fork_check()

    def exit(status: int) -> NoReturn:
        if forked():
            _exit(status)
        if status == 0 and not _mpi_initialized():
            if not _left_waiting():
                _finalize_mpi()
                _exit(0)
            status = 1
            time.sleep(_GRACE_SECONDS)
        if hydra is not None and hydra.is_open:
            if status == 0:
                show(
                    "horovod-data-run: a rank left by os._exit(0) without MPI_Finalize: that is an error, because it "
                    "ends the other ranks. Let the program run to its end, or call MPI's Finalize (hvd.shutdown()) "
                    "first."
                )
            time.sleep(_GRACE_SECONDS)  # Hydra passes on what it has read by then
            hydra.abort(status or 1)
            _exit(status or 1)
        _exit(status)

    os._exit = exit


def _left_waiting() -> bool:
    """Whether ranks wait in init() for this one, which ends without it: asked for by the program's own horovod_data, if it has
    imported any and MPI has not been initialised."""
    if "horovod_data" not in sys.modules or _mpi_initialized():
        return False
    try:
        leaving: Any = importlib.import_module("horovod_data.ending.leaving")
    except ImportError:  # another version
        return False
    return bool(leaving.leave())


def _finalize_mpi() -> None:
    """What asking the others has initialised: an exit without it MPI takes for an error."""
    for path in mpi_libraries():
        if _mpi_initialized():
            ctypes.CDLL(path).MPI_Finalize()


def _mpi_initialized() -> bool:
    """Whether an MPI library in this process has been initialised. MPI allows the question at any time."""
    answer = ctypes.c_int()
    for path in mpi_libraries():
        ctypes.CDLL(path).MPI_Initialized(ctypes.byref(answer))
        if answer.value:
            return True
    return False


if __name__ == "__main__":
    main()
