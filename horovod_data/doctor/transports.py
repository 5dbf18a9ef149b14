# SPDX-License-Identifier: Apache-2.0
"""The transport of MPI from a reader to each of its ranks, as far as MPI logs it.

For each pair of ranks, Open MPI's ob1 logs on stderr which transport ("btl") it has chosen. UCX logs which transports
it uses, without the ranks. Other MPIs log nothing.
"""

from __future__ import annotations

import re
from typing import Any, Mapping, Optional, Sequence

from .findings import Finding, ok, warning

_SHARED_MEMORY = {"vader", "sm", "smcuda", "self"}

_BTL = re.compile(r"\[[^\]\s]*:(\d+)\] mca: bml: Using (\S+) btl for send to \[\[\d+,\d+\],(\d+)\]")
_PML = re.compile(r"\[[^\]\s]*:(\d+)\] select: component (\S+) selected")
_UCX = re.compile(r"\[[^\]\s]*:(\d+)\s*:\d+\].* ep_cfg\[\d+\]:?(.*)")


def check(stderr: str, ranks: Sequence[dict[str, Any]], mpi: Optional[str]) -> list[Finding]:
    """The findings about the readers of measured lanes.

    Args:
      stderr: of the job. If the doctor is a rank of the job, each reader has sent its own stderr.
      ranks: the record of each rank of the job. `rank` in it is the rank in MPI_COMM_WORLD.
    """
    measured = {lane["reader"] for lane in ranks[0]["lanes"]}
    readers = [rank for rank in ranks if rank["rank"] in measured] or [rank for rank in ranks if rank["reads"]][:1]
    return [between(reader["said"] or stderr, reader, ranks, mpi) for reader in readers]


def telling(stderr: str) -> str:
    """The lines of stderr that check() needs."""
    return "\n".join(line for line in stderr.splitlines() if any(one.match(line) for one in (_BTL, _PML, _UCX)))


def between(stderr: str, reader: Mapping[str, Any], ranks: Sequence[dict[str, Any]], mpi: Optional[str]) -> Finding:
    """The finding about the transport from a reader to each other rank that it serves."""
    name, pid = f"transports.from rank {reader['rank']}", reader["pid"]
    served = {rank["rank"] for rank in ranks if rank["trains"] and rank["group"] == reader["group"]} - {reader["rank"]}
    pml = next((pml for who, pml in _PML.findall(stderr) if int(who) == pid), None)
    chosen = btls_of(stderr, pid)
    if not chosen:
        on_hosts: dict[str, list[int]] = {}
        for rank in ranks:
            on_hosts.setdefault(rank["host"], []).append(rank["rank"])
        hosts = ", ".join(f"rank{'s' * (len(on) > 1)} {numbers(on)} on {host}" for host, on in on_hosts.items())
        how = f"{mpi or 'this MPI'}{f' with its {pml}' if pml else ''} doesn't say which transport it takes"
        if ucx := ucx_of(stderr, pid):
            how = f"UCX uses {', '.join(ucx)}; it doesn't say to which rank it takes which"
        return ok(name, f"{how} ({hosts})")
    ways: dict[str, list[int]] = {}
    slow = []
    for rank in sorted(served & chosen.keys()):
        ways.setdefault(f"{'+'.join(sorted(chosen[rank]))} to %s on {ranks[rank]['host']}", []).append(rank)
        if ranks[rank]["host"] == reader["host"] and not chosen[rank] & _SHARED_MEMORY:
            slow.append(rank)
    to = ", ".join(way % numbers(group) for way, group in ways.items()) or "to no other rank"
    value = f"Open MPI's {pml or 'ob1'}: {to}"
    if not slow:
        return ok(name, value)
    to_do = "add vader (Open MPI 5: sm) to the list in OMPI_MCA_btl or --mca btl, or leave that out"
    return warning(name, value, f"Messages to {numbers(slow)} on the same host don't use MPI's shared memory: {to_do}")


def btls_of(stderr: str, pid: int) -> dict[int, set[str]]:
    """The transports that process `pid` uses to each rank of MPI_COMM_WORLD."""
    found: dict[int, set[str]] = {}
    for who, btl, rank in _BTL.findall(stderr):
        if int(who) == pid:
            found.setdefault(int(rank), set()).add(btl)
    return found


def ucx_of(stderr: str, pid: int) -> list[str]:
    """The transports that UCX has set up in process `pid`, to any rank."""
    found: dict[str, None] = {}
    for who, text in _UCX.findall(stderr):
        if int(who) == pid:
            for group in re.findall(r"\b(?:tag|am|rma|rma_bw|am_bw|keepalive)\(([^)]*)\)", text):
                found.update(dict.fromkeys(word.split("/")[0] for word in group.split()))
    return list(found)


def numbers(ranks: Sequence[int]) -> str:
    """Ranks as text. If there are many, the first eight."""
    return ", ".join(map(str, sorted(ranks)[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
