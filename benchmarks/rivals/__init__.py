# SPDX-License-Identifier: Apache-2.0
"""Ways to feed N ranks from one pipeline, one file each, all alike:

    NAME: how tables call it; begins with "hvd." if it is an operation of Horovod's
    KIND: "ours", "rival" (it delivers, or does the work that delivering saves) or "limit" (no way to feed a training loop from
        one pipeline: it shows what such a way is up against)
    MOVES: whether the batches go from the reader to the ranks
    CUTS: whether batches are cut from Batch.whole(), so that they must hold the number of their rank
    ABOUT: one line on what it does
    ahead(batch): steps that it may have under way; 2 where there is no such function
    LARGEST: bytes of a rank's batch up to which it takes part; any where there is no such name
    steps(job, batch): an endless iterator of this rank's tensors, one per step; or None: this rank takes no part

What `steps` holds is freed when its generator is closed.
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
    ours_2,
    ours_16,
    ours_64,
    ours_ahead,
    ours_global,
    ours_per_rank,
    reader_alone,
    service,
    shard,
)

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
    """Whether it does with batches of so many bytes."""
    return size <= getattr(rival, "LARGEST", size)
