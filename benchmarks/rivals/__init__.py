# SPDX-License-Identifier: Apache-2.0
"""Ways to feed N ranks from one pipeline, one file each, and ours in one file. Each has these names:

    NAME: its name in tables; begins with "hvd." if it is an operation of Horovod
    KIND: "ours"
        "rival": it delivers, or does the work that delivery saves
        "limit": it can't feed a training loop from one pipeline, and shows the limit for such ways
    MOVES: the batches go from the reader to the ranks
    CUTS: batches are cut from Batch.whole(), so they must hold the number of their rank
    ABOUT: one line on what it does
    ahead(batch): the most steps on their way; optional, by default 2
    LARGEST: the largest bytes of a rank's batch with which it takes part; optional, by default any
    steps(job, batch): an endless iterator of this rank's tensors, one per step; None: this rank takes no part

When the generator of `steps` is closed, it frees what it holds.
"""

from . import (
    alltoall,
    broadcast,
    local,
    local_in_step,
    local_in_step_ahead,
    mpi4py_scatter,
    mpi_scatter,
    mpi_scatter_tensors,
    reader_alone,
    service,
    shard,
)
from .ours import ours_2, ours_16, ours_64, ours_ahead, ours_global, ours_per_rank

ALL = (
    ours_per_rank,
    ours_2,
    ours_16,
    ours_64,
    ours_ahead,
    ours_global,
    broadcast,
    alltoall,
    service,
    mpi_scatter,
    mpi_scatter_tensors,
    mpi4py_scatter,
    shard,
    local,
    local_in_step,
    local_in_step_ahead,
    reader_alone,
)


def takes_part(rival, size):
    """Says whether it takes part with batches of `size` bytes."""
    return size <= getattr(rival, "LARGEST", size)
