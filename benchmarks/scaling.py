# SPDX-License-Identifier: Apache-2.0
"""How rates grow with the readers: 1, 2 and 4 on one host, and one on each of several hosts with links of 1 Gbit/s.

    sudo python benchmarks/scaling.py                # about 7 minutes
    sudo python benchmarks/scaling.py --docs         # and publish it in docs/

The pipelines sleep for every batch, so the processors, which all readers and hosts share here, are not the limit. The
hosts are simulated on this machine (tests/cluster/bed.py), which needs root and Open MPI. Without these, it measures
only one host. Needs Horovod and mpi4py. Writes scaling.json, .md and .png to --out. Status 1: something failed.
"""

from __future__ import annotations

import os
import statistics
import sys
from typing import Any

import launch
import machine
from page import LIMIT, OURS, RIVAL, prose, size_name, table, write

from horovod_data.plan import Job, Readers, predict

sys.path.append(str(launch.HERE.parent / "tests" / "cluster"))
from bed import Bed, why_not  # noqa: E402

ONE, EACH, BROADCAST = "one reader", "a reader on each host", "hvd.broadcast + slice"
Result = dict[str, Any]


def rate(result: Result) -> float:
    """Batches per second that all trainers together get."""
    return float(result["batches"] / statistics.median(result["seconds"]))


def planned(result: Result) -> float | None:
    """The rate that `python -m horovod_data.plan` predicts. None if it has no model for this way."""
    if result["name"] == BROADCAST:
        return None
    job = Job(
        ranks=result["trainers"],
        batch_bytes=result["bytes"],
        step_seconds=0,
        link_gbit=result["gbit"],
        ranks_per_host=result["trainers"] // result.get("hosts", 1),
        pipeline_bytes_per_second=result["bytes"] / result["pace"],
    )
    readers = (
        Readers(per_node=1)
        if result["name"] == EACH
        else Readers()
        if "hosts" in result
        else Readers(dedicated=result["readers"], own_hosts=False)
    )
    return predict(job, readers).steps_per_second * result["trainers"]


def rows(results: list[Result], key: str) -> list[list[str]]:
    base = rate(results[0])
    found = []
    for r in results:
        plan = planned(r)
        found.append(
            [
                str(r[key]),
                r["name"],
                f"{rate(r):.0f}",
                f"{rate(r) * r['bytes'] / 1e6:.0f}",
                f"{rate(r) / base:.2f}",
                f"{plan:.0f}" if plan else "",
                f"{rate(r) / plan:.2f}" if plan else "",
            ]
        )
    return found


def main() -> int:
    parser = launch.options(__doc__, limit=300)
    parser.set_defaults(rounds=5)
    parser.add_argument("--readers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--trainers", type=int, default=2, help="beside these readers")
    parser.add_argument("--pace", type=float, default=0.02, help="seconds a pipeline takes for a batch, on one host")
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rate", default="1gbit", help="of each host's line, both ways, in gbit")
    parser.add_argument(
        "--hosts-pace", type=float, default=0.005, help="seconds a pipeline takes for a batch, over hosts"
    )
    parser.add_argument("--bytes", type=int, default=1 << 20, help="per rank's batch")
    parser.add_argument("--steps", type=int, default=96)
    arguments = launch.parsed(parser, readers=[1, 2], hosts=[2], bytes=64 << 10, steps=8)
    expected = len(arguments.readers)
    gbit = float(arguments.rate.removesuffix("gbit"))

    def measure(
        processes: int,
        name: str,
        told: Result,
        pace: float,
        env: dict[str, str],
        way: str = "ours",
        bed: Bed | None = None,
    ) -> list[Result]:
        """The only result of the job, or None."""
        more: Result = {"env": env}
        if bed is not None:
            per_host = processes // told["hosts"]
            more["env"] = {**env, **bed.environment}
            more["mpirun"] = bed.mpirun(
                [host for host in range(told["hosts"]) for _ in range(per_host)],
                {**launch.ENVIRONMENT, **os.environ, **env},
            )
        found = launch.run(
            "scaling",
            processes,
            arguments,
            {"way": way, "pace": pace, "bytes": arguments.bytes, "steps": arguments.steps},
            **more,
        )
        return [
            {**result, "name": name, "bytes": arguments.bytes, "pace": pace, "gbit": gbit, **told} for result in found
        ]

    here: list[Result] = []
    for readers in arguments.readers:
        here += measure(
            arguments.trainers + readers,
            "dedicated readers",
            {"readers": readers},
            arguments.pace,
            {"HOROVOD_DATA_READERS": str(readers)},
        )
    over: list[Result] = []
    reason = why_not()
    for hosts in [] if reason else arguments.hosts:
        expected += 3
        told: Result = {"hosts": hosts}
        per_node = {"HOROVOD_DATA_READERS_PER_NODE": "1", "HOROVOD_DATA_EMBEDDED": "1"}
        with Bed(hosts, arguments.rate) as bed:
            over += measure(2 * hosts, ONE, told, arguments.hosts_pace, {}, bed=bed)
            over += measure(2 * hosts, EACH, told, arguments.hosts_pace, per_node, bed=bed)
            over += measure(2 * hosts, BROADCAST, told, arguments.hosts_pace, {}, way="broadcast", bed=bed)
    told = {
        "machine": machine.describe(),
        "rounds": arguments.rounds,
        "rate": arguments.rate,
        "pace": arguments.pace,
        "hosts_pace": arguments.hosts_pace,
        "one_host": here,
        "over_hosts": over,
    }

    header = ["who reads", "batches/s", "MB/s", "relative to the first row", "planned batches/s", "measured / planned"]
    parts = []
    if here:
        parts.append(table(["readers", *header], rows(here, "readers")))
    if over:
        parts.append(table(["hosts", *header], rows(over, "hosts")))
    text = [
        prose(
            f"*Batches/s* are batches of {size_name(arguments.bytes)} that all trainers together get in a second: medians of "
            f"{arguments.rounds} rounds of {arguments.steps} steps. *Planned* is the rate that [the model](planning.md) predicts."
        ),
        "",
        f"- On one host there are {arguments.trainers} trainers. Each reader's pipeline sleeps {1000 * arguments.pace:g} ms for a batch.",
        f"- Over hosts each host has 2 trainers and a link of {gbit:g} Gbit/s. Readers also train. A pipeline sleeps "
        f"{1000 * arguments.hosts_pace:g} ms for a batch.",
        *sum(parts, []),
    ]
    if reason:
        text.append(f"No hosts: {reason}.")

    def draw(pyplot: Any) -> Any:
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.2))
        left.plot([r["readers"] for r in here], [rate(r) for r in here], "-o", color=OURS, label="dedicated readers")
        left.plot(
            [r["readers"] for r in here],
            [r["readers"] / arguments.pace for r in here],
            "--",
            color=LIMIT,
            label="what the pipelines give",
        )
        left.set_xlabel("readers, on one host")
        for name, colour in ((ONE, LIMIT), (EACH, OURS), (BROADCAST, RIVAL)):
            line = [r for r in over if r["name"] == name]
            right.plot([r["hosts"] for r in line], [rate(r) for r in line], "-o", color=colour, label=name)
        right.set_xlabel(f"hosts of 2 trainers, lines of {arguments.rate}")
        for axis in (left, right):
            axis.set_ylabel("batches per second")
            axis.set_ylim(0)
            axis.legend()
        return figure

    write("scaling", told, text, sum(parts, []), arguments, draw)
    return 0 if len(here) + len(over) == expected else 1


if __name__ == "__main__":
    sys.exit(main())
