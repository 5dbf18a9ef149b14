# SPDX-License-Identifier: Apache-2.0
"""The role of this process in the job: rank(), size(), is_reader(), is_trainer() and num_readers()."""

from __future__ import annotations

from typing import Optional

from .state import known


def rank() -> Optional[int]:
    """This process's rank among the trainers, the same as `hvd.rank()`. None on a dedicated reader. Local.

    size(), is_reader(), is_trainer() and num_readers() raise in the same cases.

    Raises:
      RuntimeError: before init(), or in a forked child. After shutdown() it still answers.
    """
    return known("rank()").trainer


def size() -> Optional[int]:
    """The number of trainers, the same as `hvd.size()`. None on a dedicated reader. Local."""
    job = known("size()")
    return None if job.trainer is None else len(job.layout.trainers)


def is_reader() -> bool:
    """Says whether this process is a reader: it runs the pipelines that are distributed. Local."""
    return known("is_reader()").reader is not None


def is_trainer() -> bool:
    """Says whether this process gets batches. Rank 0 both reads and trains if there is no dedicated reader. Local."""
    return known("is_trainer()").trainer is not None


def num_readers() -> int:
    """The number of processes that read. Local."""
    return len(known("num_readers()").layout.readers)
