# SPDX-License-Identifier: Apache-2.0
"""Places ranks on hosts, and decides which ranks read. Pure.

Dedicated readers are additional to the trainers. They take no slot, because a slot usually has a GPU, and readers need
none. They are the last ranks of the job or of each host, as in job/layout.py.
"""

from __future__ import annotations

import dataclasses
from typing import Collection, Optional, Sequence

from ..errors import counted
from ..job.settings import read_roles
from . import LaunchError
from .hosts import Host, together

_OPTIONS = {"readers": "--readers", "readers_per_node": "--readers-per-node", "embedded": "--embedded"}


@dataclasses.dataclass(frozen=True)
class Request:
    """The user's request. `np` None means one trainer per slot."""

    np: Optional[int]
    readers: Optional[int] = None
    readers_per_node: Optional[int] = None
    embedded: bool = False
    reader_hosts: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Group:
    """Consecutive ranks on one host. All of them are dedicated readers, or none of them is."""

    host: str
    processes: int
    reader: bool = False


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """The processes of a job: groups in the order of their ranks, and the variables for init()."""

    groups: tuple[Group, ...]
    environ: dict[str, str]

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Every host, with the number of processes on it."""
        names = dict.fromkeys(group.host for group in self.groups)
        return tuple(Host(name, sum(group.processes for group in self.groups if group.host == name)) for name in names)

    def describe(self) -> str:
        """Describes the job: `8 trainers on a:4, b:4; dedicated readers on c:1`."""
        trainers = [group for group in self.groups if not group.reader]
        number = sum(group.processes for group in trainers)
        text = f"{number} trainer{'s' * (number > 1)} on {', '.join(f'{one.host}:{one.processes}' for one in trainers)}"
        readers = [f"{group.host}:{group.processes}" for group in self.groups if group.reader]
        if readers:
            return f"{text}; dedicated readers on {', '.join(readers)}"
        embedded = "HOROVOD_DATA_EMBEDDED" in self.environ
        return f"{text}; {'the first trainer of each host' if embedded else 'rank 0'} reads"


def arrange(request: Request, hosts: Sequence[Host], own: Collection[str] = ()) -> Arrangement:
    """Places every process.

    Trainers fill the hosts in their order, by slots. Readers of the job are spread evenly over `reader_hosts`, or over
    the hosts with trainers if `reader_hosts` is empty. `own` has the names of this machine. This machine counts as one
    host, under the first of these names that was given.
    """
    request, hosts = _with_one_name(request, hosts, own)
    _check(request)
    slots = sum(host.slots for host in hosts)
    np = slots if request.np is None else request.np
    if np > slots:
        there = f"{'is' if slots == 1 else 'are'} {slots} slot{'s' * (slots > 1)} on {', '.join(map(str, hosts))}"
        to_do = "Ask for fewer, or name more hosts or slots, as in -H host1:4,host2:4; dedicated readers need no slot"
        raise LaunchError(f"-np {np} asks for {np} trainers, but there {there}", to_do)
    trainers: list[Group] = []
    for host in hosts:
        here = min(host.slots, np - sum(group.processes for group in trainers))
        if here:
            trainers.append(Group(host.name, here))
    if request.readers_per_node:
        _check_names([group.host for group in trainers])
        environ = {"HOROVOD_DATA_READERS_PER_NODE": str(request.readers_per_node)}
        if request.embedded:
            return Arrangement(tuple(trainers), {**environ, "HOROVOD_DATA_EMBEDDED": "1"})
        each_host = ((one, Group(one.host, 1, reader=True)) for one in trainers)
        return Arrangement(tuple(group for pair in each_host for group in pair), environ)
    readers = request.readers or 0
    places = request.reader_hosts or tuple(group.host for group in trainers)
    each, more = divmod(readers, len(places))
    reading = [Group(name, each + (index < more), reader=True) for index, name in enumerate(places)]
    groups = trainers + [group for group in reading if group.processes]
    return Arrangement(tuple(groups), {"HOROVOD_DATA_READERS": str(readers)})


def _with_one_name(request: Request, hosts: Sequence[Host], own: Collection[str]) -> tuple[Request, tuple[Host, ...]]:
    """Gives this machine one name. Otherwise MPI would add up the slots of all its names, but init() finds one host."""
    given = [*(host.name for host in hosts), *request.reader_hosts]
    first = next((name for name in given if name in own), "")
    reading = dict.fromkeys(first if name in own else name for name in request.reader_hosts)
    return dataclasses.replace(request, reader_hosts=tuple(reading)), together(
        (first if host.name in own else host.name, host.slots) for host in hosts
    )


def _check_names(names: Sequence[str]) -> None:
    """Refuses two names of one host. init() would find two readers on one host, and one of them would train without a
    GPU."""
    short = {name for name in names if "." not in name}
    for name in names:
        begin = name.partition(".")[0]
        if begin != name and begin in short:
            to_do = "Name each host once, or every host with its domain"
            raise LaunchError(f"{begin} and {name}: are these the same host? A host has one reader of its own", to_do)


def _check(request: Request) -> None:
    if request.np is not None and request.np < 1:
        to_do = "Give the number of processes that train; --readers come on top of it"
        raise LaunchError(f"-np {request.np}: a job needs at least one trainer", to_do)
    try:
        readers = 0 if request.readers is None and not request.readers_per_node else request.readers
        read_roles({}, readers, request.readers_per_node, request.embedded, _OPTIONS)
    except ValueError as error:
        raise LaunchError(str(error)) from None
    if request.reader_hosts and request.readers_per_node:
        what = "--reader-hosts says where dedicated readers run, but with --readers-per-node each host has its own"
        raise LaunchError(what, "Leave one of them out")
    named, readers = len(request.reader_hosts), request.readers or 0
    if named > readers:
        what = f"--reader-hosts names {counted(named, 'host')} for {counted(readers, 'dedicated reader')}"
        raise LaunchError(what, "Give --readers R, with at least one reader for each of these hosts")
