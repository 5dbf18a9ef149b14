# SPDX-License-Identifier: Apache-2.0
"""What every contestant is given: its place in the job, and ready-made batches that cost the reader nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

ROWS = 32
READER = 0


@dataclasses.dataclass(frozen=True)
class Job:
    rank: int
    size: int
    comm: Any  # mpi4py's, the benchmark's own

    @property
    def reads(self) -> bool:
        return self.rank == READER


@dataclasses.dataclass(frozen=True)
class Batch:
    """One rank's batch: float32[ROWS, columns]."""

    bytes: int

    @property
    def rows(self) -> int:
        return ROWS

    @property
    def columns(self) -> int:
        return self.bytes // (4 * ROWS)

    def own(self) -> tf.data.Dataset:
        """Elements are one rank's batch."""
        return tf.data.Dataset.from_tensors(tf.random.uniform([ROWS, self.columns])).repeat()

    def whole(self, ranks: int) -> tf.data.Dataset:
        """Elements are the global batch; the rows for rank r hold the number r."""
        owners = tf.repeat(tf.range(ranks, dtype=tf.float32), ROWS)
        return tf.data.Dataset.from_tensors(tf.tile(owners[:, None], [1, self.columns])).repeat()

    def zeros(self, rows: int) -> tf.Tensor:
        return tf.zeros([rows, self.columns])
