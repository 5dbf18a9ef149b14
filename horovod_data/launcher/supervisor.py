# SPDX-License-Identifier: Apache-2.0
"""Starts mpirun, waits for its end, and starts it again after a loss. launcher/restarts.py decides.

Signals come through a pipe, so one select() waits for them and for mpirun's output. This process has one thread,
because the kernel sends PR_SET_PDEATHSIG once for each thread of a killed process (launcher/processes.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import signal
import subprocess
import time
from typing import Callable, Collection, Optional, Sequence

from ..backup.sets import Sets
from . import notes, processes
from .alive import Watch
from .command import Command
from .hosts import Host, given_name
from .output import Output
from .restarts import Again, Ended, Lost, Policy, Stop, Way, choose_hosts, decide, way_of

_INTERRUPT, _ASK_TO_LEAVE = signal.SIGINT, (signal.SIGTERM, signal.SIGUSR1)
# Seconds until the signal is repeated. A rank ignores the signal until its program has a handler.
_FIRST_REPEAT, _REPEAT = 5, 10
_END_SECONDS = 15.0  # mpirun has this time to end the ranks. After it, mpirun is killed
_PROBE_SECONDS = 10.0  # a host that has started no process in this time does not answer
# If the job can go on without a host that was just lost, the launcher waits for that host's answer only this long. But
# it always waits until all other hosts have answered, for up to _PROBE_SECONDS.
_LATE_SECONDS = 4.0
_AHEAD_SECONDS = 1.0  # the launcher begins to ask the hosts this long before the pause before an attempt ends
_PROBE_PAUSE = 10.0  # between two probes, if too few hosts answer
_PATIENCE_SECONDS = 600.0  # the launcher waits for hosts for this time


@dataclasses.dataclass(frozen=True)
class Job:
    """What a supervisor starts."""

    state: str  # the directory of --state, as an absolute path
    hosts: tuple[Host, ...]
    own_names: frozenset[str]  # of this machine, which always answers
    grace: float  # seconds for the ranks to save and leave
    # Gets the hosts, the number of trainers and the number of the attempt. Returns the command, and a description of
    # where the processes run.
    command: Callable[[Sequence[Host], int, int], tuple[Command, str]]
    probe: Callable[[Sequence[Host]], Command]  # starts a process on each of these hosts, which ends at once
    lost: Callable[[str], Optional[Lost]]  # finds in mpirun's output what was lost
    names_on_stdout: bool = False  # mpirun names it there, otherwise on stderr
    limit: float = 0.0  # a rank that gives no sign of life for this many seconds is lost. 0: there is no limit


def supervise(job: Job, policy: Policy) -> int:
    """Runs the job to its end, with restarts, and returns its status.

    Raises:
      LaunchError: mpirun can't be started, or the directory can't be used, or another launcher uses it.
    """
    with notes.locked(job.state) as lock, processes.incoming_signals() as signals:
        supervisor = _Supervisor(job, policy, signals, lock)
        try:
            return supervisor.run()
        finally:
            supervisor.flush()


class _Supervisor:
    def __init__(self, job: Job, policy: Policy, signals: int, lock: int) -> None:
        self._job, self._policy, self._signals, self._lock = job, policy, signals, lock
        self._history: list[Ended] = []
        self._asked = self._interrupted = False  # a signal that asks to save and leave has come; SIGINT has come
        self._overdue = False  # the ranks had not left in time
        self._due: list[tuple[float, int]] = []  # signals for mpirun, by the time when they are due
        self._silent: Optional[str] = (
            None  # the rank of this attempt that gave no sign of life, so that mpirun is ended
        )
        self._output = Output()
        self._suspects: set[str] = set()  # hosts that may not answer

    def run(self) -> int:
        attempt, np, hosts = notes.last_attempt(self._job.state) + 1, self._policy.np, self._job.hosts
        command, where = self._job.command(hosts, np, attempt)
        while True:
            self._history.append(self._attempt(command, attempt))
            decision = decide(self._history, self._policy)
            if isinstance(decision, Again):
                end = time.monotonic() + decision.pause
                self._wait(decision.pause - _AHEAD_SECONDS)
                decision, hosts = self._find_hosts(decision)
                self._wait(end - time.monotonic())
            if self._asked or self._interrupted:
                if decision.why and not self._interrupted:
                    self._say(decision.why)
                return self._status_of_asked()
            if isinstance(decision, Stop):
                if decision.why:
                    self._say(decision.why)
                if decision.status == 0:
                    self._remove_all()
                return decision.status
            np = min(self._policy.np, sum(host.slots for host in hosts))
            attempt += 1
            command, where = self._job.command(hosts, np, attempt)
            newest = self._history[-1].newest
            start = f"from {newest}" if newest else "from the beginning, because no set was saved"
            without = ", ".join(host.name for host in self._job.hosts if host not in hosts)
            where += f"; without {without}" if without else ""
            self._say(f"{decision.why}. Attempt {attempt} starts {start}: {where}")

    def _status_of_asked(self) -> int:
        """The job's status after a signal to this process."""
        last = self._history[-1]
        lost = way_of(self._history, self._policy.leave_status) is Way.LOSS
        if lost and last.newest and not (self._interrupted or self._overdue):
            return self._policy.leave_status  # the next job goes on from the newest set, as after a save
        if last.status == 0:
            self._remove_all()
        return last.status

    def _remove_all(self) -> None:
        """Removes what no later job needs. Sets of a training that is not over stay."""
        sets = Sets(self._job.state)
        with contextlib.suppress(OSError, ValueError):
            found, _ = sets.newest()
            if found is not None and found.about.get("over"):
                sets.clear()
        notes.remove_all(self._job.state)

    def _attempt(self, command: Command, attempt: int) -> Ended:
        folder = notes.folder_of(self._job.state, attempt)
        with contextlib.suppress(OSError):  # for example, the disk is full. Then the ranks leave no notes
            os.makedirs(folder, exist_ok=True)
        stdout = subprocess.PIPE if self._job.names_on_stdout else None
        process = processes.start(command, subprocess.PIPE, stdout, [self._lock])
        pipes = {pipe: stream for stream, pipe in ((1, process.stdout), (2, process.stderr)) if pipe is not None}
        self._output.begin({pipe.fileno(): stream for pipe, stream in pipes.items()})
        self._due = []
        self._silent = None
        watch = Watch(folder, self._job.limit)
        while process.poll() is None:
            now = time.monotonic()
            if self._silent is None and (silent := watch.silent()) is not None:
                self._silent = silent
                self._due = [(now, signal.SIGTERM), (now + _END_SECONDS, signal.SIGKILL)]
            if self._due and self._due[0][0] <= now:
                number = self._due.pop(0)[1]
                self._overdue = self._overdue or (number == signal.SIGTERM and self._silent is None)
                process.send_signal(number)
                continue
            self._listen(min(self._due[0][0] - now if self._due else 3600.0, watch.pause))
        end = time.monotonic() + 1.0  # not longer, because an orphan of mpirun may hold the pipe
        while self._output.is_open and ((left := end - time.monotonic()) > 0 or self._is_paused()):
            self._listen(max(left, 0.1))
        text = self._output.stop()
        for pipe in pipes:
            pipe.close()
        status = process.returncode if process.returncode >= 0 else 128 - process.returncode
        begun, failures = notes.read(folder)
        lost = self._job.lost(text)
        if (silent := self._silent) is not None:  # this process has ended mpirun, so mpirun's status does not count
            host = given_name(silent.partition(" on ")[2], [host.name for host in self._job.hosts])
            lost, status = Lost(f"{silent} has given no sign of life for {self._job.limit:g} s", host, True), 1
        if lost is not None:
            self._suspects.add(lost.host)
            if lost.whole_host:
                status = status or 1  # Open MPI 5 ends with status 0
        return Ended(status, time.monotonic(), begun, failures, lost, self._newest(), self._asked)

    def _newest(self) -> str:
        """Names the newest whole set: `epoch 2, step 400 (set-00000007)`."""
        try:
            found, _ = Sets(self._job.state).newest()
        except (OSError, ValueError):
            return ""
        if found is None:
            return ""
        place = ", ".join(f"{name} {found.about[name]}" for name in ("epoch", "step") if name in found.about)
        name = os.path.basename(found.path)
        return f"{place} ({name})" if place else name

    # ---- Signals.

    def _listen(self, seconds: float) -> None:
        """Waits for a signal, or for output of mpirun, at most for `seconds`."""
        if self._output.wait(self._signals, seconds):
            for number in os.read(self._signals, 64):
                self._take(number)

    def _is_paused(self) -> bool:
        """Says whether output waits for a terminal, or for the program behind a pipe. False after a signal."""
        return self._output.waits and not (self._asked or self._interrupted)

    def flush(self) -> None:
        """Writes what is not written yet."""
        end = time.monotonic() + 1.0
        while self._output.waits and ((left := end - time.monotonic()) > 0 or self._is_paused()):
            self._listen(max(left, 0.1))

    def _say(self, text: str) -> None:
        self._output.say(f"horovod-data-run: {text}.\n")

    def _take(self, number: int) -> None:
        """Acts on a signal to this process."""
        now = time.monotonic()
        if number == _INTERRUPT:
            self._due = [(now, _INTERRUPT), (now + _END_SECONDS, signal.SIGKILL)]
            self._interrupted = True
        elif number in _ASK_TO_LEAVE and not self._asked and not self._interrupted:
            self._say(f"{signal.Signals(number).name}: the ranks are to save and leave")
            if self._silent is None:  # otherwise the signals that end mpirun are already due
                self._due = signals_to_leave(now, self._job.grace)
            self._asked = True

    def _wait(self, seconds: float) -> None:
        """Waits for `seconds`, or until a signal asks for the end."""
        end = time.monotonic() + seconds
        while not (self._asked or self._interrupted) and (left := end - time.monotonic()) > 0:
            self._listen(left)

    # ---- Hosts.

    def _find_hosts(self, decision: Again) -> tuple[Again | Stop, tuple[Host, ...]]:
        """Waits until enough hosts answer."""
        end, said = time.monotonic() + _PATIENCE_SECONDS, False
        while True:
            answering = self._answering(decision.left_out)
            chosen = choose_hosts(self._job.hosts, answering, decision.left_out, self._policy.min_np)
            if chosen is not None or self._asked or self._interrupted:
                return decision, chosen or ()
            silent = ", ".join(host.name for host in self._job.hosts if host.name not in answering)
            few = f"the hosts without {silent} have fewer slots than --min-np {self._policy.min_np}"
            if time.monotonic() > end:
                return Stop(self._history[-1].status, f"{decision.why}. For {_PATIENCE_SECONDS:g} s {few}"), ()
            if not said:
                self._say(f"{decision.why}. The launcher waits, because {few}")
            said = True
            self._wait(_PROBE_PAUSE)

    def _answering(self, left_out: Collection[str]) -> set[str]:
        """The names of the hosts that start a process."""
        own = {host.name for host in self._job.hosts if host.name in self._job.own_names}
        others = [host for host in self._job.hosts if host.name not in own]
        alone = [[host] for host in others if host.name in self._suspects]
        together = [host for host in others if host.name not in self._suspects]
        doubted = self._suspects.union(left_out)
        trusted = sum(host.slots for host in self._job.hosts if host.name not in doubted)
        late = self._suspects if trusted >= self._policy.min_np else set()
        answer = self._probe([*alone, together], late)
        if together and not {host.name for host in together} <= answer:
            answer |= self._probe([[host] for host in together])
        self._suspects = {host.name for host in others} - answer
        return own | answer

    def _probe(self, groups: Sequence[Sequence[Host]], late: Collection[str] = ()) -> set[str]:
        """Starts a process on each host of each group. Returns the names of the hosts of those groups that succeed.

        A group succeeds if all its processes have started. `late`: hosts that get less time when all others have
        answered.
        """
        started = [(group, processes.start(self._job.probe(group), subprocess.DEVNULL)) for group in groups if group]
        begin = time.monotonic()

        def limit() -> float:
            silent = [group for group, process in started if process.poll() is None]
            is_late = all(host.name in late for group in silent for host in group)
            return (_LATE_SECONDS if is_late else _PROBE_SECONDS) if silent else 0.0

        while (left := begin + limit() - time.monotonic()) > 0 and not (self._asked or self._interrupted):
            self._listen(left)
        for _, process in started:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return {host.name for group, process in started if process.returncode == 0 for host in group}


def signals_to_leave(now: float, grace: float) -> list[tuple[float, int]]:
    """The signals that mpirun gets if the ranks are to leave. Each comes with the time when it is due."""
    repeats = range(_FIRST_REPEAT, math.ceil(grace), _REPEAT)
    end = now + grace
    return [
        *((now + after, signal.SIGUSR1) for after in (0, *repeats)),
        (end, signal.SIGTERM),
        (end + _END_SECONDS, signal.SIGKILL),
    ]
