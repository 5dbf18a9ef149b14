# SPDX-License-Identifier: Apache-2.0
"""The threads of a reader that run the epochs of its channels, and serve()."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any, Optional

from ..ending import exit_status, shutdown, signals
from ..errors import explain, explained, here, message_of, say, start_thread
from ..job import state
from ..native import bindings, calls, shares
from .reading import Reading

_UNKNOWN, _OUT_OF_RANGE = 2, 11  # of absl::StatusCode
# shutdown() waits at most this time for the dealer threads, because a generator that sleeps can't be interrupted.
_JOIN_SECONDS = 5.0

# All dealers that have not been joined. Idle dealers count too: their objects must not be freed while Python ends.
_dealers: set[Dealer] = set()


class Dealer:
    """The thread that runs the epochs of a channel as trainers open them.

    The thread starts before the ranks agree on the channel, so all ranks get the error if it can't be started. It lives
    as long as the channel, because other ranks may open epochs after the main thread has ended. Python starts no new
    thread then. Between epochs this thread waits in C++.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._channel: Optional[int] = None
        self._label = ""
        self._decided = threading.Event()  # begin() or cancel() was called
        self.thread: threading.Thread = threading.Thread(target=self._deal, name="horovod_data dealer", daemon=True)
        for ended in [dealer for dealer in _dealers if not dealer.thread.is_alive()]:
            ended.thread.join()
            _dealers.discard(ended)
        if not _dealers:
            shutdown.at_shutdown(_join_dealers)
        try:
            start_thread(self.thread)
        except RuntimeError:
            reading.close()
            raise
        _dealers.add(self)

    def begin(self, channel: int, label: str) -> None:
        """Makes the thread run the epochs of this channel."""
        self.thread.name += f" {label}"
        self._label = label
        self._channel = channel
        self._decided.set()

    def cancel(self) -> None:
        """Ends the thread, because the channel was not made."""
        self._decided.set()

    def _deal(self) -> None:
        self._decided.wait()
        try:
            while self._channel is not None and (turn := bindings.source_wait(self._channel)):
                _run_epoch(self._reading, self._channel, self._label, *turn)
        finally:
            self._reading.close()  # on this thread, which shutdown() joins
            # Free the dataset, which may be large, because the job may run on without this channel.
            if bindings.state() == bindings.State.RUNNING:
                del self._reading


def _run_epoch(reading: Reading, channel: int, label: str, epoch: int, number: int) -> None:
    process = os.getpid()
    try:
        reading.deal(channel, epoch, number)
    except BaseException as error:
        shares.end_forked_child(process, error)
        if isinstance(error, SystemExit):  # raised by a dataset function that is called for every epoch
            return _exit_job(channel, label, epoch, error)
        # The op has not begun, so only this call reports the error to the trainers.
        kind = "" if _is_of_tensorflow(error) else f"{type(error).__name__}: "
        bindings.source_fail(channel, epoch, _code_of(error), kind + message_of(error))  # the core adds the place


def _is_of_tensorflow(error: BaseException) -> bool:
    tf: Any = sys.modules.get("tensorflow")
    return tf is not None and isinstance(error, tf.errors.OpError)


def _code_of(error: BaseException) -> int:
    """The absl::StatusCode, as TensorFlow's py_function has it."""
    if not _is_of_tensorflow(error):
        return calls.code_of(error)
    try:
        code = int(getattr(error, "error_code"))
    except Exception:  # a class of the user may lack it, or hold something else
        code = _UNKNOWN
    return _UNKNOWN if code in (0, _OUT_OF_RANGE) else code  # OUT_OF_RANGE would end an iterator


def _exit_job(channel: int, label: str, epoch: int, error: SystemExit) -> None:
    """After sys.exit() in a dataset function: ends the job with that status, or only the epoch if the status is 0."""
    if status := exit_status.status_of(error.code):
        exit_status.show_text_of(error)
        what = f"the dataset function ends the program with status {status}, and the job with it"
        say(explain(what, where=f"{here()}, channel {label}, epoch {epoch}"))
        exit_status.fail(status, said=True)
    bindings.source_fail(channel, epoch, _UNKNOWN, explain("the dataset function has called sys.exit()", where=""))


def _join_dealers() -> None:
    deadline = time.monotonic() + _JOIN_SECONDS
    for dealer in list(_dealers):
        dealer.thread.join(max(0.0, deadline - time.monotonic()))
        if not dealer.thread.is_alive():
            _dealers.discard(dealer)


def serve() -> None:
    """On a dedicated reader: serves until all trainers are done, and then exits with status 0.

    On a trainer it does nothing. Make all channels before this call. Not collective.

    In serve() SIGUSR1 does not end the process, because trainers may save and leave after it (docs/checkpoints.md). If
    HOROVOD_DATA_STATE is set, the same holds for SIGTERM. Handlers of the program are called.

    Raises:
      SystemExit: on a dedicated reader, when the trainers are done.
      RuntimeError: before init(), after shutdown(), or when a process of the job was lost.
    """
    job = state.current("serve()")
    if job.trainer is not None:
        return
    to_do = "Call distribute_dataset() for all channels before serve(). For predict(), call it with "
    to_do += 'remainder="partial"'
    bindings.refuse_agreements(explain(f"{job.where} is in serve() already and takes no new channel", to_do, where=""))
    with signals.outlasted([signal.SIGUSR1, *([signal.SIGTERM] if job.environ.get("HOROVOD_DATA_STATE") else [])]):
        bindings.wait_all_bye()
        if bindings.state() == bindings.State.BROKEN:
            raise explained(RuntimeError, "a process of the job was lost while this reader served")
        shutdown.shutdown()
    sys.exit(0)
