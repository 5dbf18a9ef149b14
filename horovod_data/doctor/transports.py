# SPDX-License-Identifier: Apache-2.0
"""The transport of MPI from a reader to each of its ranks, as far as MPI logs it.

For each pair of ranks, Open MPI's ob1 logs on stderr which transport ("btl") it has chosen. UCX logs which transports
it uses, without the ranks. Other MPIs log nothing.
"""

from __future__ import annotations

import re
from typing import Any, Mapping, Optional, Sequence

from .findings import Finding, ok, warning

# The enumeration of btl_vader_single_copy_mechanism in Open MPI 4.
_SINGLE_COPY = {0: "XPMEM", 1: "CMA", 2: "KNEM", 3: "none", 4: "emulated"}
_COPIES_TWICE = ("none", "emulated")
_SHARED_MEMORY = {"vader", "sm", "smcuda", "self"}

_BTL = re.compile(r"\[[^\]\s]*:(\d+)\] mca: bml: Using (\S+) btl for send to \[\[\d+,\d+\],(\d+)\]")
_PML = re.compile(r"\[[^\]\s]*:(\d+)\] select: component (\S+) selected")
_UCX = re.compile(r"\[[^\]\s]*:(\d+)\s*:\d+\].* ep_cfg\[\d+\]:?(.*)")


def check(stderr: str, ranks: Sequence[dict[str, Any]], mpi: Optional[str]) -> list[Finding]:
    """The findings about the readers of measured lanes, and about the single-copy mechanism that MPI uses.

    Args:
      stderr: of the job. If the doctor is a rank of the job, each reader has sent its own stderr.
      ranks: the record of each rank of the job. `rank` in it is the rank in MPI_COMM_WORLD.
    """
    measured = {lane["reader"] for lane in ranks[0]["lanes"]}
    readers = [rank for rank in ranks if rank["rank"] in measured] or [rank for rank in ranks if rank["reads"]][:1]
    found: list[Finding] = []
    mechanisms: dict[Optional[int], None] = {}
    for reader in readers:
        said = reader["said"] or stderr
        found.append(between(said, reader, ranks, mpi))
        if any("vader" in btls for btls in btls_of(said, reader["pid"]).values()):
            mechanisms[reader["variables"].get("btl_vader_single_copy_mechanism")] = None
    return found + [single_copy(_SINGLE_COPY.get(one, f"number {one}")) for one in mechanisms if one is not None]


def telling(stderr: str) -> str:
    """The lines of stderr that check() needs."""
    return "\n".join(line for line in stderr.splitlines() if any(one.match(line) for one in (_BTL, _PML, _UCX)))


def between(stderr: str, reader: Mapping[str, Any], ranks: Sequence[dict[str, Any]], mpi: Optional[str]) -> Finding:
    """The finding about the transport from a reader to each other rank that it serves."""
    name = f"transports.from rank {reader['rank']}"
    served = {rank["rank"] for rank in ranks if rank["trains"] and rank["group"] == reader["group"]} - {reader["rank"]}
    chosen, pml, ucx = btls_of(stderr, reader["pid"]), pml_of(stderr, reader["pid"]), ucx_of(stderr, reader["pid"])
    hosts = ", ".join(
        f"rank{'s' * (len(group) > 1)} {numbers(group)} on {host}" for host, group in _by_host(ranks).items()
    )
    if ucx:
        return ok(name, f"UCX uses {', '.join(ucx)}; it doesn't say to which rank it takes which ({hosts})")
    if not chosen:
        how = f"{mpi or 'this MPI'}{f' with its {pml}' if pml else ''} doesn't say which transport it takes"
        return ok(name, f"{how} ({hosts})")
    ways: dict[str, list[int]] = {}
    for rank, btls in sorted(chosen.items()):
        if rank in served:
            ways.setdefault(f"{'+'.join(sorted(btls))} to %s on {ranks[rank]['host']}", []).append(rank)
    value = ", ".join(way % numbers(group) for way, group in ways.items()) or "to no other rank"
    value = f"Open MPI's {pml or 'ob1'}: {value}"
    slow = [
        rank
        for rank, btls in chosen.items()
        if rank in served and ranks[rank]["host"] == reader["host"] and not btls & _SHARED_MEMORY
    ]
    if slow:
        return warning(
            name,
            value,
            f"Messages to {numbers(slow)} on the same host don't use MPI's shared memory: add "
            "vader (Open MPI 5: sm) to the list in OMPI_MCA_btl or --mca btl, or leave that out",
        )
    return ok(name, value)


def single_copy(mechanism: str) -> Finding:
    """The finding about the mechanism with which MPI copies large messages in shared memory."""
    name = "transports.single copy"
    if mechanism in _COPIES_TWICE:
        return warning(
            name,
            mechanism,
            "MPI copies large messages of this host twice: allow CMA (a container needs "
            "`--cap-add=SYS_PTRACE`), and leave btl_vader_single_copy_mechanism unset; "
            "horovod_data's own shared memory is not affected",
        )
    return ok(name, mechanism)


def btls_of(stderr: str, pid: int) -> dict[int, set[str]]:
    """The transports that process `pid` uses to each rank of MPI_COMM_WORLD."""
    found: dict[int, set[str]] = {}
    for who, btl, rank in _BTL.findall(stderr):
        if int(who) == pid:
            found.setdefault(int(rank), set()).add(btl)
    return found


def pml_of(stderr: str, pid: int) -> Optional[str]:
    """The layer of Open MPI with which process `pid` sends messages."""
    return next((pml for who, pml in _PML.findall(stderr) if int(who) == pid), None)


def ucx_of(stderr: str, pid: int) -> list[str]:
    """The transports that UCX has set up in process `pid`, to any rank."""
    found: dict[str, None] = {}
    for who, text in _UCX.findall(stderr):
        if int(who) == pid:
            for group in re.findall(r"\b(?:tag|am|rma|rma_bw|am_bw|keepalive)\(([^)]*)\)", text):
                found.update(dict.fromkeys(word.split("/")[0] for word in group.split()))
    return list(found)


def _by_host(ranks: Sequence[dict[str, Any]]) -> dict[str, list[int]]:
    hosts: dict[str, list[int]] = {}
    for rank in ranks:
        hosts.setdefault(rank["host"], []).append(rank["rank"])
    return hosts


def numbers(ranks: Sequence[int]) -> str:
    """Ranks as text. If there are many, the first eight."""
    return ", ".join(map(str, sorted(ranks)[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
