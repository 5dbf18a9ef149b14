# SPDX-License-Identifier: Apache-2.0
"""What the trainers of an audit send each other: an all-to-all, and what is made of it.

An all-to-all is a scatter from each rank, one after another. MPI's Alltoallv would send the same bytes: each key once, to the
rank that counts it. But a collective of MPI can't be cancelled: a rank that is late or has departed would keep all others in
it forever. A scatter ends with an error that names the rank.

Only trainers take part. Calls with the same label go together, whatever else a rank does, so a thread may make them.
"""

from __future__ import annotations

import json
import re
from typing import Any, Sequence

import numpy as np
import tensorflow as tf

from ..native import loader

Array = Any
_ADDED = r"^\{\{function_node [^}]*\}\} |\s*\[Op:.*$"  # by TensorFlow, to the core's text


class Exchange:
    """The collectives of one audit. All ranks make the same calls in the same order, one at a time.

    Each raises tf.errors.UnavailableError if a rank has departed, DeadlineExceededError if a rank does not come in time.
    """

    def __init__(self, label: str, rank: int, size: int):
        self.label, self.rank, self.size = label, rank, size

    def alltoall(self, mine: Array, rows: Sequence[int]) -> list[Array]:
        """What every rank has for this one, in the order of the ranks. `mine`: an array [rows, ...] of what this one has for
        the first rank, the second, ...: `rows[r]` rows for rank r. All have the same dtype and row shape."""
        if self.size == 1:
            return [mine]
        return [self._scatter(mine, rows, root) for root in range(self.size)]

    def allgather(self, mine: Any) -> list[Any]:
        """What every rank gave, in the order of the ranks. JSON must be able to say it."""
        text = np.frombuffer(json.dumps(mine).encode(), np.uint8)
        return [json.loads(part.tobytes()) for part in self._to_all(text)]

    def allsum(self, mine: Array) -> Array:
        """The sum over all ranks of an int64 array, the same shape on all. Each rank adds up one part of it."""
        flat = np.ascontiguousarray(mine, np.int64).ravel()
        part = np.sum(self.alltoall(flat, [len(part) for part in np.array_split(flat, self.size)]), axis=0)
        return np.concatenate(self._to_all(part)).reshape(np.shape(mine))

    def _to_all(self, mine: Array) -> list[Array]:
        return self.alltoall(np.tile(mine, self.size), [len(mine)] * self.size)

    def _scatter(self, mine: Array, rows: Sequence[int], root: int) -> Array:
        value = mine if root == self.rank else mine[:0]
        splits = tf.constant(rows if root == self.rank else 0, tf.int64)
        try:
            with tf.device("/CPU:0"):
                # The core speaks of the audit where a label begins so (csrc/meeting/exchange.h).
                part, _ = loader.load().ops.horovod_data_scatter(
                    tf.constant(value), splits, [], root=root, scatter_name=f"\0A{self.label}"
                )
        except tf.errors.OpError as error:
            raise type(error)(None, None, re.sub(_ADDED, "", error.message)) from None
        return part.numpy()
