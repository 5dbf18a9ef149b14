# SPDX-License-Identifier: Apache-2.0
"""Turns an arrangement into a command line of Open MPI's mpirun. Pure."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Mapping, Optional, Sequence

from . import LaunchError
from .arrangement import Arrangement, Group
from .command import HIDDEN_DEVICES, Command, Extras
from .restarts import Lost

# The same parameters as in horovodrun: the transfer over TCP and shared memory, which works everywhere.
_POINT_TO_POINT = {"pml": "ob1", "btl": "^openib"}
# Without these, Open MPI's daemons notice a lost host after 8 minutes. With these, after 6 to 8 seconds. Then mpirun
# ends the job.
_KEEPALIVE = {"oob_tcp_keepalive_time": "1", "oob_tcp_keepalive_intvl": "1", "oob_tcp_keepalive_probes": "5"}
# The launcher has counted the slots, and readers need no slot. So mpirun may start more processes than there are slots.
# This parameter allows it if the user gives a mapping. Otherwise slot:OVERSUBSCRIBE allows it.
_OVERSUBSCRIBE = {"rmaps_base_oversubscribe": "1"}
# A rank that waits gives its core to the rank for which it waits.
_YIELD = {"mpi_yield_when_idle": "1"}
# What mpirun writes when a process was killed, and when a host's daemon is gone.
# Open MPI 5 breaks lines.
_KILLED = re.compile(r"noticed that process rank (\d+) with PID \d+ on node (\S+) exited\s+on\s+signal\s+(\d+)")
_GONE = re.compile(r"Remote daemon: .* on node (\S+)|daemon .* on node (\S+) .*(?:died|lost)")
# With this many hosts, mpirun's tree of daemons fails on some systems. horovodrun has the same limit.
_MANY_HOSTS = 64


def command(
    mpirun: Sequence[str],
    arrangement: Arrangement,
    program: Sequence[str],
    extras: Extras,
    environ: Mapping[str, str],
    oversubscribed: bool,
    version: str = "",
) -> Command:
    """The command line.

    MCA parameters of `extras` and of the environment replace our own. A parameter of an option replaces the parameter
    of the environment. Options for ssh are the exception: they are appended to those in the environment.
    """
    words = list(mpirun)
    if extras.root:
        words.append("--allow-run-as-root")
    words += _placement(extras)
    words += extras.mpi_args
    given = [*extras.binding_args, *extras.mpi_args]
    major = int((re.findall(r"\d+", version) or ["0"])[0])
    ours = {**_POINT_TO_POINT, **(_KEEPALIVE if major < 5 else {}), **(_YIELD if oversubscribed else {})}
    # From version 5 on the daemons are those of PRRTE, which has an option and variables of its own.
    of_daemons = {f"PRTE_MCA_{name}": value for name, value in _KEEPALIVE.items() if major >= 5 and name not in given}
    readers = any(group.reader for group in arrangement.groups)
    if readers and _is_mapped(extras) and "nooversubscribe" not in " ".join(given).lower():
        ours.update(_OVERSUBSCRIBE)
    hosts = arrangement.hosts
    if len(hosts) >= _MANY_HOSTS:
        ours.update(plm_rsh_no_tree_spawn="true", plm_rsh_num_concurrent=str(len(hosts)))
    for name, value in ours.items():
        if name not in given and f"OMPI_MCA_{name}" not in environ:
            words += ["--mca", name, value]
    for name, (option, value) in _asked_for(extras, environ).items():
        if name in extras.mpi_args:
            raise LaunchError(f"{option} and {name} in --mpi-args contradict each other", "Give one of them")
        words += ["--mca", name, value]
    words += ["--tag-output"] * extras.tag_output + ["--timestamp-output"] * extras.timestamps
    if extras.output_filename:
        words += ["--output-filename", extras.output_filename]
    for index, groups in enumerate(_contexts(arrangement)):
        words += [":"] * (index > 0)
        words += ["-np", str(sum(group.processes for group in groups))]
        words += ["-host", ",".join(f"{group.host}:{group.processes}" for group in groups)]
        # Each context needs its own words, because the exports of a context do not reach the next context.
        for name in extras.exported:
            words += ["-x", name]
        for name, value in {**arrangement.environ, **extras.environ}.items():
            words += ["-x", f"{name}={value}"]
        if groups[0].reader:
            words += ["-x", f"{HIDDEN_DEVICES}="]
        words += program
    return Command(words, {name: value for name, value in of_daemons.items() if name not in environ})


def lost(text: str) -> Optional[Lost]:
    """What was lost, from the text that mpirun has written to stderr. None: it names nothing."""
    if killed := _KILLED.search(text):
        return Lost(f"rank {killed[1]} on {killed[2]} was killed by signal {killed[3]}", killed[2])
    if gone := _GONE.search(text):
        name = gone[1] or gone[2]
        return Lost(f"the host {name} was lost", name, whole_host=True)
    return None


def _asked_for(extras: Extras, environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """The MCA parameters of options. For each parameter: the option and the value."""
    asked = {}
    if extras.ssh_words:
        value = " ".join([environ.get("OMPI_MCA_plm_rsh_args", ""), *extras.ssh_words]).strip()
        asked["plm_rsh_args"] = ("-p" if extras.ssh_port else "-i", value)
    if extras.interfaces:
        for name in ("btl_tcp_if_include", "oob_tcp_if_include"):
            asked[name] = ("--network-interface", ",".join(extras.interfaces))
    return asked


def _placement(extras: Extras) -> list[str]:
    if extras.binding_args:
        return list(extras.binding_args)
    given = " ".join(extras.mpi_args)
    # without binding, because a pipeline has many threads
    words = [] if re.search(r"(^|\s)--?bind-to\b", given) else ["--bind-to", "none"]
    return words if _is_mapped(extras) else [*words, "--map-by", "slot:OVERSUBSCRIBE"]


def _is_mapped(extras: Extras) -> bool:
    """Says whether the user maps ranks to hosts. --binding-args counts as a mapping, as in horovodrun."""
    given = re.search(r"(^|\s)--?(map-by|rankfile|rf)\b", " ".join(extras.mpi_args))
    return bool(extras.binding_args) or given is not None


def _contexts(arrangement: Arrangement) -> list[list[Group]]:
    """The contexts of mpirun: the parts of its command line between colons. Each has neighbouring groups in one role.

    If a host is in several groups, each group is a context. Otherwise the first context would take all slots, because
    Open MPI adds up the slots of a host over all contexts.
    """
    if len(arrangement.hosts) < len(arrangement.groups):
        return [[group] for group in arrangement.groups]
    return [list(same) for _, same in groupby(arrangement.groups, key=lambda group: group.reader)]
