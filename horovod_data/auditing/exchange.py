# SPDX-License-Identifier: Apache-2.0
"""The collectives of the trainers of an audit.

Calls are matched by their label, so a thread may make them while the program makes other calls.

An all-to-all is a scatter from each rank, in rank order. MPI's Alltoallv would send the same bytes: each key once, to
the rank that counts it. But a late or departed rank would block it forever. A scatter ends with an error that names the
rank.
"""

from __future__ import annotations

import json
from typing import Any, Sequence

import numpy as np
import tensorflow as tf

from ..native import loader

Array = Any


class Exchange:
    """The collectives of one audit. All ranks make the same calls in the same order, one at a time.

    Each call raises tf.errors.UnavailableError if a rank has departed, and tf.errors.DeadlineExceededError if a rank
    does not make it in time.
    """

    def __init__(self, label: str, rank: int, size: int):
        self.label, self.rank, self.size = label, rank, size

    def alltoall(self, mine: Array, rows: Sequence[int]) -> list[Array]:
        """The rows of every rank for this rank, in the order of the ranks.

        `mine`: an array of this rank's rows for rank 0, then for rank 1, and so on. `rows[r]`: how many are for rank r.
        """
        if self.size == 1:
            return [mine]
        return [self._scatter(mine, rows, root) for root in range(self.size)]

    def allgather(self, mine: Any) -> list[Any]:
        """The values of all ranks, in the order of the ranks. JSON must be able to represent a value."""
        text = np.frombuffer(json.dumps(mine).encode(), np.uint8)
        return [json.loads(part.tobytes()) for part in self._to_all(text)]

    def allsum(self, mine: Array) -> Array:
        """The sum over all ranks of an int64 array of the same shape on all ranks. Each rank adds up one part of it."""
        flat = np.ascontiguousarray(mine, np.int64).ravel()
        part = np.sum(self.alltoall(flat, [len(part) for part in np.array_split(flat, self.size)]), axis=0)
        return np.concatenate(self._to_all(part)).reshape(np.shape(mine))

    def _to_all(self, mine: Array) -> list[Array]:
        return self.alltoall(np.tile(mine, self.size), [len(mine)] * self.size)

    def _scatter(self, mine: Array, rows: Sequence[int], root: int) -> Array:
        value = mine if root == self.rank else mine[:0]
        splits = tf.constant(rows if root == self.rank else 0, tf.int64)
        with tf.device("/CPU:0"):
            # A label that begins with these characters makes the core's texts name the audit (csrc/meeting/exchange.h).
            label = f"\0A{self.label}"
            part, _ = loader.load_ops().horovod_data_scatter(tf.constant(value), splits, label, [], root=root)
        return part.numpy()
