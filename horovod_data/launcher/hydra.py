# SPDX-License-Identifier: Apache-2.0
"""Turns an arrangement into a command line of Hydra, the launcher of MPICH and of MPIs derived from it. Pure."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Iterable, Mapping, Optional, Sequence

from ..errors import explain
from . import LaunchError
from .arrangement import Arrangement, Group
from .command import HIDDEN_DEVICES, Command, Extras
from .restarts import Lost

# A part of what Hydra writes when a process was killed. Some versions write the first line after other ends, too.
_KILLED = re.compile(r"PID (\d+) RUNNING AT (\S+)(?:[^\n]*\n){1,7}?[^\n]*EXIT STRING: .*\(signal (\d+)\)")


def command(
    mpirun: Sequence[str], arrangement: Arrangement, program: Sequence[str], extras: Extras, environ: Mapping[str, str]
) -> Command:
    """The command line. Hydra passes the whole environment to the ranks, and binds no process to a core.

    Options for ssh are added to the options in the environment.
    """
    only_open_mpi = f"needs Open MPI, but {mpirun[0]} is MPICH's"
    for option, given in (
        ("--prefix-output-with-timestamp", extras.timestamps),
        ("--binding-args", extras.binding_args),
        (f"--network-interface {','.join(extras.interfaces)}", len(extras.interfaces) > 1),
    ):
        if given:
            raise LaunchError(f"{option} {only_open_mpi}", "Leave it out, or pass Hydra's own options with --mpi-args")
    words = [*mpirun, *extras.mpi_args]
    if extras.interfaces:
        words += ["-iface", extras.interfaces[0]]
    words += ["-prepend-rank"] * extras.tag_output
    if extras.output_filename:
        for stream in "out", "err":
            words += [f"-{stream}file-pattern", f"{extras.output_filename}/rank.%r.std{stream}"]
    # Hydra fills the hosts in this order, so this order decides the placement.
    hosts = [(name, _processes(same)) for name, same in groupby(arrangement.groups, key=lambda group: group.host)]
    words += ["-hosts", ",".join(f"{name}:{processes}" for name, processes in hosts)]
    for name, value in {**arrangement.environ, **extras.environ}.items():
        words += ["-genv", name, value]
    for index, (reader, same) in enumerate(groupby(arrangement.groups, key=lambda group: group.reader)):
        words += [":"] * (index > 0)
        words += ["-env", HIDDEN_DEVICES, ""] * reader
        words += ["-np", str(_processes(same)), *program]
    if not extras.ssh_words:
        return Command(words)
    name = "HYDRA_LAUNCHER_EXTRA_ARGS"
    return Command(words, {name: " ".join([environ.get(name, ""), *extras.ssh_words]).strip()})


def _processes(groups: Iterable[Group]) -> int:
    return sum(group.processes for group in groups)


def warning(arrangement: Arrangement) -> str:
    """A warning about this job under Hydra. Empty if there is none."""
    if len(arrangement.hosts) == 1:
        return ""
    what = "MPICH's Hydra does not watch over its hosts: if a host is lost, the job ends only when TCP or"
    return explain(f"{what} HOROVOD_DATA_TIMEOUT gives up", "Under Open MPI it ends within seconds")


def lost(text: str) -> Optional[Lost]:
    """What was lost, from the text that Hydra has written to stdout. None: it names nothing."""
    killed = _KILLED.search(text)
    return killed and Lost(f"process {killed[1]} on {killed[2]} was killed by signal {killed[3]}", killed[2])
