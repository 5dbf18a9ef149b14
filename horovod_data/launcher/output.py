# SPDX-License-Identifier: Apache-2.0
"""Passes on the output of mpirun to the launcher's own streams, without a wait for them.

A terminal that is paused, or a program that no longer reads its pipe, must not keep the launcher from its signals. So
the launcher keeps what it can't write yet. If that is much, it reads no more from mpirun.
"""

from __future__ import annotations

import os
import select
from typing import Mapping

_MOST = 1 << 16  # bytes


class Output:
    """The launcher's stdout and stderr, and the pipes from mpirun."""

    def __init__(self) -> None:
        self._pipes: dict[int, int] = {}  # from mpirun, each with the launcher's own stream
        self._ends: dict[int, bytes] = {}  # the end of what each pipe has brought
        self._waiting = {1: b"", 2: b""}  # for the launcher's own streams

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

    @property
    def waits(self) -> bool:
        """Says whether something is not written yet."""
        return any(self._waiting.values())

    def say(self, text: str) -> None:
        """Writes to stderr during the next calls of wait()."""
        self._waiting[2] += text.encode(errors="replace")

    def wait(self, other: int, seconds: float) -> bool:
        """Waits until `other` can be read, or until there is output to pass on. Passes it on.

        Returns whether `other` can be read.
        """
        pipes = [pipe for pipe, stream in self._pipes.items() if len(self._waiting[stream]) < _MOST]
        streams = [stream for stream, data in self._waiting.items() if data]
        try:
            ready, writable, _ = select.select([other, *pipes], streams, [], max(seconds, 0.0))
        except OSError:  # a stream of the launcher is closed
            ready, writable = [], streams
        for stream in writable:
            self._write(stream)
        for pipe in pipes:
            if pipe in ready:
                self._read(pipe)
        return other in ready

    def _write(self, stream: int) -> None:
        data = self._waiting[stream]
        try:
            self._waiting[stream] = data[os.write(stream, data[: select.PIPE_BUF]) :]  # PIPE_BUF bytes do not block
        except BlockingIOError:
            pass
        except OSError:  # nobody reads it any more
            self._waiting[stream] = b""

    def _read(self, pipe: int) -> None:
        data = os.read(pipe, _MOST)
        stream = self._pipes[pipe]
        if not data:
            del self._pipes[pipe]
        self._ends[pipe] = (self._ends[pipe] + data)[-_MOST:]
        self._waiting[stream] += data
