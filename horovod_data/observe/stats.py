# SPDX-License-Identifier: Apache-2.0
"""stats(): what this process has moved, and where its time went."""

from __future__ import annotations

from typing import Union

from ..errors import explain, forked
from ..native import bindings
from . import times

resets = 0  # how often stats() has had the times begin anew


def stats(*, reset: bool = False) -> dict[str, Union[int, float]]:
    """What this process has moved since init(), in bytes unless the name says otherwise, and where its time went. Local.

    Of each channel, here `train`, in the epoch under way or the one before: that epoch's number in this run, `train/epoch`; the
    rows and steps that were handed out here, `train/rows` and `train/steps` (an element without rows counts as one); and, once
    the readers have come to its end, `train/dropped`: rows (with batch="per_rank" elements) that remainder="drop" left out, of the whole
    job (of an epoch that was broken off: of what had been dealt by then).

    Of each channel, in seconds since it was made, or since the last `stats(reset=True)` (on a dedicated reader: that of rank 0): on
    a rank `train/wait_seconds` (for batches, inside `next()`), `train/receive_seconds` (making tensors of them), `train/step_seconds` (the program's own, between two
    `next()`), which add up to the time of its epochs; `train/waits`, the steps whose batch was not there, and `train/queue`, the
    batches that were there, on average, when one was asked for; and, now, `train/window`: the steps that may be on their way. On a reader `train/pipeline_seconds` (the dataset works),
    `train/deal_seconds` (cutting, copying, sending), `train/room_seconds` (some rank's window is full; `train/room_seconds/3`: that of rank 3
    was the last, `train/room_waits/3` times), `train/serve_seconds` (all is dealt and not all taken), which add up as well; and, now, `train/untaken`: the steps
    (with schedule="dynamic" elements) that are dealt and that not all ranks have taken. On every process all names are
    there; those of a role that it has not are 0. `report()` shows those of all.

    Sent to other processes: `payload_bytes_inline` (copied into a header, and out of it), `payload_bytes_arena` (handed
    over in shared memory), `payload_bytes_message` (sent by MPI). Copied: into shared memory, because the pipeline had made
    them elsewhere, `payload_bytes_copied_to_arena` (of a global batch the reader's own share, too); because rows of padding
    were to follow, `payload_bytes_padded`; by the rank that gets them, because they began at an odd address,
    `payload_bytes_realigned`. Strings are not among the copies: they are encoded, into shared memory where there is some,
    and decoded. All that was handed to MPI, headers included: `mpi_bytes_sent`, `mpi_bytes_received`, and the
    numbers `mpi_messages_sent`, `mpi_messages_received`; `mpi_bags_sent` of them held several headers for one rank, or for
    the ranks of one host, together `mpi_headers_in_bags`. Of what came here for other ranks of this host `mpi_bags_passed_on` parts
    were given to them. Shared memory of a reader, now: `arena_bytes_in_use`,
    `arena_bytes_reserved`; and how often there was no room in it, `arena_refusals`. How many headers went by MPI because
    a rank of the host was far behind: `records_beside_full_ring`. Before init() there is nothing: {}.

    Args:
      reset: seconds, waits and queue begin anew after this answer.

    Raises:
      TypeError: reset is no bool.
      RuntimeError: in a forked child.
    """
    if not isinstance(reset, bool):
        raise TypeError(explain(f"reset must be True or False, not {reset!r}"))
    if bindings.state() is bindings.State.FORKED:
        raise RuntimeError(forked("stats()"))
    global resets
    resets += reset
    numbers: dict[str, Union[int, float]] = {**bindings.counters()}
    process = times.own(reset)
    return {**numbers, **times.flat(process)} if process else numbers
