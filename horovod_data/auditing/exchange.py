# SPDX-License-Identifier: Apache-2.0
"""What all trainers say to each other for an audit: an all-to-all made of a scatter from each rank, all of them at once, and what
is made of that.

Not MPI's Alltoallv: a collective of MPI can't be cancelled. A rank that has left, or that comes late, would keep the others in it
for ever; a scatter is made of messages, and ends with an error that names the rank. What is sent is the same: each key once, to the one
rank that counts it.

Only trainers take part, and the calls of a label go together whatever else a rank is doing: so they may be made by a thread.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any, Iterator, Optional, Sequence

import numpy as np
import tensorflow as tf

from ..native import loader

Array = Any


class Exchange:
    """The collectives of one audit. All ranks make the same calls in the same order, one at a time.

    Each raises tf.errors.UnavailableError if a rank has left, DeadlineExceededError if one does not come in time.
    """

    def __init__(self, label: str, rank: int, size: int):
        self.label, self.rank, self.size = label, rank, size
        self._all_to_alls: dict[tuple[Any, tuple[int, ...]], _AllToAll] = {}

    def alltoall(self, mine: Array, rows: Sequence[int]) -> list[Array]:
        """What every rank has for this one, in the order of the ranks. `mine`: an array [rows, ...] of what this one has for
        the first rank, the second, ...: `rows[r]` rows for rank r. All have the same dtype and row shape."""
        if self.size == 1:
            return [mine]
        value = np.asarray(mine)
        key = value.dtype, value.shape[1:]
        if key not in self._all_to_alls:
            self._all_to_alls[key] = _AllToAll(self, *key)
        return self._all_to_alls[key](value, np.asarray(rows, np.int64))

    def deal(self, parts: Optional[Sequence[Array]], like: Array) -> Array:
        """This rank's part of what rank 0 has for each: `parts` there. `like`: an array of their dtype and row shape."""
        if self.size == 1:
            return np.asarray((parts or [like])[0])
        if parts is None:
            return self._scatter(like, None, 0)
        return self._scatter(np.concatenate(parts), np.array([len(part) for part in parts], np.int64), 0)

    def allgather(self, mine: Any) -> list[Any]:
        """Everybody's, which JSON can say, in the order of the ranks."""
        text = np.frombuffer(json.dumps(mine).encode(), np.uint8)
        return [json.loads(part.tobytes()) for part in self._to_all(text)]

    def allsum(self, mine: Array) -> Array:
        """The sum over all ranks of an int64 array, the same shape on all: each rank adds a part of it, for all."""
        flat = np.ascontiguousarray(mine, np.int64).ravel()
        rows = [len(part) for part in np.array_split(flat, self.size)]
        part = np.sum(self.alltoall(flat, rows), axis=0, dtype=np.int64)
        return np.concatenate(self._to_all(part)).reshape(np.shape(mine))

    def _to_all(self, mine: Array) -> list[Array]:
        return self.alltoall(np.tile(mine, self.size), [len(mine)] * self.size)

    def _scatter(self, mine: Array, rows: Any, root: int) -> Array:
        # The op itself, not scatter(): a label that begins with a NUL meets no name of the user's.
        with tf.device("/CPU:0"), _errors_of_the_core():
            splits = tf.constant(0, tf.int64) if rows is None else tf.constant(rows, tf.int64)
            value = tf.constant(mine if rows is not None else mine[:0])
            part, _ = loader.load().ops.horovod_data_scatter(
                value, splits, [], root=root, scatter_name=f"\0 of {self.label}"
            )
        return part.numpy()


class _AllToAll:
    """An exchange of arrays of this dtype and row shape: a graph, which runs its scatters side by side, where eager calls would
    each wait for all ranks in turn. In a session, for a tf.function makes other errors of those of its ops."""

    def __init__(self, exchange: Exchange, dtype: Any, row_shape: tuple[int, ...]):
        with tf.Graph().as_default() as graph, tf.device("/CPU:0"):
            self._value = tf.compat.v1.placeholder(dtype, [None, *row_shape])
            self._rows = tf.compat.v1.placeholder(tf.int64, [exchange.size])
            nothing, nobody = tf.zeros([0, *row_shape], dtype), tf.constant(0, tf.int64)
            # A label that begins with a NUL meets no name of the user's.
            self._parts = [
                loader.load().ops.horovod_data_scatter(
                    self._value if root == exchange.rank else nothing,
                    self._rows if root == exchange.rank else nobody,
                    [],
                    root=root,
                    scatter_name=f"\0 of {exchange.label}, from rank {root}",
                )[0]
                for root in range(exchange.size)
            ]
        self._session = tf.compat.v1.Session(graph=graph, config=tf.compat.v1.ConfigProto(device_count={"GPU": 0}))

    def __call__(self, value: Array, rows: Array) -> list[Array]:
        with _errors_of_the_core():
            return list(self._session.run(self._parts, {self._value: value, self._rows: rows}))


@contextlib.contextmanager
def _errors_of_the_core() -> Iterator[None]:
    """Errors of the ops as the core made them. A session gives UnavailableError another class, "to avoid invoking TF network
    error handling logic", and puts the graph's nodes and their stack traces around the text."""
    try:
        yield
    except tf.errors.OpError as error:
        text = re.search(r"\[rank \d+ on .*?(?=\s*\[Op:|$)", str(error.message), re.MULTILINE)
        kind = re.search(r"originally returned (\w+), and was replaced", str(error.message))
        if text is None:
            raise
        raise getattr(tf.errors, kind[1] if kind else "", type(error))(None, None, _of_the_audit(text[0])) from None


def _of_the_audit(text: str) -> str:
    """The core's text without the scatters that the program did not make."""
    text = re.sub(r", scatter of (audit \d+)(, from rank \d+)?, call \d+\]", r", \1]", text)
    text = re.sub(
        r"waits in scatter of (audit \d+)(, from rank \d+)?, call \d+, which this rank has not made",
        r"waits in \1",
        text,
    )
    text = re.sub(r"which has not (made this call|sent its part)", "which has not come as far", text)
    text = text.replace("takes no part in this scatter", "takes no part in this audit")
    return text.replace(
        "Every rank must make the same scatter calls",
        "All ranks must make the same calls of audit(), and the same number of iterations over what it returns",
    )
