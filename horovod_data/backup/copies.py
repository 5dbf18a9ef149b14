# SPDX-License-Identifier: Apache-2.0
"""Copies of objects in memory, which the next step of a training does not change. Local.

This module uses PyTorch if the program has imported it.
"""

from __future__ import annotations

import copy
import sys
from typing import Any


def copied(value: Any) -> Any:
    """A deep copy. Tensors of PyTorch are copied to the CPU, without their graph."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        both = copy.copy(value)  # keeps the class and its attributes, such as _metadata of a module's state
        for key, one in value.items():
            both[key] = copied(one)
        return both
    if type(value) in (list, tuple):
        return type(value)(copied(one) for one in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a namedtuple
        return type(value)(*(copied(one) for one in value))
    return copy.deepcopy(value)
