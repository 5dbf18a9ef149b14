# SPDX-License-Identifier: Apache-2.0
"""Saving and restoring an iterator, and its remaining elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from together import results, until


def save(it: Any, path: str) -> None:
    tf.train.Checkpoint(iterator=it).write(path)


def restore(it: Any, path: str) -> None:
    tf.train.Checkpoint(iterator=it).read(path).assert_consumed()


def saved(comm, it: Any, path: str) -> None:
    results(comm, lambda: save(it, path))


def restored(comm, ds: tf.data.Dataset, path: str) -> Any:
    """A new iterator, restored on every rank."""
    it = iter(ds)
    results(comm, lambda: restore(it, path))
    return it


def take(it: Any, n: int) -> list[Any]:
    return [np.asarray(next(it)).tolist() for _ in range(n)]


def rest(it: Any) -> list[Any]:
    return [np.asarray(x).tolist() for x in it]


def in_hand(hvdata: Any, comm: Any, name: str, steps: int = 1) -> None:
    """Waits until the reader has dealt so many steps of the channel that no rank has taken."""
    until(comm, lambda: not hvdata.is_reader() or hvdata.stats()[f"{name}/untaken"] >= steps, 50)
