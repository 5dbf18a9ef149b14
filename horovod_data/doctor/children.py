# SPDX-License-Identifier: Apache-2.0
"""Runs code that may crash or hang in processes of its own, with a time limit. They send what they find line by line."""

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
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

_MARK = "@horovod_data.doctor "
_GRACE_SECONDS = 5.0  # for a launcher to end its ranks
_PR_SET_PDEATHSIG = 1


@dataclasses.dataclass(frozen=True)
class Told:
    """The output of a process. It has all `records` up to its end, also after a crash."""

    records: list[dict[str, Any]]
    ended: str  # "" after status 0; else "with status 1", "by signal 11 (SIGSEGV)", "not within 60 s"
    stderr: str

    def get(self, key: str) -> Any:
        """The value of `key` in the last record that has it, or None."""
        return next((record[key] for record in reversed(self.records) if key in record), None)

    def last_words(self, lines: int = 3) -> str:
        """The last lines of stderr without decoration: usually the reason of an end."""
        said = [line.strip() for line in self.stderr.splitlines() if line.strip(" \n-*#=")]
        telling = [line for line in said if not re.match(r"\*\*\*|\[[^\]]*:\d+\]", line)]
        return " / ".join((telling or said)[-lines:])


def say(**record: Any) -> None:
    """Called in such a process: sends a record to the doctor."""
    # In one write, on a line of its own: other ranks write to the same stdout.
    sys.stdout.flush()
    os.write(1, f"\n{_MARK}{json.dumps(record)}\n".encode())


def end_with_parent() -> None:
    """Called in such a process: kills it when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run(command: Sequence[str], limit: float, env: Optional[Mapping[str, str]] = None, in_job: bool = False) -> Told:
    """Runs a command to its end.

    Args:
      limit: in seconds.
      env: its whole environment; None: this process's.
      in_job: it takes this process's place in a job, so it gets its descriptors and the launcher's signals.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            child = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=None if env is None else dict(env),
                close_fds=not in_job,
                start_new_session=not in_job,
            )
        except OSError as failure:
            return Told([], f"before it began ({failure})", str(failure))
        try:
            ended = _end(child.wait(limit))
        except subprocess.TimeoutExpired:
            ended = f"not within {limit:.0f} s"
        finally:
            _stop(child, whole_session=not in_job)
        out.seek(0)
        err.seek(0)
        return Told(records(out.read().decode(errors="replace")), ended, err.read().decode(errors="replace"))


def records(text: str) -> list[dict[str, Any]]:
    """The records among the lines of a stdout."""
    found = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            if line.startswith(_MARK):
                found.append(dict(json.loads(line[len(_MARK) :])))
    return found


def _end(status: int) -> str:
    if status >= 0:
        return f"with status {status}" if status else ""
    try:
        return f"by signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"by signal {-status}"


def _stop(child: subprocess.Popen[bytes], whole_session: bool) -> None:
    """Ends a process, and the processes that it may have left behind."""
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE_SECONDS)
    if whole_session:
        for entry in Path("/proc").iterdir():  # Open MPI gives every rank a process group of its own
            with contextlib.suppress(ValueError, OSError):
                if os.getsid(int(entry.name)) == child.pid:
                    os.kill(int(entry.name), signal.SIGKILL)
    if child.poll() is None:
        child.kill()
    child.wait()
