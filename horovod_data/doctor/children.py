# SPDX-License-Identifier: Apache-2.0
"""Runs code that may crash or hang in separate processes, with a time limit. They send their results line by line."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from typing import Any, Mapping, Sequence

_MARK = "@horovod_data.doctor "
_GRACE_SECONDS = 5.0  # how long a launcher may take to end its ranks
_PR_SET_PDEATHSIG = 1


@dataclasses.dataclass(frozen=True)
class Output:
    """The output of a process. After a crash, `records` has all records that the process sent before."""

    records: list[dict[str, Any]]
    ended: str  # "" after status 0; otherwise "with status 1", "by signal 11 (SIGSEGV)", "not within 60 s"
    stderr: str

    def get(self, key: str) -> Any:
        """The value of `key` in the last record that has it, or None."""
        return next((record[key] for record in reversed(self.records) if key in record), None)

    def reason(self) -> str:
        """The last three lines of stderr without decoration. They usually have the reason for the end."""
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip(" \n-*#=")]
        plain = [line for line in lines if not re.match(r"\*\*\*|\[[^\]]*:\d+\]", line)]
        return " / ".join((plain or lines)[-3:])

    def ending(self) -> str:
        return f"ended {self.ended}: {self.reason()}"


def send(**record: Any) -> None:
    """Called in a child process. Sends a record in one write, because other ranks write to the same stdout."""
    sys.stdout.flush()
    os.write(1, f"\n{_MARK}{json.dumps(record)}\n".encode())


def end_with_parent() -> None:
    """Called in a child process. Makes the kernel kill it when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run(command: Sequence[str], limit: float, env: Mapping[str, str]) -> Output:
    """Runs a command to its end, or for `limit` seconds. `env`: its whole environment."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            child = subprocess.Popen(list(command), stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=dict(env))
        except OSError as failure:
            return Output([], f"before it began ({failure})", str(failure))
        try:
            ended = _end(child.wait(limit))
        except subprocess.TimeoutExpired:
            ended = f"not within {limit:.0f} s"
        finally:
            _stop(child)
        out.seek(0)
        err.seek(0)
        lines = out.read().decode(errors="replace").splitlines()
        records = [json.loads(line[len(_MARK) :]) for line in lines if line.startswith(_MARK)]
        return Output(records, ended, err.read().decode(errors="replace"))


def _end(status: int) -> str:
    if status >= 0:
        return f"with status {status}" if status else ""
    try:
        return f"by signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"by signal {-status}"


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Ends a process. A launcher ends its ranks, and other children call end_with_parent()."""
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE_SECONDS)
        child.kill()
    child.wait()
