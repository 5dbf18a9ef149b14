# SPDX-License-Identifier: Apache-2.0
"""A fixed job over several hosts with links of 1 Gbit/s. Rivals: plain MPI, and broadcast + slice.

    sudo python benchmarks/hosts.py                  # 2 hosts x 1 rank, 4 x 1, 2 x 4; three sizes; about 11 minutes
    sudo python benchmarks/hosts.py --hosts 2 3x2    # 2 hosts x 1 rank, 3 x 2
    sudo python benchmarks/hosts.py --docs           # and publish it in docs/

The hosts are simulated on this machine (tests/cluster/bed.py), which needs root and Open MPI. Needs Horovod and mpi4py.
Writes hosts.json and .md to --out. Status 1: something failed.
"""

from __future__ import annotations

import os
import sys
from statistics import median

import launch
from page import Result, defined, ratio, size_name, spread, table, write

sys.path.append(str(launch.HERE.parent / "tests" / "cluster"))
from bed import Bed, why_not  # noqa: E402

PLAIN = "plain MPI"
MOST_SHARES = 8192  # the most shares that leave the reader's host, because jobs of small batches would take minutes


def of_leaving(result: Result, what: str) -> str:
    count = median(result[what])
    return f"{count / result['leaving']:.4f}" if count else ""


def part(group: list[Result]) -> list[str]:
    """The part of the page about one layout and size."""
    plain = next(r for r in group if r["name"] == PLAIN)
    hosts, per_host = plain["hosts"], plain["ranks"] // plain["hosts"]
    layout = f"{hosts} hosts" if per_host == 1 else f"{hosts} hosts x {per_host} ranks"
    gigabits = plain["leaving"] * 8 / median(plain["seconds"]) / 1e9
    columns = {
        "": lambda r: r["name"],
        "seconds": lambda r: spread(r["seconds"], 3),
        # for the bytes that must leave the reader's host
        "over plain MPI": lambda r: f"{ratio(r['seconds'], plain['seconds']):.3f}",
        "handed to MPI": lambda r: of_leaving(r, "handed"),
        "on the line": lambda r: of_leaving(r, "line"),
        "framing off": lambda r: of_leaving(r, "line_payload"),
        "messages a step": lambda r: f"{median(r['messages']) / r['steps']:.2f}" if any(r["messages"]) else "",
    }
    return [
        "",
        f"**{layout}, {size_name(plain['bytes'])}, {plain['leaving'] / 2**20:.0f} MiB must leave; plain MPI: "
        f"{gigabits:.3f} Gbit/s**",
        *table(group, columns),
    ]


def main() -> int:
    # hosts: HOSTS or HOSTSxRANKS on each. rate: of each host's line, both ways. bytes: per rank's batch. leaving: bytes
    # that must leave the reader's host.
    settings = {"hosts": ["2", "4", "2x4"], "rate": "1gbit", "bytes": [1 << 20, 64 << 10, 4 << 10], "leaving": 96 << 20}
    quick = {"hosts": ["2"], "bytes": [64 << 10], "leaving": 1 << 20}
    arguments = launch.parsed(__doc__, quick, limit=180.0, **settings)
    if reason := why_not():
        sys.exit(f"benchmarks/hosts.py simulates hosts: {reason}")
    groups = []
    for layout in arguments.hosts:
        count, _, per_host = layout.partition("x")
        places = [host for host in range(int(count)) for _ in range(int(per_host or 1))]
        with Bed(int(count), arguments.rate) as bed:
            mpirun = bed.mpirun(places, {**launch.ENVIRONMENT, **os.environ})
            for size in arguments.bytes:
                given = {"bytes": size, "leaving": min(arguments.leaving, MOST_SHARES * size)}
                found = launch.run("hosts", len(places), arguments, given, env=bed.environment, mpirun=mpirun)
                groups += [found] if found else []
    text = [
        "Hosts are network namespaces of one machine, with one rank each if the table does not say otherwise, and links of "
        f"{arguments.rate}. Rank 0 reads. The job is an epoch of ready-made batches of the given size per rank. The given number of "
        f"bytes must leave the reader's host: the shares of ranks on other hosts. Figures are medians of {arguments.rounds} rounds, in "
        "turns.",
        *defined(
            {
                "Plain MPI": "`Isend` of these bytes in messages of 4 MiB",
                "Over plain MPI": "the time divided by that of plain MPI, the median over the rounds. Broadcast and slice makes 1024 steps at most, and its figures are "
                "extrapolated to all steps",
                "Handed to MPI": "bytes of payload and headers that horovod_data hands to MPI on the reader, over the bytes that must leave",
                "On the line": "bytes by the interface's counter on the reader's host, over the bytes that must leave",
                "Framing off": "bytes on the line without 66 bytes (Ethernet, IP, TCP) for each packet",
                "Messages a step": "messages that the reader hands to MPI, by its counter",
                "Ranks only iterate": "every rank takes its own ready-made elements, at most 64 steps ahead of another rank, and nothing is "
                "delivered. This is the cost of elements on the processors of one machine, which all these ranks share",
            }
        ),
    ]
    groups.sort(key=lambda group: arguments.bytes.index(group[0]["bytes"]))
    for group in groups:
        text += part(group)
    return write("hosts", arguments, text, results=sum(groups, []))


if __name__ == "__main__":
    sys.exit(main())
