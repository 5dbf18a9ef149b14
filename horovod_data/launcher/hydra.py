# SPDX-License-Identifier: Apache-2.0
"""Turns an arrangement into a command line of Hydra, the launcher of MPICH and of MPIs derived from it. Pure."""

from __future__ import annotations

from typing import Mapping, Sequence

from ..errors import explain, explained
from . import LaunchError
from .arrangement import Arrangement
from .command import HIDDEN_DEVICES, Command, Extras


def command(
    mpirun: Sequence[str], arrangement: Arrangement, program: Sequence[str], extras: Extras, environ: Mapping[str, str]
) -> Command:
    """The command line. Hydra passes the whole environment to the ranks, and binds no process to a core.

    Options for ssh are added to the options in the environment.

    Raises:
      LaunchError: an option works only with Open MPI.
    """
    for option, given in (
        ("--prefix-output-with-timestamp", extras.timestamps),
        ("--binding-args", bool(extras.binding_args)),
    ):
        if given:
            raise explained(
                LaunchError,
                f"{option} needs Open MPI, but {mpirun[0]} is MPICH's",
                "Leave it out, or pass Hydra's own options with --mpi-args",
            )
    if len(extras.interfaces) > 1:
        raise explained(
            LaunchError,
            f"Several network interfaces ({','.join(extras.interfaces)}) need Open MPI, but {mpirun[0]} is MPICH's",
            "Name one",
        )
    words = [*mpirun, *extras.mpi_args]
    if extras.interfaces:
        words += ["-iface", extras.interfaces[0]]
    words += ["-prepend-rank"] * extras.tag_output
    if extras.output_filename:
        words += [
            "-outfile-pattern",
            f"{extras.output_filename}/rank.%r.stdout",
            "-errfile-pattern",
            f"{extras.output_filename}/rank.%r.stderr",
        ]
    # Hydra fills the hosts in this order, so this order decides the placement.
    hosts: list[list[str]] = []
    for group in arrangement.groups:
        if hosts and hosts[-1][0] == group.host:
            hosts[-1][1] = str(int(hosts[-1][1]) + group.processes)
        else:
            hosts.append([group.host, str(group.processes)])
    words += ["-hosts", ",".join(map(":".join, hosts))]
    for name, value in {**arrangement.environ, **extras.environ}.items():
        words += ["-genv", name, value]
    roles: list[list[int]] = []
    for group in arrangement.groups:
        if roles and roles[-1][0] == group.reader:
            roles[-1][1] += group.processes
        else:
            roles.append([group.reader, group.processes])
    for index, (reader, processes) in enumerate(roles):
        words += [":"] * (index > 0)
        words += ["-env", HIDDEN_DEVICES, ""] * reader
        words += ["-np", str(processes), *program]
    if not extras.ssh_words:
        return Command(words)
    name = "HYDRA_LAUNCHER_EXTRA_ARGS"
    return Command(words, {name: " ".join([environ.get(name, ""), *extras.ssh_words]).strip()})


def warning(arrangement: Arrangement) -> str:
    """A warning about this job under Hydra. Empty if there is none."""
    if len(arrangement.hosts) == 1:
        return ""
    return explain(
        "MPICH's Hydra does not watch over its hosts: where one is lost, the job ends only when TCP or "
        "HOROVOD_DATA_TIMEOUT gives up",
        "Under Open MPI it ends within seconds",
    )
