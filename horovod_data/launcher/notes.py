# SPDX-License-Identifier: Apache-2.0
"""Notes that the ranks of an attempt leave for the launcher, in a folder of the directory of --state.

Each rank writes a file when its program begins, and again when its program fails. So the launcher can tell a program's
error from a lost process. A rank that can't write its file leaves no note, and goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from typing import Any, Iterator, Mapping, Optional

from ..job.launch_checks import place_before_mpi
from ..job.settings import timeout_in
from . import LaunchError
from .alive import Sign
from .restarts import ATTEMPT, STATE, Failure

_FOLDER = ".run"
# Parts of the errors that a rank raises because another rank was lost, or no longer answers.
_FOLLOWING = (
    ") has died",
    "a process of the job was lost",
    "HOROVOD_DATA_TIMEOUT",
    "Horovod has been shut down",
    "remote process exit",  # of NCCL
)
_PATIENCE_SECONDS = 10.0  # mpirun has this time to end the ranks of a killed launcher
_LONGEST = 300  # characters of an error's text
_OF_NODE = re.compile(r"\{\{[^{}]*\}\}")  # TensorFlow's name of a node of a graph


def folder_of(state: str, attempt: int) -> str:
    """The folder with the notes of an attempt."""
    return os.path.join(state, _FOLDER, f"attempt-{attempt}")


@contextlib.contextmanager
def locked(state: str) -> Iterator[int]:
    """Keeps other launchers from this directory. Gives the lock's descriptor.

    Processes that have inherited the descriptor hold the lock, too. So mpirun keeps other launchers away until it has
    ended the ranks of a killed launcher.

    Raises:
      LaunchError: the directory can't be used, or another launcher uses it.
    """
    path = os.path.join(state, _FOLDER, "lock")
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        file = open(path, "w")
    except OSError as error:
        to_do = "Name a directory on a file system that all hosts share"
        raise LaunchError(f"--state {state}: this directory can't be used ({error.strerror})", to_do) from error
    with file:
        end = time.monotonic() + _PATIENCE_SECONDS
        while not _locks(file.fileno()):
            if time.monotonic() > end:
                to_do = "Wait for its end, or name another directory"
                raise LaunchError(f"--state {state}: another horovod-data-run uses this directory", to_do)
            time.sleep(0.1)
        yield file.fileno()


def _locks(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks
    return True


def last_attempt(state: str) -> int:
    """The number of the last attempt that was started on this directory. 0: there was none."""
    with contextlib.suppress(OSError):
        names = os.listdir(os.path.join(state, _FOLDER))
        numbers = [name.partition("-")[2] for name in names if name.startswith("attempt-")]
        return max((int(number) for number in numbers if number.isdigit()), default=0)
    return 0


def remove_all(state: str) -> None:
    """Removes the notes, and the directory if it is empty then."""
    shutil.rmtree(os.path.join(state, _FOLDER), ignore_errors=True)
    with contextlib.suppress(OSError):
        os.rmdir(state)


class Writer:
    """Writes the notes of one rank. Does nothing if the launcher does not restart jobs."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._who = place_before_mpi(environ)
        attempt, state = environ.get(ATTEMPT, ""), environ.get(STATE, "")
        self._folder = folder_of(state, int(attempt)) if attempt.isdigit() and state else ""
        self._failed = False
        self._limit = 0.0
        with contextlib.suppress(ValueError):  # init() raises it
            self._limit = timeout_in(environ)
        self._sign: Optional[Sign] = None

    def begin(self) -> None:
        self._write({"who": self._who})

    def show_life(self) -> None:
        """From now on the launcher takes this rank as lost if it gives no sign of life for HOROVOD_DATA_TIMEOUT s."""
        if self._limit > 0 and self._folder and os.path.isdir(self._folder):
            self._sign = Sign(self._folder, self._who, self._limit)

    def rest(self) -> None:
        """Ends show_life(), before this process ends or becomes another program."""
        if self._sign is not None:
            self._sign.end()

    def fail(self, status: int, error: Optional[BaseException] = None) -> None:
        """Notes that the program fails with `status`. The first failure of a rank counts."""
        if self._failed:
            return
        self._failed = True
        text = f"exit status {status}"
        if error is not None and not isinstance(error, SystemExit):
            with contextlib.suppress(Exception):  # str() may fail
                text = " ".join(_OF_NODE.sub("", f"{type(error).__name__}: {error}").split())
        follows = any(part in text for part in _FOLLOWING)
        self._write({"who": self._who, "status": status, "text": text[:_LONGEST], "follows": follows})

    def _write(self, note: dict[str, Any]) -> None:
        path = os.path.join(self._folder, self._who.replace("/", "_") + ".json")
        if self._folder and os.path.isdir(self._folder):
            with contextlib.suppress(OSError):
                with open(path + ".new", "w", encoding="utf-8") as file:
                    json.dump(note, file)
                os.replace(path + ".new", path)


def read(folder: str) -> tuple[int, list[Failure]]:
    """The number of ranks that have begun, and the failures in the order of their notes' times."""
    found = []
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError, ValueError):
            if name.endswith(".json"):
                with open(path, encoding="utf-8") as file:
                    found.append((os.path.getmtime(path), json.load(file)))
    failures = [Failure(**note) for _, note in sorted(found, key=lambda one: one[0]) if "status" in note]
    return len(found), failures
