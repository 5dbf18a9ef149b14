# SPDX-License-Identifier: Apache-2.0
"""Copies of objects in memory, which the next step of a training does not change. Local.

This module uses PyTorch if the program has imported it.
"""

from __future__ import annotations

import copy
import pickle
import sys
from typing import Any


class _Pickled:
    """Holds what pickle writes for an object now. If this is pickled and read back, the result is the object."""

    def __init__(self, value: Any) -> None:
        self._bytes = pickle.dumps(value, 5)

    def __reduce__(self) -> Any:
        return pickle.loads, (self._bytes,)


def copied(value: Any) -> Any:
    """A deep copy, for pickle. Tensors of PyTorch are copied to the CPU, without their graph."""
    try:
        return _copied(value)
    except RecursionError:  # an object that holds itself
        return _Pickled(value)


def _copied(value: Any) -> Any:
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        both = copy.copy(value)  # keeps the class and its attributes, such as _metadata of a module's state
        for key, one in value.items():
            both[key] = _copied(one)
        return both
    if type(value) in (list, tuple):
        return type(value)(_copied(one) for one in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a namedtuple
        return type(value)(*(_copied(one) for one in value))
    if "jax" in sys.modules:
        # deepcopy() of an array would compute on the device, on this rank alone. Pickle reads the value on the host.
        return _Pickled(value)
    try:
        return copy.deepcopy(value)
    except RuntimeError:  # a tensor of PyTorch with a graph, in an object
        return _Pickled(value)
