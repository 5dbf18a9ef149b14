# SPDX-License-Identifier: Apache-2.0
"""stats(): how many bytes this process has moved, and where its time went."""

from __future__ import annotations

from typing import Union

from ..errors import explained, forked
from ..job.state import known
from ..native import bindings
from . import times

resets = 0  # calls of stats(reset=True)


def stats(*, reset: bool = False) -> dict[str, Union[int, float]]:
    """Returns the bytes that this process has moved since init(), and where its time went. Local. {} before init().

    Channel names below are `train` for an example. The result has the same keys on every process. Values of a role that the
    process does not have are 0. `report()` shows the times of all processes.

    - `attempt`: the number of this start of the job (HOROVOD_DATA_ATTEMPT), from 1.

    Counts of the channel's running epoch, or of its last epoch:

    - `train/epoch`: the epoch's number in this run.
    - `train/rows`, `train/steps`: delivered on this rank. An element without rows counts as one row.
    - `train/dropped`: rows of the whole job that remainder="drop" left out (elements with batch="per_rank"). They are
      counted when the readers reach the end of the epoch, or when the epoch is broken off.

    Seconds of a channel on a rank, since the channel was made or since the last `stats(reset=True)`. The first three
    add up to the time of its epochs:

    - `train/wait_seconds`: waiting for batches, inside `next()`.
    - `train/receive_seconds`: making tensors of the batches.
    - `train/step_seconds`: the program's own work, between two calls of `next()`.
    - `train/waits`: the steps whose batch had not arrived when the program asked for it.
    - `train/queue`: the mean number of batches that had arrived when the program asked for a batch.
    - `train/window`: the steps that may be on their way, now.

    Seconds of a channel on a reader. On a dedicated reader they start again when rank 0 calls `stats(reset=True)`. The first four add up
    to the time of its epochs:

    - `train/pipeline_seconds`: the dataset works.
    - `train/deal_seconds`: cutting, copying, sending.
    - `train/room_seconds`: waiting for credit of a rank, because its window is full. `train/room_seconds/3` and
      `train/room_waits/3` are the time and the number of these waits that ended with credit of rank 3.
    - `train/serve_seconds`: all elements are dealt, and not all taken.
    - `train/untaken`: the steps that are dealt and not yet taken by all ranks, now. With schedule="dynamic": elements.

    With cache="job" a channel has these values, now. The pipeline's times are those of the channel `train (load)`:

    - `train/cache_bytes`: of the rows that this process keeps for its host. 0: another process of the host keeps them.
    - `train/cache_limit`: the bytes of memory that it may take for them. The rest is in files.
    - `train/cache_units`: the rows (elements with batch="per_rank") that the whole job has loaded.
    - `train/cache_loaded`: 1 if all are loaded.

    Bytes of batches that were sent to other processes, by their way:

    - `payload_bytes_inline`: copied into a header, and out of it.
    - `payload_bytes_arena`: passed in shared memory.
    - `payload_bytes_message`: sent by MPI.

    Bytes of batches that were copied. Strings do not count here, because they are encoded and decoded.

    - `payload_bytes_copied_to_arena`: into shared memory, because the pipeline had made them elsewhere. The reader's
      own share of a global batch counts, too.
    - `payload_bytes_padded`: because rows of padding follow.
    - `payload_bytes_realigned`: by the rank that gets them, because they began at an unaligned address.

    Messages of MPI, with their headers:

    - `mpi_bytes_sent`, `mpi_bytes_received`, `mpi_messages_sent`, `mpi_messages_received`.
    - `mpi_bags_sent`: messages with several headers, for one rank or for the ranks of one host.
    - `mpi_headers_in_bags`: the headers in these messages.
    - `mpi_bags_passed_on`: parts of such messages that came here for other ranks of this host, and were passed to them.
    - `records_beside_full_ring`: headers that were sent by MPI because a rank of this host was far behind.

    Shared memory of a reader:

    - `arena_bytes_in_use`, `arena_bytes_reserved`: bytes, now.
    - `arena_refusals`: how often there was no room in it.

    Args:
      reset: True: seconds, waits and queue start again from 0 after this answer.

    Returns:
      The numbers by name: seconds and `queue` as float, all other numbers as int.

    Raises:
      TypeError: reset is not a bool.
      RuntimeError: in a forked child.
    """
    if not isinstance(reset, bool):
        raise explained(TypeError, f"reset must be True or False, not {reset!r}")
    if bindings.state() is bindings.State.FORKED:
        raise RuntimeError(forked("stats()"))
    global resets
    resets += reset
    counters = bindings.counters()
    attempt = {"attempt": known("stats()").settings.attempt} if counters else {}
    return {**attempt, **counters, **times.flat(times.own(reset))}
