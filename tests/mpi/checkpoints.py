# SPDX-License-Identifier: Apache-2.0
"""Saving and restoring an iterator, and its remaining elements."""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf
from together import results


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
    return [next(it).numpy().tolist() for _ in range(n)]


def rest(it: Any) -> list[Any]:
    return [x.numpy().tolist() for x in it]


def in_hand(hvdata: Any, comm: Any, name: str, steps: int = 1) -> None:
    """Waits until the reader has dealt so many steps of the channel that no rank has taken."""

    def until() -> None:
        deadline = time.monotonic() + 50
        while hvdata.is_reader() and hvdata.stats()[f"{name}/untaken"] < steps and time.monotonic() < deadline:
            time.sleep(0.01)

    results(comm, until)
