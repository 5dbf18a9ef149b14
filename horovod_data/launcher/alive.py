# SPDX-License-Identifier: Apache-2.0
"""Signs of life: files by which the launcher sees that the ranks of an attempt run.

Each rank touches a file of its own, in the folder of its notes. If that file stays as it is for more than
HOROVOD_DATA_TIMEOUT seconds, the rank does not run: it was stopped, or its host hangs or is lost. The ranks themselves
don't notice this in a collective of Horovod or MPI, which waits without end.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from typing import Optional

_END = ".alive"


def seconds_apart(limit: float) -> float:
    """The time from one sign to the next."""
    return min(max(limit / 10, 0.5), 60.0)


class Sign:
    """The file of this process. A thread touches it until end()."""

    def __init__(self, folder: str, who: str, limit: float) -> None:
        self._path = os.path.join(folder, who.replace("/", "_") + _END)
        self._ended = threading.Event()
        try:
            open(self._path, "w").close()
            threading.Thread(target=self._run, args=(limit,), name="horovod_data sign of life", daemon=True).start()
        except (OSError, RuntimeError):  # the disk is full, or the system has no thread left
            self.end()  # then the launcher does not watch this rank

    def _run(self, limit: float) -> None:
        while not self._ended.wait(seconds_apart(limit)):
            with contextlib.suppress(OSError):
                os.utime(self._path)

    def end(self) -> None:
        """Removes the file: from now on this process may be silent."""
        self._ended.set()
        with contextlib.suppress(OSError):
            os.remove(self._path)


class Watch:
    """The files of all ranks of an attempt, as the launcher sees them.

    Only the launcher's clock counts, and only while the launcher runs, because the whole job may be suspended.
    """

    def __init__(self, folder: str, limit: float) -> None:
        """`limit`: seconds. 0: silent() never names a rank."""
        self._folder, self._limit = folder, limit
        self._seen: dict[str, tuple[int, float]] = {}  # the time of each file, and since when it has had that time
        self._next = 0.0
        self.pause = seconds_apart(limit) if limit > 0 else math.inf  # seconds between two calls of silent()

    def silent(self) -> Optional[str]:
        """A rank that has been silent for too long: `rank 1 on node7`. May be called at any time."""
        now = time.monotonic()
        if self._limit <= 0 or now < self._next:
            return None
        if now - self._next > self._limit / 2:  # this process or its disk hung, and perhaps the ranks did, too
            self._seen.clear()
        self._next = now + seconds_apart(self._limit)
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(self._folder)):
                if name.endswith(_END) and self._since(name, now) > self._limit + seconds_apart(self._limit):
                    return name[: -len(_END)]
        return None

    def _since(self, name: str, now: float) -> float:
        """The seconds since a file was touched."""
        try:
            with open(os.path.join(self._folder, name)) as file:  # over NFS, only an open() sees the newest time
                touched = os.fstat(file.fileno()).st_mtime_ns
        except OSError:
            return 0.0
        before, since = self._seen.get(name, (None, now))
        if before != touched:
            self._seen[name] = (touched, now)
            return 0.0
        return now - since
