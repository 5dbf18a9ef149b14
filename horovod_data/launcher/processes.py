# SPDX-License-Identifier: Apache-2.0
"""The processes and signals of the supervisor.

mpirun has a session of its own. So Ctrl-C on a terminal reaches the supervisor alone, which forwards it. If the
supervisor is killed, the kernel sends SIGTERM to mpirun (PR_SET_PDEATHSIG), and mpirun ends the ranks. The kernel sends
it once for each thread of the supervisor. A second SIGTERM would end mpirun before it has ended the ranks.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from typing import Collection, Iterator, Optional

from .command import Command, not_started

_WATCHED = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_PR_SET_PDEATHSIG, _LIBC = 1, ctypes.CDLL(None)


@contextlib.contextmanager
def incoming_signals() -> Iterator[int]:
    """A file from which the numbers of the signals of this process can be read, one byte each."""
    signals, written = os.pipe()
    os.set_blocking(written, False)
    before = {number: signal.signal(number, lambda *_: None) for number in _WATCHED}
    previous = signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    try:
        yield signals
    finally:
        signal.set_wakeup_fd(previous)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(signals)
        os.close(written)


def start(
    command: Command, stderr: int, stdout: Optional[int] = None, kept: Collection[int] = ()
) -> "subprocess.Popen[bytes]":
    """Starts mpirun in a session of its own. If stderr is DEVNULL, its stdin and stdout are, too.

    mpirun gets the descriptors in `kept`.
    """
    parent = os.getpid()

    def prepare() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it was killed before prctl()
            os._exit(1)

    quiet = subprocess.DEVNULL if stderr == subprocess.DEVNULL else None
    environ = {name: value for name, value in os.environ.items() if name not in command.without}
    try:
        return subprocess.Popen(
            command.words, env={**environ, **command.environ}, stdin=quiet,
            stdout=stdout if quiet is None else quiet, stderr=stderr, start_new_session=True, preexec_fn=prepare,
            pass_fds=kept,
        )  # fmt: skip
    except OSError as error:
        raise not_started(command, error) from error
