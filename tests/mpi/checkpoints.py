# SPDX-License-Identifier: Apache-2.0
"""Saving and restoring an iterator, and what it has left."""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf
from together import results


def save(it: Any, path: str) -> None:
    tf.train.Checkpoint(iterator=it).write(path)


def restore(it: Any, path: str) -> None:
    tf.train.Checkpoint(iterator=it).read(path).assert_consumed()


def take(it: Any, n: int) -> list[int]:
    return [next(it).numpy().item() for _ in range(n)]


def rest(it: Any) -> list[int]:
    return [x.numpy().item() for x in it]


def in_hand(hvdata: Any, comm: Any, name: str, steps: int = 1) -> None:
    """Waits until the reader has dealt so many steps of the channel that nobody has taken."""

    def until() -> None:
        deadline = time.monotonic() + 50
        while hvdata.is_reader() and hvdata.stats()[f"{name}/untaken"] < steps and time.monotonic() < deadline:
            time.sleep(0.01)

    results(comm, until)
