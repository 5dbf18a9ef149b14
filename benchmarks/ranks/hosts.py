# SPDX-License-Identifier: Apache-2.0
"""A fixed job over hosts, in turns: plain MPI, horovod_data, broadcast and slice, and ranks without delivery.

Settings: bytes (of one rank's batch), leaving (bytes that must leave the reader's host), directory (for files that all
  hosts see).
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from mpi4py import MPI

import horovod_data as hvdata
from horovod_data.observe.stats import stats
from ranks.in_step import InStep
from ranks.setting import READER, ROWS, Batch, Job
from ranks.start import finish, horovod_running, meet, start

MESSAGE = 4 << 20  # bytes of one message of plain MPI
UNDER_WAY = 3  # plain MPI's messages on their way to each rank
WINDOWS = (16, 64)  # fixed windows, measured besides the default
# the most steps of broadcast and slice; it takes 1 ms or more per step, so it gets only a part of many steps
BROADCASTS = 1024
APART = 64  # steps between ranks that only iterate, as many as the default window may have
Way = tuple[Any, Callable[[], None]]  # a context in which it runs, and the job
FRAME = 14 + 20 + 32  # bytes of Ethernet, IP and TCP with time stamps, for each packet in the counters


def line() -> tuple[int, int]:
    """(bytes, bytes without frames) that have left this host."""
    with open("/proc/net/dev") as file:
        words = next(text for text in file if text.strip().startswith("eth0:")).split(":")[1].split()
    count, packets = int(words[8]), int(words[9])
    return count, count - FRAME * packets


def stream(job: Job, remote: list[int], total: int) -> Callable[[], None]:
    """Sends `total` bytes to every rank of `remote`, as fast as MPI can."""
    rooms = [np.zeros(MESSAGE, np.uint8) for _ in range(UNDER_WAY)]
    messages = -(-total // MESSAGE)
    comm = job.comm.Dup()

    def transfer() -> None:
        begin = comm.Isend if job.reads else comm.Irecv
        peers = remote if job.reads else [READER] if job.rank in remote else []

        def one_by_one(peer: int) -> Iterator[None]:
            """Moves the messages to or from one rank, UNDER_WAY at a time. Yields where it would wait."""
            requests = [MPI.REQUEST_NULL] * UNDER_WAY
            for number in range(messages):
                slot = number % UNDER_WAY
                while not requests[slot].Test():
                    yield
                requests[slot] = begin(rooms[slot][: total - number * MESSAGE], peer)
            while not all([request.Test() for request in requests]):
                yield

        lanes = [one_by_one(peer) for peer in peers]
        while lanes:
            lanes = [lane for lane in lanes if next(lane, lane) is not lane]
            time.sleep(0.0001)  # because the hosts share the processors

    return transfer


def whole_dataset(dataset: tf.data.Dataset) -> Callable[[], None]:
    def iterate() -> None:
        for _ in dataset:
            pass

    return iterate


def only_iterate(job: Job, batch: Batch, steps: int, file: Path) -> Callable[[], None]:
    """Every rank takes ready-made elements of its own, and nothing is delivered.

    The simulated hosts share memory, where ranks meet.
    """
    ranks = InStep(job.comm, file)
    dataset = batch.own().take(steps)
    begun = 0

    def transfer() -> None:
        nonlocal begun
        for step, _ in enumerate(dataset, begun):
            ranks.wait(step - APART)
            ranks.reach(step)
        begun += steps

    return transfer


def broadcast(job: Job, batch: Batch, steps: int) -> Callable[[], None]:
    import horovod.tensorflow as hvd

    whole = tf.zeros([job.size * ROWS, batch.columns])

    def transfer() -> None:
        for _ in range(steps):
            hvd.broadcast(whole, root_rank=READER, name="whole")[job.rank * ROWS : (job.rank + 1) * ROWS]

    return transfer


def main() -> None:
    job, given = start()
    names = job.comm.allgather(socket.gethostname())
    remote = [rank for rank, name in enumerate(names) if name != names[READER]]
    batch = Batch(given["bytes"])
    steps = max(1, round(given["leaving"] / (len(remote) * batch.bytes)))
    leaving = steps * len(remote) * batch.bytes
    distribute = hvdata.distribute_dataset
    nothing = contextlib.nullcontext

    def ours(**how: Any) -> Way:
        source = (
            (lambda: batch.own().take(steps * job.size))
            if how["batch"] == "per_rank"
            else lambda: batch.whole(job.size).take(steps)
        )
        return nothing, whole_dataset(distribute(source, **how))

    file = Path(given["directory"]) / f"in_step_{given['bytes']}"
    ways: dict[str, Way] = {
        "plain MPI": (nothing, stream(job, remote, steps * batch.bytes)),
        "horovod_data, per_rank": ours(batch="per_rank"),
        **{f"horovod_data, per_rank, prefetch={window}": ours(batch="per_rank", prefetch=window) for window in WINDOWS},
        "horovod_data, global": ours(batch="global"),
        "hvd.broadcast + slice": (horovod_running, broadcast(job, batch, min(steps, BROADCASTS))),
        "ranks only iterate": (nothing, only_iterate(job, batch, steps, file)),
    }
    parts = {"hvd.broadcast + slice": min(1, BROADCASTS / steps)}
    same = {"hosts": len(set(names)), "bytes": given["bytes"], "ranks": job.size, "leaving": leaving, "steps": steps}
    measured = ("seconds", "handed", "messages", "line", "line_payload")
    results: list[dict[str, Any]] = [{"name": name, **same, **{what: [] for what in measured}} for name in ways]
    for turn in range(1 + given["rounds"]):  # the first warms up
        for result, (setting, transfer) in zip(results, ways.values()):
            with setting():
                meet(job.comm)
                counted, handed = line(), stats()
                began = time.monotonic()
                transfer()
                ended = time.monotonic()
                meet(job.comm)
                now, sent = line(), stats()
            told = job.comm.allgather((began, ended))
            part = parts.get(result["name"], 1)
            if turn:
                result["seconds"].append((max(end for _, end in told) - min(begin for begin, _ in told)) / part)
                result["handed"].append(sent["mpi_bytes_sent"] - handed["mpi_bytes_sent"])
                result["messages"].append(sent["mpi_messages_sent"] - handed["mpi_messages_sent"])
                result["line"].append((now[0] - counted[0]) / part)
                result["line_payload"].append((now[1] - counted[1]) / part)
    finish(job, given, results)


if __name__ == "__main__":
    main()
