# SPDX-License-Identifier: Apache-2.0
"""How many times slower this machine is than those for which the tests' seconds were written. What is bounded by seconds, so that a
hang is found, is bounded by as many times more of them."""

from __future__ import annotations

import os
import time

_ADDITIONS = 500_000
_USUAL = 0.04  # seconds, with nothing beside it
_MOST = 4.0


def slowness() -> float:
    """From 1 to 4. Measured once, also for the processes that this one starts."""
    known = os.environ.get("HVDATA_TEST_SLOWNESS")
    if known is None:
        took = sorted(_seconds() for _ in range(3))[1]
        known = os.environ["HVDATA_TEST_SLOWNESS"] = f"{min(max(took / _USUAL, 1.0), _MOST):.2f}"
    return float(known)


def _seconds() -> float:
    began, total = time.monotonic(), 0
    for i in range(_ADDITIONS):
        total += i
    return time.monotonic() - began
