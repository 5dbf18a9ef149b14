# SPDX-License-Identifier: Apache-2.0
"""Saving and restoring an iterator, and what it has left."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def save(it: Any, path: str) -> None:
    tf.train.Checkpoint(iterator=it).write(path)


def restore(it: Any, path: str) -> None:
    tf.train.Checkpoint(iterator=it).read(path).assert_consumed()


def take(it: Any, n: int) -> list[int]:
    return [next(it).numpy().item() for _ in range(n)]


def rest(it: Any) -> list[int]:
    return [x.numpy().item() for x in it]
