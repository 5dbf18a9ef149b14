# SPDX-License-Identifier: Apache-2.0
"""Starts, watches and ends one job of several ranks on this machine, under Open MPI, MPICH or horovodrun."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ranks import sanitized

RANK_SH = Path(__file__).with_name("rank.sh")
SITE = Path(__file__).with_name("site")  # its sitecustomize.py halves the time of a job's start and end

DEFAULTS = {
    # Open MPI: root in a container, more ranks than cores, ranks that yield the core while they wait.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # Open MPI 5's name for it
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "HOROVOD_CYCLE_TIME": "10",  # milliseconds; at the default of 1 Horovod's threads take a tenth of two cores
    "PYTHONFAULTHANDLER": "1",  # prints every thread's stack on a crash or on our SIGABRT
    "PYTHONUNBUFFERED": "1",
    # TensorFlow imports distutils. The one of setuptools imports all of setuptools. Python 3.12 has no other one.
    **({"SETUPTOOLS_USE_DISTUTILS": "stdlib"} if sys.version_info < (3, 12) else {}),
}


def launcher() -> list[str]:
    """The launcher of the MPI under test: HVDATA_TEST_MPIRUN, or mpirun."""
    return shlex.split(os.environ.get("HVDATA_TEST_MPIRUN") or "mpirun")


@functools.cache
def open_mpi() -> bool:
    """Whether the MPI under test is Open MPI. Otherwise its launcher is Hydra."""
    done = subprocess.run([*launcher(), "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return "Open MPI" in done.stdout


def environment(directory: Path, readers: int, extra: Mapping[str, str | None]) -> dict[str, str]:
    """For the ranks: the caller's variables win over our defaults, `extra` over both (None unsets)."""
    env = {**DEFAULTS, **os.environ, "HVDATA_TEST_DIR": str(directory)}
    for name in ("HOROVOD_DATA_READERS", "HOROVOD_DATA_READERS_PER_NODE", "HOROVOD_DATA_EMBEDDED", "HVDATA_TEST_JOB"):
        env.pop(name, None)
    if env.get("HVDATA_TEST_SANITIZED"):
        env.update(sanitized.environment())
    if readers:
        env["HOROVOD_DATA_READERS"] = str(readers)
    # The ranks import the same horovod_data as this process would: the installed one, or a checkout in sys.path.
    package = importlib.util.find_spec("horovod_data")
    installed = package is None or package.origin is None or "site-packages" in package.origin
    home = "" if installed else str(Path(package.origin).parent.parent)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SITE), home, env.get("PYTHONPATH")]))
    for name, value in extra.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


def until(true: Callable[[], object], seconds: float) -> bool:
    """Waits until `true()`, at most so long. Returns whether it is."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class RunningJob:
    """`command` on `processes` ranks; files pid.R, out.R, err.R in `directory`, and the launcher's own output in
    log."""

    def __init__(
        self,
        command: Sequence[str],
        processes: int,
        directory: Path,
        *,
        readers: int = 0,
        env: Mapping[str, str | None] | None = None,
        launch: Sequence[str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.processes = processes
        self.directory = directory
        self._stopped: set[int] = set()  # by stacks()
        directory.mkdir(parents=True, exist_ok=True)
        self.started = time.monotonic()
        variables = environment(directory, readers, env or {})
        with open(directory / "log", "wb") as log:
            self._launcher = subprocess.Popen(
                [*self._launch(launch or launcher(), variables), "sh", str(RANK_SH), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=variables,
                cwd=cwd,
                start_new_session=True,  # so that _members() finds all processes
            )

    def _launch(self, launch: Sequence[str], env: Mapping[str, str]) -> Sequence[str]:
        """The launcher and its options, which stand before the command of the ranks. The launcher runs with these
        variables."""
        return [*launch, "-np", str(self.processes)]

    def poll(self) -> int | None:
        return self._launcher.poll()

    def wait(self, timeout: float) -> int | None:
        """The job's status, or None if it has not ended in time."""
        try:
            return self._launcher.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def pid(self, rank: int) -> int | None:
        try:
            return int((self.directory / f"pid.{rank}").read_text())
        except FileNotFoundError:
            return None

    def alive(self, rank: int) -> bool:
        return _alive(self.pid(rank))

    def read(self, kind: str, rank: int, offset: int = 0) -> str:
        """The output of rank `rank` to `kind` ("out" or "err") from byte `offset` on."""
        try:
            with open(self.directory / f"{kind}.{rank}", "rb") as file:
                file.seek(offset)
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def findings(self) -> str:
        """The findings of sanitizers in the ranks: see sanitized.py."""
        return sanitized.findings(self.directory)

    def kill_rank(self, rank: int, number: int = signal.SIGKILL) -> None:
        pid = self.pid(rank)
        if pid is None:
            raise AssertionError(f"rank {rank} has not started")
        os.kill(pid, number)

    def stacks(self, ranks: Iterable[int] | None = None, seconds: float = 10.0) -> dict[int, str]:
        """The stacks of all threads of every rank, from faulthandler. Ends the ranks by SIGABRT."""
        wanted = list(range(self.processes) if ranks is None else ranks)
        before = {rank: len(self.read("err", rank).encode()) for rank in wanted}
        # Otherwise the launcher ends the other ranks as soon as the first one has ended.
        self._stop_launchers()
        for rank in wanted:
            with contextlib.suppress(AssertionError, ProcessLookupError):
                self.kill_rank(rank, signal.SIGABRT)
        until(lambda: not any(self.alive(rank) for rank in wanted), seconds)
        return {
            rank: self.read("err", rank, before[rank]).strip() or "(no stacks: the process had ended, or is stopped)"
            for rank in wanted
        }

    def kill(self) -> None:
        """Ends every process of the job."""
        if self._launcher.poll() is None:
            self._launcher.terminate()  # so that Open MPI removes its session folder
            for pid in self._stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            self.wait(3)
        for pid in self._members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._launcher.wait()

    def left(self, seconds: float) -> list[str]:
        """The processes of the job that still run after `seconds`, with their commands. Ends none."""
        running = lambda: [pid for pid in self._members() if _alive(pid)]
        gone = until(lambda: not running(), seconds)
        return [] if gone else [f"{pid}: {command_of(pid)}" for pid in running()]

    def _stop_launchers(self) -> None:
        """Stops the launcher and the parents of the ranks."""
        pids = {self.pid(rank) for rank in range(self.processes)}
        for pid in {self._launcher.pid} | {_parent(pid) for pid in pids if _alive(pid)}:
            # A rank whose launcher has died is a child of init. Hydra's processes have sessions of their own.
            if pid in self._members() or self._descends(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                    self._stopped.add(pid)

    def _descends(self, pid: int) -> bool:
        """Whether the launcher is an ancestor of the process."""
        while pid > 1 and pid != self._launcher.pid:
            pid = _parent(pid)
        return pid == self._launcher.pid

    def _members(self) -> list[int]:
        """Every process of our session, and every process with the job's folder in its environment.

        Hydra's ranks have sessions of their own, and so have daemons that a rank has started. Open MPI gives each rank
        a process group, so killpg can't end the job.
        """
        mark = f"HVDATA_TEST_DIR={self.directory}".encode()
        found = []
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if entry.isdigit() and (
                    os.getsid(int(entry)) == self._launcher.pid
                    or mark in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
                ):
                    found.append(int(entry))
        return found


def _parent(pid: int | None) -> int:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _alive(pid: int | None) -> bool:
    if pid is None:
        return False  # it has not started
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")[:200]
    return "it has just ended"
