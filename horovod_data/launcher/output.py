# SPDX-License-Identifier: Apache-2.0
"""Passes on the output of mpirun to the launcher's own streams, and keeps its end.

A stream that takes no output, such as a paused terminal, holds up the launcher and its job.
"""

from __future__ import annotations

import contextlib
import os
import select
from typing import Mapping

_MOST = 1 << 16  # bytes


class Output:
    """The pipes from mpirun."""

    def __init__(self) -> None:
        self._pipes: dict[int, int] = {}  # each with the launcher's own stream
        self._ends: dict[int, bytes] = {}  # the end of what each pipe has brought

    def begin(self, pipes: Mapping[int, int]) -> None:
        """Passes on what comes from these pipes. Each is given with the launcher's own stream."""
        self._pipes, self._ends = dict(pipes), dict.fromkeys(pipes, b"")

    def stop(self) -> str:
        """Reads no more from the pipes. Returns the end of what they have brought."""
        self._pipes = {}
        return b"\n".join(self._ends.values()).decode(errors="replace")

    @property
    def is_open(self) -> bool:
        """Says whether a pipe may bring more."""
        return bool(self._pipes)

    def wait(self, other: int, seconds: float) -> bool:
        """Waits until `other` can be read, or a pipe brings output, and passes the output on.

        Returns whether `other` can be read.
        """
        ready = select.select([other, *self._pipes], [], [], max(seconds, 0.0))[0]
        for pipe in self._pipes.keys() & set(ready):
            data, stream = os.read(pipe, _MOST), self._pipes[pipe]
            self._ends[pipe] = (self._ends[pipe] + data)[-_MOST:]
            if not data:
                del self._pipes[pipe]
            with contextlib.suppress(OSError):  # the stream is closed, or a pipe without a reader
                while data:
                    select.select([], [stream], [])  # the stream may be one that does not block
                    data = data[os.write(stream, data[: select.PIPE_BUF]) :]
        return other in ready
