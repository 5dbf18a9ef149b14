# SPDX-License-Identifier: Apache-2.0
"""In which process code runs: a forked child inherits the hooks, threads' objects and locks of a rank, and is none."""

from __future__ import annotations

import os
from typing import Callable


def fork_check() -> Callable[[], bool]:
    """A function that says whether it runs in a forked child of the process that has called this."""
    pid = os.getpid()
    return lambda: os.getpid() != pid
