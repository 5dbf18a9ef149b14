# SPDX-License-Identifier: Apache-2.0
"""stats(): what this process has moved, and where its time went."""

from __future__ import annotations

from typing import Union

from ..errors import explained, forked
from ..native import bindings
from . import times

resets = 0  # calls of stats(reset=True)


def stats(*, reset: bool = False) -> dict[str, Union[int, float]]:
    """The bytes that this process has moved since init(), and where its time went. Local. {} before init().

    Names below are those of a channel `train`. Every process has all names. Those of a role that it has not are 0. `report()` shows the
    times of all processes.

    The running epoch of a channel, or the last one:

    - `train/epoch`: its number in this run.
    - `train/rows`, `train/steps`: handed out on this rank. An element without rows counts as one row.
    - `train/dropped`: rows (with batch="per_rank" elements) of the whole job that remainder="drop" left out. It counts when the
      readers have come to the end of the epoch. In an epoch that was broken off it counts what had been dealt.

    Seconds of a channel on a rank, since it was made or since the last `stats(reset=True)`. The first three add up to its epochs' time:

    - `train/wait_seconds`: waiting for batches, inside `next()`.
    - `train/receive_seconds`: making tensors of them.
    - `train/step_seconds`: the program's own work, between two `next()`.
    - `train/waits`: the steps whose batch had not come when the program asked for it.
    - `train/queue`: the mean number of batches that had come when the program asked for one.
    - `train/window`: the steps that may be on their way, now.

    Seconds of a channel on a reader (of a dedicated one, since the reset of rank 0). The first four add up as well:

    - `train/pipeline_seconds`: the dataset works.
    - `train/deal_seconds`: cutting, copying, sending.
    - `train/room_seconds`: the window of a rank is full. `train/room_seconds/3` and `train/room_waits/3` are the time and the
      number of such waits that ended with rank 3.
    - `train/serve_seconds`: all is dealt, and not all taken.
    - `train/untaken`: the steps (with schedule="dynamic" elements) that are dealt, and that not all ranks have taken, now.

    Bytes of batches that were sent to other processes, by their way:

    - `payload_bytes_inline`: copied into a header, and out of it.
    - `payload_bytes_arena`: handed over in shared memory.
    - `payload_bytes_message`: sent by MPI.

    Bytes of batches that were copied. Strings are not counted here: they are encoded and decoded.

    - `payload_bytes_copied_to_arena`: into shared memory, because the pipeline had made them elsewhere. The reader's own share of a
      global batch counts, too.
    - `payload_bytes_padded`: because rows of padding follow.
    - `payload_bytes_realigned`: by the rank that gets them, because they began at an odd address.

    Messages of MPI, headers included:

    - `mpi_bytes_sent`, `mpi_bytes_received`, `mpi_messages_sent`, `mpi_messages_received`.
    - `mpi_bags_sent`: those that held several headers, for one rank or for the ranks of one host. `mpi_headers_in_bags`: their headers.
    - `mpi_bags_passed_on`: parts of them that came here for other ranks of this host, and were given to them.
    - `records_beside_full_ring`: headers that went by MPI because a rank of this host was far behind.

    Shared memory of a reader:

    - `arena_bytes_in_use`, `arena_bytes_reserved`: now.
    - `arena_refusals`: how often there was no room in it.

    Args:
      reset: seconds, waits and queue begin anew after this answer.

    Raises:
      TypeError: reset is no bool.
      RuntimeError: in a forked child.
    """
    if not isinstance(reset, bool):
        raise explained(TypeError, f"reset must be True or False, not {reset!r}")
    if bindings.state() is bindings.State.FORKED:
        raise RuntimeError(forked("stats()"))
    global resets
    resets += reset
    numbers: dict[str, Union[int, float]] = {**bindings.counters()}
    process = times.own(reset)
    return {**numbers, **times.flat(process)} if process else numbers
