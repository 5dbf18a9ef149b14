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
    """Returns the bytes that this process has moved since init(), and where its time went. Local.

    Before init() the result is empty.

    Below, `train` stands for the name of a channel. The result has the same keys on every process. `report()` shows the
    times of all processes.

    Counts of the channel's running epoch, or of its last epoch:

    - `train/epoch`: the epoch's number in this run.
    - `train/rows`, `train/steps`: delivered on this rank. An element without rows counts as one row.
    - `train/dropped`: rows of the whole job that remainder="drop" left out (elements with batch="per_rank"). They are
      counted when the readers reach the end of the epoch, or when the epoch is broken off.

    Seconds and counts of a channel, such as `train/wait_seconds`, since the channel was made or since the last
    `stats(reset=True)`: docs/report.md has a table. On a dedicated reader they start again when rank 0 calls
    `stats(reset=True)`.

    With cache="job" a channel has these present values. The channel `train (load)` has the times of the pipeline:

    - `train/cache_bytes`: the bytes that this process keeps for its host. 0: another process keeps the host's rows.
    - `train/cache_limit`: the bytes of memory that it may take for them. The rest is in files.
    - `train/cache_units`: on a process that keeps rows, the rows (elements with batch="per_rank") that the whole job
      has loaded. Otherwise 0.
    - `train/cache_loaded`: on a process that keeps rows, 1 if all are loaded, -1 if the load has failed. Otherwise 0.

    Bytes of batches that were sent to other processes, by their way:

    - `payload_bytes_inline`: copied into a header, and out of it.
    - `payload_bytes_arena`: passed in shared memory.
    - `payload_bytes_message`: sent by MPI.

    Bytes of batches that were copied. Strings do not count here, because they are encoded and decoded.

    - `payload_bytes_copied_to_arena`: into shared memory, because the pipeline had made them elsewhere. The reader's
      own share of a global batch counts, too.
    - `payload_bytes_padded`: because filler rows follow.
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
