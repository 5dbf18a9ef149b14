# SPDX-License-Identifier: Apache-2.0
"""What a reading process does in the background, and, if it is a dedicated reader, for the rest of its life."""

from __future__ import annotations

import sys
import threading

import tensorflow as tf

from . import core, roles
from .errors import explain, start_thread
from .reading import Reading

_UNKNOWN = 2  # absl::StatusCode::kUnknown

# A generator that sleeps in user code can't be interrupted; the process need not wait for it for ever.
_JOIN_SECONDS = 5.0

_dealers: set[threading.Thread] = set()


def start_dealer(channel: int, label: str, reading: Reading) -> None:
    """Starts the thread that runs the epochs of a channel as trainers open them.

    It exists from the channel's start, because Python starts no thread any more when the main thread has ended, and other
    ranks may open epochs then. Between epochs it waits in C++.
    """
    thread = threading.Thread(target=_deal, args=(channel, reading), name=f"horovod_data dealer {label}", daemon=True)
    if not _dealers:
        roles.at_shutdown(_join_dealers)
    start_thread(thread)
    _dealers.add(thread)


def _deal(channel: int, reading: Reading) -> None:
    try:
        while (epoch := core.source_wait(channel)[0]):
            try:
                reading.deal(channel, epoch)
            except Exception as error:  # the op could not even begin: the trainers must hear of it
                code = error.error_code if isinstance(error, tf.errors.OpError) else _UNKNOWN
                core.source_fail(channel, epoch, code, str(error))
    finally:
        _dealers.discard(threading.current_thread())


def _join_dealers() -> None:
    for thread in list(_dealers):
        thread.join(_JOIN_SECONDS)
    _dealers.clear()


def serve() -> None:
    """On a dedicated reader: serves until all trainers are done, and then leaves the process with status 0.

    Elsewhere it does nothing. All channels are made before it. Not collective.

    Raises:
      SystemExit: on a dedicated reader, when the trainers are done.
      RuntimeError: before init(), after shutdown(), or when a process of the job was lost.
    """
    job = roles.current("serve()")
    if job.trainer is not None:
        return
    core.refuse_agreements(explain(
        f"reader {job.reader} on {job.hosts[job.comm_rank]} is in serve() already and takes no new channel",
        "Call distribute_dataset() for all channels before serve()"))
    core.wait_all_bye()
    if core.state() == core.State.BROKEN:
        raise RuntimeError(explain("a process of the job was lost while this reader served", where=job.where))
    roles.shutdown()
    sys.exit(0)
