# SPDX-License-Identifier: Apache-2.0
"""How many times slower this machine is than the one for which the tests' limits were written. Limits that find hangs
are multiplied by it."""

from __future__ import annotations

import os
import time

_ADDITIONS = 500_000
_USUAL = 0.04  # seconds, with nothing beside it
_MOST = 4.0


def slowness() -> float:
    """Returns how slow this machine is, from 1 to 4. It is measured once, for the child processes, too."""
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
