# SPDX-License-Identifier: Apache-2.0
"""A fixed job over several hosts with links of 1 Gbit/s. Rivals: plain MPI, and broadcast + slice.

    sudo python benchmarks/hosts.py                  # 2 hosts x 1 rank, 4 x 1, 2 x 4; three sizes; about 11 minutes
    sudo python benchmarks/hosts.py --hosts 2 3x2    # 2 hosts x 1 rank, 3 x 2
    sudo python benchmarks/hosts.py --docs           # and publish it in docs/

The hosts are simulated on this machine (tests/cluster/bed.py), which needs root and Open MPI. Needs Horovod and mpi4py.
Writes hosts.json, .md and .png to --out. Status 1: something failed or is missing.
"""

from __future__ import annotations

import os
import statistics
import sys
from typing import Any

import launch
import machine
from page import COLOURS, defined, prose, size_name, table, write

sys.path.append(str(launch.HERE.parent / "tests" / "cluster"))
from bed import Bed, why_not  # noqa: E402

PLAIN = "plain MPI"
WAYS = 7  # the number of ways in ranks/hosts.py
MOST_SHARES = 8192  # the most shares that leave the reader's host, because jobs of small batches would take minutes
Result = dict[str, Any]


def over_plain(result: Result, plain: Result) -> float:
    """The time over plain MPI's time for the bytes that must leave the reader's host: the median of the rounds'
    ratios."""
    return float(statistics.median(a / b for a, b in zip(result["seconds"], plain["seconds"])))


def gigabits(plain: Result) -> float:
    return float(plain["leaving"] * 8 / statistics.median(plain["seconds"]) / 1e9)


def of_leaving(result: Result, what: str) -> str:
    count = statistics.median(result[what])
    return f"{count / result['leaving']:.4f}" if count else ""


def messages(result: Result) -> str:
    """The messages of MPI that the reader sends for a step."""
    count = statistics.median(result["messages"]) / result["steps"]
    return f"{count:.2f}" if count else ""


def layout(text: str) -> tuple[int, int]:
    hosts, _, per_host = text.partition("x")
    return int(hosts), int(per_host or 1)


def layout_name(hosts: int, per_host: int) -> str:
    return f"{hosts} hosts" if per_host == 1 else f"{hosts} hosts x {per_host} ranks"


def main() -> int:
    parser = launch.options(__doc__, limit=180)
    parser.add_argument(
        "--hosts",
        type=layout,
        nargs="+",
        default=[(2, 1), (4, 1), (2, 4)],
        metavar="HOSTS[xRANKS]",
        help="and the ranks on each; 1 where it is not said",
    )
    parser.add_argument("--rate", default="1gbit", help="of each host's line, both ways")
    parser.add_argument("--bytes", type=int, nargs="+", default=[1 << 20, 64 << 10, 4 << 10], help="per rank's batch")
    parser.add_argument(
        "--leaving",
        type=int,
        default=96 << 20,
        help=f"bytes that must leave the reader's host, in {MOST_SHARES} shares at most",
    )
    arguments = launch.parsed(parser, hosts=[(2, 1)], bytes=[64 << 10], leaving=1 << 20)
    if reason := why_not():
        sys.exit(f"benchmarks/hosts.py simulates hosts: {reason}")
    told: Result = {"machine": machine.describe(), "rounds": arguments.rounds, "rate": arguments.rate}
    results: list[Result] = []
    for count, per_host in arguments.hosts:
        places = [host for host in range(count) for _ in range(per_host)]
        with Bed(count, arguments.rate) as bed:
            for size in arguments.bytes:
                results += launch.run(
                    "hosts",
                    len(places),
                    arguments,
                    env=bed.environment,
                    mpirun=bed.mpirun(places, {**launch.ENVIRONMENT, **os.environ}),
                    given={"bytes": size, "leaving": min(arguments.leaving, MOST_SHARES * size)},
                )
    told["results"] = results

    text = [
        prose(
            "Hosts are network namespaces of one machine, with one rank each if the table does not say otherwise, and links of "
            f"{arguments.rate}. Rank 0 reads. The job is an epoch of ready-made batches of the given size per rank. The given number of "
            f"bytes must leave the reader's host: the shares of ranks on other hosts. Figures are medians of {arguments.rounds} rounds, in "
            "turns."
        ),
        *defined(
            {
                "Plain MPI": "`Isend` of these bytes in messages of 4 MiB",
                "Over plain MPI": "the time over that of plain MPI: the median of the rounds' ratios. Broadcast and slice makes 1024 steps at most, and its figures are "
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
    summary_rows = []
    groups = {
        (count, per_host, size): [
            r for r in results if (r["hosts"], r["ranks"], r["bytes"]) == (count, count * per_host, size)
        ]
        for size in arguments.bytes
        for count, per_host in arguments.hosts
    }
    for (count, per_host, size), group in groups.items():
        if not group:
            continue
        plain = next(r for r in group if r["name"] == PLAIN)
        text += [
            "",
            f"**{layout_name(count, per_host)}, {size_name(size)}, {plain['leaving'] / 2**20:.0f} MiB must leave; plain MPI: "
            f"{gigabits(plain):.3f} Gbit/s**",
            *table(
                ["", "seconds", "over plain MPI", "handed to MPI", "on the line", "framing off", "messages a step"],
                [
                    [
                        r["name"],
                        f"{statistics.median(r['seconds']):.3f} ({min(r['seconds']):.3f}-{max(r['seconds']):.3f})",
                        f"{over_plain(r, plain):.3f}",
                        *[of_leaving(r, what) for what in ("handed", "line", "line_payload")],
                        messages(r),
                    ]
                    for r in group
                ],
            ),
        ]
        summary_rows += [
            [
                f"{layout_name(count, per_host)}, {size_name(size)}: {r['name']}",
                f"{over_plain(r, plain):.3f}",
                of_leaving(r, "handed"),
                of_leaving(r, "line_payload"),
                messages(r),
            ]
            for r in group
            if r is not plain
        ]
    summary = table(
        ["", "time over plain MPI's", "bytes handed to MPI", "on the line, framing off", "messages a step"],
        summary_rows,
    )

    def draw(pyplot: Any) -> Any:
        figure, axes = pyplot.subplots(
            len(arguments.bytes),
            len(arguments.hosts),
            sharey=True,
            squeeze=False,
            figsize=(5 * len(arguments.hosts), 2.6 * len(arguments.bytes)),
        )
        for axis, ((count, per_host, size), group) in zip(axes.flat, groups.items()):
            group = group[::-1]
            axis.barh(
                [r["name"] for r in group],
                [statistics.median(r["seconds"]) for r in group],
                color=[COLOURS[r["kind"]] for r in group],
            )
            axis.set_title(f"{layout_name(count, per_host)}, {arguments.rate}, {size_name(size)}")
            axis.set_xlabel("seconds for the job")
        return figure

    write("hosts", told, text, summary, arguments, draw)
    return 0 if len(results) == WAYS * len(groups) else 1


if __name__ == "__main__":
    sys.exit(main())
