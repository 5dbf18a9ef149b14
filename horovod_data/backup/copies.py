# SPDX-License-Identifier: Apache-2.0
"""Copies of objects in memory, which the next step of a training does not change. Local.

This module uses PyTorch if the program has imported it. It reads arrays of JAX on the host.
"""

from __future__ import annotations

import copy
import pickle
import sys
from typing import Any

import numpy as np


class _Pickled:
    """What pickle writes of an object now. pickle writes it again, and reads the object."""

    def __init__(self, value: Any) -> None:
        self._written = pickle.dumps(value, 5)

    def __reduce__(self) -> Any:
        return pickle.loads, (self._written,)


def copied(value: Any) -> Any:
    """A deep copy that only pickle reads. Tensors of PyTorch are copied to the CPU, without their graph."""
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
    if "jax" in sys.modules and not isinstance(value, np.ndarray):
        # deepcopy() of a JAX array is a computation on its device. This rank alone would launch it.
        return _Pickled(value)
    try:
        return copy.deepcopy(value)
    except RecursionError:
        raise
    except Exception:  # for example, the object holds a tensor of PyTorch with a graph
        return _Pickled(value)
