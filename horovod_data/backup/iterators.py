# SPDX-License-Identifier: Apache-2.0
"""Saves and restores the positions of iterators of tf.data and of Loaders in a set. Calls no other rank.

This module imports TensorFlow only for an iterator of tf.data.
"""

from __future__ import annotations

import os
import zlib
from typing import Any

from ..channel import create
from ..errors import explained
from ..loading.loader import Loader
from .sets import WholeSet

_ITERATOR = "iterator"  # the name of the file
_CHECKSUM = 4  # bytes in front of a state
# Stages that hold no element back between two calls of the iterator.
_HOLD_NOTHING = ("Map", "Filter", "Options", "Typed", "Zip", "Enumerate", "Take", "Skip", "Repeat")


def write(folder: str, state: bytes) -> None:
    """Writes a state into a rank's folder of a set. Raises OSError."""
    with open(os.path.join(folder, _ITERATOR), "wb") as file:
        file.write(_checksum(state) + state)


def read(found: WholeSet, rank: int, what: str) -> bytes:
    """The state that a rank restores. All ranks have the same position, so any rank's part will do.

    Raises:
      ValueError: it is damaged. `what` names the caller.
    """
    path = os.path.join(found.part(rank % found.parts), _ITERATOR)
    with open(path, "rb") as file:
        content = file.read()
    state = content[_CHECKSUM:]
    if content[:_CHECKSUM] != _checksum(state):  # TensorFlow may crash if it restores a damaged state
        what = f"{what} can't restore from {path}, which is damaged"
        raise explained(ValueError, what, "Remove this set. Then the set before it is used")
    return state


def _checksum(state: bytes) -> bytes:
    return zlib.crc32(state).to_bytes(_CHECKSUM, "little")


def channels_of(data: Any) -> list[str]:
    """The names of the channels from which a Loader or a dataset receives."""
    if isinstance(data, Loader):
        return [data._channel.label]
    from ..channel.receiver import ends_of_channels

    return sorted(end.label for end in ends_of_channels(data))


def is_dynamic(data: Any) -> bool:
    """Says whether a Loader or a dataset has a channel with schedule="dynamic"."""
    return any(create.options_of[name].schedule == "dynamic" for name in channels_of(data))


# ---- Iterators of tf.data.


def state_of(iterator: Any, dataset: Any) -> bytes:
    """The state of an iterator of this dataset. Raises tf.errors.OpError."""
    from ..channel.receiver import ends_of_channels, stages, stages_behind
    from ..native import tensorflow_private as private

    ends = ends_of_channels(dataset)
    # If every stage is a channel or stands behind one, external state is not saved. So random ops among these
    # stages draw other numbers after a restore.
    only_behind = len(ends) > 0 and len(list(stages(dataset))) == len(ends) + len(stages_behind(ends, dataset))
    return bytes(private.state_of(iterator, ignores_external_state=only_behind).numpy())


def restore(iterator: Any, state: bytes) -> None:
    """Restores the result of state_of() into an iterator that has returned no element yet."""
    import tensorflow as tf

    from ..native import tensorflow_private as private

    private.restore_state(iterator, tf.constant(state))


def is_per_rank(dataset: Any) -> bool:
    """Says whether a dataset has a channel with batch="per_rank"."""
    return any(create.options_of[name].batch == "per_rank" for name in channels_of(dataset))


def check_ranks(dataset: Any, before: int, now: int) -> None:
    """Raises ValueError if `now` ranks can't restore an iterator of this dataset that `before` ranks have saved."""
    from ..channel.receiver import ends_of_channels, stages_behind
    from ..native import tensorflow_private as private

    if before == now:
        return
    behind = {private.name(stage) for stage in stages_behind(ends_of_channels(dataset), dataset)}
    if holding := sorted(behind - set(_HOLD_NOTHING)):
        raise explained(
            ValueError,
            f"the set was saved by {before} ranks, and {', '.join(holding)} behind distribute_dataset() "
            f"may hold elements for each of these ranks, so {now} ranks can't restore it",
            f"Restart with {before} ranks, or move the stage before distribute_dataset()",
        )
