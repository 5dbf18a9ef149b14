# SPDX-License-Identifier: Apache-2.0
"""Is this process one of our own command-line tools? They must start where TensorFlow or the C++ core is broken."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Sequence

_TOOLS = ("horovod_data.doctor", "horovod_data.plan")


def starting_tool() -> bool:
    """Whether `python -m` is just now looking for one of our tools, and imports the package on its way."""
    if sys.argv[:1] != ["-m"]:  # so it is until the module has been found
        return False
    try:
        words = Path("/proc/self/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return False
    return names_tool(words, len(sys.argv) - 1)


def names_tool(words: Sequence[str], arguments: int) -> bool:
    """Whether a command line names one of our tools. `words`: all of it; the last `arguments` are the module's own."""
    if len(words) < arguments + 2:
        return False
    module = words[len(words) - arguments - 1].removeprefix("-m")
    return any(module == tool or module.startswith(tool + ".") for tool in _TOOLS)
