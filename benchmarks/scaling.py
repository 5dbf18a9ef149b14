# SPDX-License-Identifier: Apache-2.0
"""How rates grow with the readers: 1, 2 and 4 on one host, and one on each of several hosts with links of 1 Gbit/s.

    sudo python benchmarks/scaling.py                # about 7 minutes
    sudo python benchmarks/scaling.py --docs         # and publish it in docs/

The pipelines sleep for every batch, so the processors, which all readers and hosts share here, are not the limit. The
hosts are simulated on this machine (tests/cluster/bed.py), which needs root and Open MPI. Without these, it measures
only one host. Needs Horovod and mpi4py. Writes scaling.json and .md to --out. Status 1: something failed.
"""

from __future__ import annotations

import os
import sys
from statistics import median
from typing import Any

import launch
from page import Result, size_name, table, write

from horovod_data.plan import Job, Readers, predict

sys.path.append(str(launch.HERE.parent / "tests" / "cluster"))
from bed import Bed, why_not  # noqa: E402

ONE, EACH, BROADCAST = "one reader", "a reader on each host", "hvd.broadcast + slice"


def rate(result: Result) -> float:
    """Batches per second that all trainers together get."""
    return float(result["batches"] / median(result["seconds"]))


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


def part(results: list[Result], key: str) -> list[str]:
    """The table of these results, with a column for what grows."""
    columns = {
        key: lambda r: str(r[key]),
        "who reads": lambda r: r["name"],
        "batches/s": lambda r: f"{rate(r):.0f}",
        "MB/s": lambda r: f"{rate(r) * r['bytes'] / 1e6:.0f}",
        "relative to the first row": lambda r: f"{rate(r) / rate(results[0]):.2f}",
        "planned batches/s": lambda r: f"{plan:.0f}" if (plan := planned(r)) else "",
        "measured / planned": lambda r: f"{rate(r) / plan:.2f}" if (plan := planned(r)) else "",
    }
    return table(results, columns) if results else []


def main() -> int:
    # trainers: beside the readers on one host. pace, hosts_pace: seconds that a pipeline takes for a batch, on one host
    # and over hosts. rate: of each host's line, both ways, in gbit. bytes: per rank's batch.
    settings = {
        "readers": [1, 2, 4],
        "trainers": 2,
        "pace": 0.02,
        "hosts": [2, 4],
        "rate": "1gbit",
        "hosts_pace": 0.005,
    }
    quick = {"readers": [1, 2], "hosts": [2], "bytes": 64 << 10, "steps": 8}
    arguments = launch.parsed(__doc__, quick, rounds=5, limit=300.0, bytes=1 << 20, steps=96, **settings)
    gbit = float(arguments.rate.removesuffix("gbit"))

    def measure(processes: int, name: str, told: Result, pace: float, way: str = "ours", **more: Any) -> list[Result]:
        """The only result of the job, or none."""
        found = launch.run("scaling", processes, arguments, {"way": way, "pace": pace}, **more)
        return [
            {**result, "name": name, "bytes": arguments.bytes, "pace": pace, "gbit": gbit, **told} for result in found
        ]

    here: list[Result] = []
    for readers in arguments.readers:
        env = {"HOROVOD_DATA_READERS": str(readers)}
        told = {"readers": readers}
        here += measure(arguments.trainers + readers, "dedicated readers", told, arguments.pace, env=env)
    over: list[Result] = []
    reason = why_not()
    per_node = {"HOROVOD_DATA_READERS_PER_NODE": "1", "HOROVOD_DATA_EMBEDDED": "1"}
    for hosts in [] if reason else arguments.hosts:
        places = [host for host in range(hosts) for _ in range(2)]
        with Bed(hosts, arguments.rate) as bed:
            for name, way, env in (ONE, "ours", {}), (EACH, "ours", per_node), (BROADCAST, "broadcast", {}):
                mpirun = bed.mpirun(places, {**launch.ENVIRONMENT, **os.environ, **env})
                where = {"env": {**env, **bed.environment}, "mpirun": mpirun}
                over += measure(2 * hosts, name, {"hosts": hosts}, arguments.hosts_pace, way, **where)
    text = [
        f"*Batches/s* are batches of {size_name(arguments.bytes)} that all trainers together get in a second: medians of "
        f"{arguments.rounds} rounds of {arguments.steps} steps. *Planned* is the rate that [the model](planning.md) predicts.",
        "",
        f"- On one host there are {arguments.trainers} trainers. Each reader's pipeline sleeps {1000 * arguments.pace:g} ms for a batch.",
        f"- Over hosts each host has 2 trainers and a link of {gbit:g} Gbit/s. Readers also train. A pipeline sleeps "
        f"{1000 * arguments.hosts_pace:g} ms for a batch.",
        *part(here, "readers"),
        *part(over, "hosts"),
        *([f"No hosts: {reason}."] if reason else []),
    ]
    return write("scaling", arguments, text, one_host=here, over_hosts=over)


if __name__ == "__main__":
    sys.exit(main())
