# SPDX-License-Identifier: Apache-2.0
"""Which process runs where: each once, readers last, slots kept, and the same layout as init() makes of it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod_data.job.layout import make_layout
from horovod_data.job.settings import read_roles
from horovod_data.launcher import LaunchError, hydra, open_mpi
from horovod_data.launcher.arrangement import Arrangement, Request, arrange
from horovod_data.launcher.command import Extras
from horovod_data.launcher.hosts import Host

TWO = (Host("a", 2), Host("b", 2))


def ranks_of(arrangement: Arrangement) -> list[tuple[str, bool]]:
    """(host, dedicated reader) of every rank."""
    return [(group.host, group.reader) for group in arrangement.groups for _ in range(group.processes)]


def layout_of(arrangement: Arrangement):
    """What init() makes of the arrangement."""
    hosts = [host for host, _ in ranks_of(arrangement)]
    roles = read_roles(arrangement.environ)
    return make_layout(hosts, roles.readers, roles.readers_per_node, roles.embedded)


hosts_of_any_kind = st.lists(st.integers(1, 5), min_size=1, max_size=6).map(
    lambda slots: tuple(Host(f"host{index}", count) for index, count in enumerate(slots))
)


@st.composite
def requests(draw):
    hosts = draw(hosts_of_any_kind)
    np = draw(st.none() | st.integers(1, sum(host.slots for host in hosts)))
    kind = draw(st.sampled_from(["job", "node", "embedded", "elsewhere"]))
    if kind == "job":
        return hosts, Request(np, readers=draw(st.none() | st.integers(0, 9)))
    if kind == "elsewhere":
        names = draw(st.lists(st.sampled_from(["cpu0", "cpu1", "cpu2", "host0"]), min_size=1, max_size=3, unique=True))
        return hosts, Request(np, readers=draw(st.integers(len(names), 9)), reader_hosts=tuple(names))
    return hosts, Request(np, readers_per_node=1, embedded=kind == "embedded")


@given(requests())
def test_every_process_is_placed_once(asked):
    hosts, request = asked
    arrangement = arrange(request, hosts)
    ranks = ranks_of(arrangement)
    trainers = [host for host, reader in ranks if not reader]
    slots = {host.name: host.slots for host in hosts}
    assert len(trainers) == (sum(slots.values()) if request.np is None else request.np)
    assert all(trainers.count(name) <= slots[name] for name in set(trainers))
    assert trainers == sorted(trainers, key=list(slots).index)  # by slot: neighbours share a host
    readers = [host for host, reader in ranks if reader]
    if request.readers_per_node:
        assert readers == ([] if request.embedded else list(dict.fromkeys(trainers)))
        for host in set(readers):  # the last of its host
            assert [reader for name, reader in ranks if name == host][-1]
    else:
        assert len(readers) == (request.readers or 0)
        assert all(reader for _, reader in ranks[len(trainers) :])
        allowed = request.reader_hosts or tuple(dict.fromkeys(trainers))
        counts = [readers.count(name) for name in allowed]
        assert set(readers) <= set(allowed) and max(counts) - min(counts) <= 1
    assert all(group.processes > 0 for group in arrangement.groups)
    assert sum(host.slots for host in arrangement.hosts) == len(ranks)
    layout = layout_of(arrangement)
    for rank, (_, reader) in enumerate(ranks):
        assert (layout.trainer_index[rank] < 0) == reader and (not reader or layout.reader_index[rank] >= 0)


@given(requests())
def test_the_command_lines_place_as_planned(asked):
    hosts, request = asked
    arrangement = arrange(request, hosts)
    extras = Extras()
    words = open_mpi.command(["mpirun"], arrangement, ["PROGRAM"], extras, {}, False).words
    placed = []
    for context in re.split(r"(?:^| ): ", " ".join(words)):
        (here,) = re.findall(r"-host (\S+)", context)
        (number,) = re.findall(r"-np (\d+)", context)
        reader = "-x CUDA_VISIBLE_DEVICES=" in context
        listed = [(name, reader) for name, count in re.findall(r"([^,:]+):(\d+)", here) for _ in range(int(count))]
        assert len(listed) == int(number)
        placed += listed
    assert placed == ranks_of(arrangement)
    # A host in two contexts has its slots added up over them, which is right only if each context has one host.
    names = re.findall(r"-host (\S+)", " ".join(words))
    flat = [name for one in names for name in re.findall(r"([^,:]+):\d+", one)]
    assert len(set(flat)) == len(flat) or all("," not in one for one in names)

    words = hydra.command(["mpirun"], arrangement, ["PROGRAM"], extras, {}).words
    listed = words[words.index("-hosts") + 1]
    on = [name for name, count in re.findall(r"([^,:]+):(\d+)", listed) for _ in range(int(count))]
    assert on == [host for host, _ in ranks_of(arrangement)]
    roles = []
    for context in " ".join(word or "EMPTY" for word in words).split(" : "):
        (number,) = re.findall(r"-np (\d+)", context)
        roles += ["-env CUDA_VISIBLE_DEVICES EMPTY" in context] * int(number)
    assert roles == [reader for _, reader in ranks_of(arrangement)]


A, B = ("a", False), ("b", False)


@pytest.mark.parametrize("asked, ranks, environ, text", [
    (Request(3, readers=1, reader_hosts=("cpu",)), [A, A, B, ("cpu", True)], {"HOROVOD_DATA_READERS": "1"},
     "3 trainers on a:2, b:1; dedicated readers on cpu:1"),
    (Request(None, readers_per_node=1), [A, A, ("a", True), B, B, ("b", True)], {"HOROVOD_DATA_READERS_PER_NODE": "1"},
     "4 trainers on a:2, b:2; dedicated readers on a:1, b:1"),
    (Request(None, readers_per_node=1, embedded=True), [A, A, B, B],
     {"HOROVOD_DATA_READERS_PER_NODE": "1", "HOROVOD_DATA_EMBEDDED": "1"},
     "4 trainers on a:2, b:2; the first trainer of each host reads"),
    (Request(1), [A], {"HOROVOD_DATA_READERS": "0"}, "1 trainer on a:1; rank 0 reads"),
    # A host without a trainer has no reader.
    (Request(2, readers_per_node=1), [A, A, ("a", True)], {"HOROVOD_DATA_READERS_PER_NODE": "1"},
     "2 trainers on a:2; dedicated readers on a:1"),
])  # fmt: skip
def test_two_hosts(asked, ranks, environ, text):
    arrangement = arrange(asked, TWO)
    assert (ranks_of(arrangement), arrangement.environ, arrangement.describe()) == (ranks, environ, text)


def test_0_readers_per_node_are_none():
    for readers in None, 0, 2:
        assert arrange(Request(3, readers, readers_per_node=0), TWO) == arrange(Request(3, readers), TWO)


OWN = {"localhost", "127.0.0.1", "me", "me.example.org"}


def test_this_machine_is_one_host_under_each_of_its_names():
    """init() finds one host, so there must be one reader."""
    hosts = tuple(Host(name, 1) for name in ("localhost", "b", "127.0.0.1", "me.example.org", "me"))
    arrangement = arrange(Request(None, readers_per_node=1), hosts, OWN)
    assert ranks_of(arrangement) == [("localhost", False)] * 4 + [("localhost", True), B, ("b", True)]
    arrangement = arrange(Request(None, readers=2, reader_hosts=("127.0.0.1", "c")), hosts[1:2] + hosts[-1:], OWN)
    assert ranks_of(arrangement) == [B, ("me", False), ("me", True), ("c", True)]
    arrangement = arrange(Request(1, readers=1, reader_hosts=("me", "localhost")), TWO, OWN)
    assert ranks_of(arrangement)[-1] == ("me", True)
    assert arrange(Request(None, readers_per_node=1), TWO, OWN) == arrange(Request(None, readers_per_node=1), TWO)


def test_a_short_name_and_a_long_one_of_one_host():
    hosts = (Host("a.example.org", 1), Host("b", 1), Host("a", 1))
    same = "a and a.example.org: are these the same host? A host has one reader of its own. Name each host once, or every host "
    with pytest.raises(LaunchError, match=re.escape(f"{same}with its domain.")):
        arrange(Request(None, readers_per_node=1), hosts)
    assert len(arrange(Request(None), hosts).groups) == 3  # without readers per node it does not matter
    for apart in (("a.x.org", "a.y.org"), ("10.0.0.1", "10.0.0.2"), ("a", "ab.org"), ("a", "a1")):
        assert len(arrange(Request(None, readers_per_node=1), tuple(Host(name, 1) for name in apart)).groups) == 4


# Errors of roles are those of init(): test_variables_mean_what_they_mean_to_init.
@pytest.mark.parametrize("request_, text", [
    (Request(0), "-np 0: a job needs at least one trainer"),
    (Request(5), "-np 5 asks for 5 trainers, but there are 4 slots on a:2, b:2. Ask for fewer, or name more hosts"),
    (Request(1, readers=-1), "--readers must be 0 or more, not -1"),
    (Request(1, readers_per_node=2), "--readers-per-node=2: a host can have one reader of its own. Use --readers-per-node=1, "
     "or --readers=R for R readers that deal to the trainers of all hosts"),
    (Request(1, reader_hosts=("c",)), "--reader-hosts names 1 host for 0 dedicated readers. Give --readers R"),
    (Request(1, readers_per_node=1, reader_hosts=("c",)), "with --readers-per-node each host has its own. Leave one of them out"),
    (Request(1, readers=2, reader_hosts=("c", "d", "e")), "--reader-hosts names 3 hosts for 2 dedicated readers"),
])  # fmt: skip
def test_requests_that_make_no_sense(request_, text):
    with pytest.raises(LaunchError, match=re.escape(text)):
        arrange(request_, TWO)
