# SPDX-License-Identifier: Apache-2.0
"""A Slurm of one node, which runs on this machine during the tests.

It has its own munge, controller and node daemon. Their configuration, keys, state and logs are in one folder. It needs
root, because the node daemon starts jobs in their users' names.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from ranks import launch

ROOT = Path(__file__).resolve().parents[2]
CPUS = 8  # the number that Slurm assumes, so that jobs of several tasks fit on a small machine

# A job that was requeued starts after cred_expire seconds.
CONFIG = """
ClusterName=test
SlurmctldHost={host}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=15
CryptoType=crypto/munge
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=pmix
ReturnToService=2
KillWait=3
SlurmdParameters=config_overrides
NodeName={host} CPUs={cpus} State=UNKNOWN
PartitionName=test Nodes={host} Default=YES OverSubscribe=FORCE:8 State=UP
"""


class NoSlurm(Exception):
    """The reason why Slurm can't run here."""


def install() -> None:
    """Installs Slurm if it isn't there.

    Raises:
      NoSlurm: this process is not root, or Slurm can't be installed.
    """
    if os.geteuid() != 0:
        raise NoSlurm("needs root, for Slurm's daemons")
    done = subprocess.run([ROOT / "scripts" / "setup.sh", "slurm"], capture_output=True, text=True, timeout=300)
    if done.returncode or not all(shutil.which(name) for name in ("munged", "slurmctld", "slurmd", "sbatch")):
        raise NoSlurm(f"Slurm can't be installed here: {(done.stderr or done.stdout).strip()[-300:]}")


class Slurm:
    """The running daemons."""

    def __init__(self) -> None:
        # munged has a user of its own, and other users may not enter pytest's folder.
        self.folder = folder = Path(tempfile.mkdtemp(prefix="hvdata-slurm-"))
        self._daemons: list[subprocess.Popen[bytes]] = []
        folder.chmod(0o755)
        for name in "munge", "state", "spool":
            (folder / name).mkdir()
        host = socket.gethostname().partition(".")[0]
        (folder / "slurm.conf").write_text(
            CONFIG.format(folder=folder, host=host, cpus=CPUS, controller_port=free_port(), node_port=free_port())
        )
        self.environ = {"SLURM_CONF": str(folder / "slurm.conf")}
        try:
            self._start_munge()
            self._start("slurmctld", "-D", "-c", "-f", str(folder / "slurm.conf"))
            self._start("slurmd", "-D", "-N", host, "-f", str(folder / "slurm.conf"))
            self._await("the node", lambda: "idle" in self.say("sinfo", "-h", "-o", "%t"))
        except BaseException:
            self.stop()
            raise

    def begin(self, script: Path, *arguments: str, env: Mapping[str, str | None] = {}, cwd: Path) -> "Running":
        """Submits a batch script."""
        output = cwd / f"{script.stem}.out"
        variables = {**launch.environment(cwd, 0, env), **self.environ}
        command = ["sbatch", "--parsable", f"--output={output}", str(script), *arguments]
        sbatch = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=variables, timeout=30)
        assert sbatch.returncode == 0, sbatch.stderr
        return Running(self, sbatch.stdout.strip(), output)

    def field(self, job: str, name: str) -> str:
        said = self.say("scontrol", "-o", "show", "job", job)
        found = re.search(rf"\b{name}=(\S+)", said)
        assert found, said
        return found[1]

    def say(self, *words: str) -> str:
        done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **self.environ}, timeout=30)
        return done.stdout + done.stderr

    def logs(self) -> str:
        return "\n".join(
            f"===== {path.name} =====\n{path.read_text(errors='replace')[-3000:]}"
            for path in sorted(self.folder.glob("*.log"))
        )

    def stop(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(15)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o400)
        for path in folder, folder / "key":
            shutil.chown(path, "munge", "munge")
        files = [f"--{option}={folder}/{name}" for option, name in
                 (("socket", "socket"), ("key-file", "key"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed"))]  # fmt: skip
        self._start("munged", "--foreground", "--force", *files, user="munge", group="munge")
        self._await("munged", (folder / "socket").exists)

    def _start(self, *words: str, **identity: str) -> None:
        env = {**os.environ, **self.environ}
        with open(self.folder / f"{words[0]}.log", "ab") as log:
            daemon = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, **identity)  # type: ignore[arg-type]
        self._daemons.append(daemon)

    def _await(self, what: str, come) -> None:
        deadline = time.monotonic() + 30
        while not come():
            if time.monotonic() > deadline or any(daemon.poll() is not None for daemon in self._daemons):
                raise NoSlurm(f"{what} did not come up\n{self.logs()}")
            time.sleep(0.1)


class Running:
    """A job that was submitted."""

    def __init__(self, slurm: Slurm, number: str, output: Path):
        self._slurm, self.number, self._output = slurm, number, output
        self.returncode: int | None = None

    @property
    def output(self) -> str:
        return self._output.read_text() if self._output.exists() else ""

    @property
    def state(self) -> str:
        return self._slurm.field(self.number, "JobState")

    def wait_for(self, come, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not come():  # sbatch --wait would look less and less often
            if time.monotonic() > deadline:
                what = f"the job was {self.state} after {timeout:g} s"
                raise AssertionError(f"{what}\n{self.output}\n{self._slurm.logs()}")
            time.sleep(0.2)

    def finish(self, timeout: float) -> "Running":
        try:
            self.wait_for(lambda: self.state not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"), timeout)
        finally:
            self._slurm.say("scancel", "--full", "--signal=KILL", self.number)
        self.returncode = int(self._slurm.field(self.number, "ExitCode").partition(":")[0])
        return self

    def lines(self, start: str) -> list[str]:
        """The sorted lines that begin with `start`, without it."""
        return sorted(line[len(start) :].strip() for line in self.output.splitlines() if line.startswith(start))

    def __str__(self) -> str:
        return f"status {self.returncode}\n{self.output}"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])
