# SPDX-License-Identifier: Apache-2.0
"""The inputs of every contestant: its place in the job, and ready-made batches that cost the reader nothing."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # ranks without TensorFlow import this module, too
    import tensorflow as tf

ROWS = 32
READER = 0


@dataclasses.dataclass(frozen=True)
class Job:
    rank: int
    size: int
    comm: Any  # mpi4py's communicator of the benchmark

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
        """A dataset whose elements are one rank's batches."""
        import tensorflow as tf

        return tf.data.Dataset.from_tensors(tf.random.uniform([ROWS, self.columns])).repeat()

    def whole(self, ranks: int) -> tf.data.Dataset:
        """A dataset whose elements are global batches. The rows for rank r hold the number r."""
        import tensorflow as tf

        owners = tf.repeat(tf.range(ranks, dtype=tf.float32), ROWS)
        return tf.data.Dataset.from_tensors(tf.tile(owners[:, None], [1, self.columns])).repeat()

    def zeros(self, rows: int) -> tf.Tensor:
        import tensorflow as tf

        return tf.zeros([rows, self.columns])
