# SPDX-License-Identifier: Apache-2.0
"""The common parts of the command lines of both MPIs. Pure."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import shlex
from typing import Mapping, Sequence

from . import LaunchError

# Empty on dedicated readers. Otherwise TensorFlow would take memory of every GPU there.
HIDDEN_DEVICES = "CUDA_VISIBLE_DEVICES"

_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
# Python's options before a program: flags, then at most one option with a value. The value may be the next word.
_OPTIONS = re.compile(r"-(?!$)([bBdEIOPqRsSuvx]*)(?:([cmWX])(.*))?", re.DOTALL)
_RUNNER = ["-m", "horovod_data.launcher.rank"]
# Variables that belong to this host, this shell or the launch of this process, and must not go to the job.
_OWN = re.compile(
    r"OLDPWD|PWD|SHLVL|_|HOSTNAME|HOST|DISPLAY|SSH_.*|TERM.*|TMUX.*|STY|XDG_.*|DBUS_.*|.*CUDA_VISIBLE_DEVICES|"
    r"HOROVOD_DATA_READERS(_PER_NODE)?|HOROVOD_DATA_EMBEDDED|OMPI_.*|PMIX?_.*|PRTE_.*|HYD.*|SLURM_.*"
)


@dataclasses.dataclass(frozen=True)
class Extras:
    """The words and variables for mpirun besides the arrangement."""

    environ: Mapping[str, str] = dataclasses.field(default_factory=dict)  # for every rank
    exported: Sequence[str] = ()  # variables of the launcher's own environment, for ranks on other hosts
    mpi_args: Sequence[str] = ()
    binding_args: Sequence[str] = ()
    interfaces: Sequence[str] = ()
    ssh_port: int = 0
    ssh_identity_file: str = ""
    output_filename: str = ""
    tag_output: bool = False
    timestamps: bool = False
    root: bool = False  # the user is root, which Open MPI allows only with an option

    @property
    def ssh_words(self) -> list[str]:
        port = ["-p", str(self.ssh_port)] if self.ssh_port else []
        return port + (["-i", self.ssh_identity_file] if self.ssh_identity_file else [])


@dataclasses.dataclass(frozen=True)
class Command:
    """A command line, the variables that it adds to the environment, and the variables that it removes."""

    words: list[str]
    environ: dict[str, str] = dataclasses.field(default_factory=dict)
    without: Sequence[str] = ()

    def __str__(self) -> str:
        """The command as text for a shell."""
        parts = [f"-u {name}" for name in self.without]
        parts += [f"{name}={shlex.quote(value)}" for name, value in self.environ.items()]
        return " ".join(["env"] * bool(self.without) + parts + [shlex.join(self.words)])


def not_started(command: Command, error: OSError) -> LaunchError:
    """The error of a command that can't be started."""
    what = f"{command.words[0]} can't be started ({error.strerror})"
    if error.errno == errno.E2BIG:
        return LaunchError(what, "Unset variables that ranks don't need, or let srun start the ranks")
    return LaunchError(what, "Name another mpirun with --mpirun")


def exportable(environ: Mapping[str, str]) -> list[str]:
    """The variables for ranks on other hosts: all variables without those of this host, shell and launch."""
    return sorted(name for name in environ if _OWN.fullmatch(name) is None and re.fullmatch(r"\w+", name))


def on_rank(program: Sequence[str]) -> list[str]:
    """The command of a rank. If the program is a Python program, launcher/rank.py runs it.

    `python -u train.py --epochs 3` becomes `python -u -m horovod_data.launcher.rank train.py --epochs 3`. Every other
    command is unchanged, for example a shell script that starts Python, or Python with -V, -i or a program from stdin.
    """
    words = list(program)
    if not words or _PYTHON.fullmatch(os.path.basename(words[0])) is None:
        return words
    at = 1
    while at < len(words) and words[at].startswith("-"):
        match = _OPTIONS.fullmatch(words[at])
        if match is None:
            return words
        flags, taking, value = match.groups()
        rest = [value] * bool(value) + words[at + 1 :]
        if taking in ("c", "m"):
            python = words[:at] + [f"-{flags}"] * bool(flags)
            return [*python, *_RUNNER, f"-{taking}", *rest] if rest else words
        at += 2 if taking and not value else 1
    return [*words[:at], *_RUNNER, *words[at:]] if at < len(words) else words
