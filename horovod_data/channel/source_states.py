# SPDX-License-Identifier: Apache-2.0
"""The states of Python sources: which object has one, and what Hugging Face's datasets need beside their state."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

from ..errors import explained

# Pairs of methods that give and take a state: the object that has them, and their names. The first pair that exists is
# used.
_METHODS = (
    ("source", "state_dict", "load_state_dict"),
    ("iterator", "state_dict", "load_state_dict"),
    ("iterator", "get_state", "set_state"),
    ("source", "get_state", "set_state"),
)


class Stateful(NamedTuple):
    """What gives and takes the state of an iterator."""

    of_source: bool  # the source has the methods: its next iterator starts from the state
    get: Callable[[], Any]
    load: Callable[[Any], None]


class Saved(NamedTuple):
    """A state, as it is pickled."""

    state: Any
    yielded: int  # the elements before it in its epoch
    ended: bool  # the source had ended. Then `state` is None, because some sources begin anew from a state of their end


def stateful(source: Any, iterator: Any) -> Optional[Stateful]:
    """The state's methods. None: neither the source nor its iterator has them."""
    for whose, get, load in _METHODS:
        owner = source if whose == "source" else iterator
        if hasattr(owner, get) and hasattr(owner, load):
            return Stateful(whose == "source", getattr(owner, get), getattr(owner, load))
    return None


# ---- Hugging Face's IterableDataset, as the source or as the dataset of a StatefulDataLoader.


def check_whole(source: Any) -> None:
    """Raises ValueError if the source's state leaves rows out. Then a restore reads the source from its beginning."""
    if _has_shuffle_buffer(_hugging_face(source)):
        raise explained(ValueError, "the state of Hugging Face's shuffle() leaves out the rows in its buffer", where="")


def use_epoch_of(state: Any, source: Any) -> None:
    """Gives the dataset the epoch of a state that is to be loaded. It would ignore a state of another epoch."""
    data, epoch = _hugging_face(source), _epoch_in(state)
    if data is not None and epoch is not None and epoch != data.epoch:
        data.set_epoch(epoch)


def forget_state(source: Any) -> None:
    """Makes the next iterator start at the front. The dataset would start all later ones from the state."""
    data = _hugging_face(source)
    if data is not None:
        data.load_state_dict({})
        source.load_state_dict({})  # it may have workers, with copies of the dataset


def _hugging_face(source: Any) -> Any:
    both = (source, getattr(source, "dataset", None))
    return next((one for one in both if hasattr(one, "_starting_state_dict")), None)


def _has_shuffle_buffer(part: Any) -> bool:
    if isinstance(part, (list, tuple)):
        return any(map(_has_shuffle_buffer, part))
    inner = [one for name, one in getattr(part, "__dict__", {}).items() if "ex_iterable" in name]
    return getattr(part, "buffer_size", 0) > 1 or _has_shuffle_buffer(inner)


def _epoch_in(state: Any) -> Optional[int]:
    """The epoch in a state of the dataset, or of a StatefulDataLoader, which has one state for each of its workers."""
    if not isinstance(state, dict):
        return None
    if "examples_iterable" in state:
        return int(state["epoch"])
    return next((epoch for epoch in map(_epoch_in, state.values()) if epoch is not None), None)
