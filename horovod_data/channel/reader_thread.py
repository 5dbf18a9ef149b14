# SPDX-License-Identifier: Apache-2.0
"""What a reading process does in the background, and, if it is a dedicated reader, for the rest of its life."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from typing import Optional

import tensorflow as tf

from ..ending import exit_status, shutdown
from ..errors import explain, here, say, show, start_thread, text_of, without_place
from ..job import state
from ..native import bindings
from .reader_dataset import Reading

_UNKNOWN = 2  # absl::StatusCode::kUnknown
# absl's codes of what Python raises, as TensorFlow's own py_function has them: a NotImplementedError in a pipeline is UNIMPLEMENTED.
_CODES: dict[type[Exception], int] = {ValueError: 3, TypeError: 3, MemoryError: 8, NotImplementedError: 12}

# What TensorFlow puts around an error of our own op.
_AROUND_OURS = re.compile(
    r"^\{\{function_node __wrapped__HorovodDataDeal[^}]*\}\} |\s*\[Op:HorovodDataDeal\].*$", re.DOTALL
)

# A generator that sleeps in user code can't be interrupted; the process need not wait for it for ever.
_JOIN_SECONDS = 5.0

# All that have not been joined. One that has dealt its last epoch still has what is not to be freed while Python ends.
_dealers: set[Dealer] = set()


class Dealer:
    """The thread that runs the epochs of a channel as trainers open them.

    It exists from the channel's start, because Python starts no thread any more when the main thread has ended, and other
    ranks may open epochs then; and before the ranks agree on the channel, so that all of them hear it where it can't be had.
    Between epochs it waits in C++.

    Raises:
      RuntimeError: the system has no more threads for this process.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._channel: Optional[int] = None
        self._label = ""
        self._told = threading.Event()
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
        self.thread.name += f" {label}"
        self._label = label
        self._channel = channel
        self._told.set()

    def cancel(self) -> None:
        """There will be no such channel."""
        self._told.set()

    def _deal(self) -> None:
        self._told.wait()
        try:
            while self._channel is not None and (turn := bindings.source_wait(self._channel)):
                _run_epoch(self._reading, self._channel, self._label, *turn)
        finally:
            self._reading.close()  # here, where shutdown() waits for it
            if (
                bindings.state() == bindings.State.RUNNING
            ):  # the channel has ended, not the job: what it read may be large
                del self._reading


def _run_epoch(reading: Reading, channel: int, label: str, epoch: int, number: int) -> None:
    try:
        reading.deal(channel, epoch, number)
    except SystemExit as error:  # of a dataset function that is called for every epoch
        _leave(channel, label, epoch, error)
    except (
        BaseException
    ) as error:  # the op could not even begin: the trainers must hear of it, or they would wait for ever
        bindings.source_fail(channel, epoch, _code_of(error), _text_of(error))


def _code_of(error: BaseException) -> int:
    """The absl::StatusCode, as TensorFlow's py_function has it."""
    if isinstance(error, tf.errors.OpError):
        with contextlib.suppress(Exception):  # of a class of the user's, perhaps, or made of anything
            code = int(error.error_code)
            return (
                _UNKNOWN if code in (0, tf.errors.OUT_OF_RANGE) else code
            )  # by which iterators say that they are at their end
        return _UNKNOWN
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), _UNKNOWN)


def _text_of(error: BaseException) -> str:
    text = without_place(text_of(error))  # the core says more of the place
    return _AROUND_OURS.sub("", text) if isinstance(error, tf.errors.OpError) else f"{type(error).__name__}: {text}"


def _leave(channel: int, label: str, epoch: int, error: SystemExit) -> None:
    """sys.exit() in a dataset function means the process, on whatever thread the function runs."""
    if status := exit_status.status_of(error.code):
        if error.code is not status:
            with contextlib.suppress(Exception):  # it has no text
                show(str(error.code))
        say(
            explain(
                f"the dataset function ends the program with status {status}, and the job with it",
                where=f"{here()}, channel {label}, epoch {epoch}",
            )
        )
        exit_status.fail(status, said=True)
    bindings.source_fail(channel, epoch, _UNKNOWN, explain("the dataset function has called sys.exit()", where=""))


def _join_dealers() -> None:
    deadline = time.monotonic() + _JOIN_SECONDS
    for dealer in list(_dealers):
        dealer.thread.join(max(0.0, deadline - time.monotonic()))
        if not dealer.thread.is_alive():
            _dealers.discard(dealer)


def serve() -> None:
    """On a dedicated reader: serves until all trainers are done, and then leaves the process with status 0.

    Elsewhere it does nothing. All channels are made before it. Not collective.

    Raises:
      SystemExit: on a dedicated reader, when the trainers are done.
      RuntimeError: before init(), after shutdown(), or when a process of the job was lost.
    """
    job = state.current("serve()")
    if job.trainer is not None:
        return
    bindings.refuse_agreements(
        explain(
            f"reader {job.reader} on {job.hosts[job.comm_rank]} is in serve() already and takes no new channel",
            'Call distribute_dataset() for all channels before serve(). predict() takes what it returned with remainder="partial"',
        )
    )
    bindings.wait_all_bye()
    if bindings.state() == bindings.State.BROKEN:
        raise RuntimeError(explain("a process of the job was lost while this reader served", where=job.where))
    shutdown.shutdown()
    sys.exit(0)
