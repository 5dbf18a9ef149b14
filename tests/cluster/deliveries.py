# SPDX-License-Identifier: Apache-2.0
"""A job distributes datasets of all modes over hosts.

It records the rows of each trainer, and the bytes on the lines between hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from bed import Bed
from jobs import Job, program
from oracle import deliver_from_readers, is_dynamic_delivery

STEPS = 16  # of the large batches: so many that other bytes on the lines hardly count
LARGE = 1 << 20  # bytes of one rank's large batch
EPOCHS = 2  # of the small ones
ROWS, TEXTS, LOOSE = 100, 90, 20
# Bytes of everything else on a host's line: MPI's and Horovod's start and end, headers and credits.
REST = 400_000

SCRIPT = program("""
import socket
from mpi4py import MPI
trainers, steps, large, epochs, rows, texts, loose = map(int, sys.argv[1:])

def tell(**what):
    say("TOLD " + json.dumps(what))

def shared(make, **mode):
    def function(context):
        assert hvdata.is_reader(), "called on a process that does not read"
        return make(context.num_input_pipelines).shard(context.num_input_pipelines, context.input_pipeline_id)
    return train(function, name=None, **mode)

def count(n):
    return tf.data.Dataset.from_generator(lambda: range(n), output_signature=tf.TensorSpec([], tf.int64))

numbered = tf.data.Dataset.range(texts).map(lambda n: {"n": n, "text": tf.strings.as_string(n)})
rows = shared(lambda readers: tf.data.Dataset.range(rows).batch(12), batch="global", remainder="partial")
texts = shared(lambda readers: numbered.batch(9), batch="global")
each = shared(lambda readers: count(4 * trainers * readers))
loose = shared(lambda readers: count(loose), schedule="dynamic")
large = shared(lambda readers: tf.data.Dataset.range(steps * trainers).map(
    lambda n: tf.fill([large], tf.cast(n, tf.uint8))))

together = MPI.COMM_WORLD.Split(int(hvdata.is_trainer()))
try:
    hvdata.serve()
    for epoch in range(epochs):
        a, b = iter(rows), iter(each)
        got = [[next(a).numpy().tolist()], [int(next(b))]]  # interleaved
        tell(rank=rank, size=size, rows=got[0] + [x.numpy().tolist() for x in a], each=got[1] + [int(x) for x in b],
             texts=[[x["n"].numpy().tolist(), [t.decode() for t in x["text"].numpy()]] for x in texts],
             loose=[int(x) for x in loose])
    tell(large=[[len(x), int(tf.reduce_min(x)), int(tf.reduce_max(x))] for x in large])
    together.Barrier()  # a reader that trains has sent everything when all trainers have it
finally:
    tell(stats=hvdata.stats(), host=socket.gethostname())
""")


@dataclass(frozen=True)
class Layout:
    """There are `per_host` trainers on each of `hosts` hosts.

    Without `readers`, rank 0 reads. Dedicated readers are the last processes. With a reader on each host, it is the
    host's last process or, if embedded, its first trainer.
    """

    hosts: int
    per_host: int
    readers: int = 0
    per_node: bool = False
    embedded: bool = False

    def __str__(self) -> str:
        who = "per node" if self.per_node else f"{self.readers} dedicated" if self.readers else "rank 0"
        return f"{self.hosts}x{self.per_host}, {who}{', embedded' if self.embedded else ''}"

    @property
    def trainers(self) -> int:
        return self.hosts * self.per_host

    @property
    def places(self) -> list[int]:
        """The host of each process. Dedicated readers are on the last hosts."""
        each = self.per_host + (self.per_node and not self.embedded)
        return [host for host in range(self.hosts) for _ in range(each)] + [
            self.hosts - 1 - number % self.hosts for number in reversed(range(self.readers))
        ]

    @property
    def environment(self) -> dict[str, str | None]:
        return {
            "HOROVOD_DATA_READERS": str(self.readers) if self.readers else None,
            "HOROVOD_DATA_READERS_PER_NODE": "1" if self.per_node else None,
            "HOROVOD_DATA_EMBEDDED": "1" if self.embedded else None,
            "HOROVOD_CYCLE_TIME": "20",  # milliseconds: at 1 Horovod's own messages are more than REST
        }

    @property
    def arguments(self) -> list[str]:
        return [str(number) for number in (self.trainers, STEPS, LARGE, EPOCHS, ROWS, TEXTS, LOOSE)]

    @property
    def groups(self) -> list[tuple[list[int], list[int]]]:
        """Pairs of processes that read, and processes that train with their batches."""
        everybody = range(len(self.places))
        if not self.per_node:
            split = self.trainers
            return [(list(everybody[split:]) or [0], list(everybody[:split]))]
        members = [[rank for rank in everybody if self.places[rank] == host] for host in range(self.hosts)]
        if self.embedded:
            return [([group[0]], group) for group in members]
        return [([group[-1]], group[:-1]) for group in members]


def check_delivery(job: Job, layout: Layout) -> None:
    """Every trainer got its own rows in the readers' order, every row once."""
    groups = layout.groups
    readers = [reader for reading, _ in groups for reader in reading]
    trainers = [trainer for _, training in groups for trainer in training]

    def batches(rows: int, size: int) -> list[Any]:
        return [np.arange(at, min(at + size, rows)) for at in range(0, rows, size)]

    def wanted(elements: Sequence[Any], batch: str, remainder: str = "drop") -> dict[int, list[Any]]:
        """The steps of each trainer, by its process."""
        steps = {}
        for reading, training in groups:
            mine = [elements[readers.index(reader) :: len(readers)] for reader in reading]
            steps.update(zip(training, deliver_from_readers(mine, len(training), batch, remainder)))
        # Hosts with readers of their own end on the same step: the last step of the first host or of the last host that
        # ends. In the latter case the other hosts get empty shares.
        last = (min if remainder == "drop" else max)(map(len, steps.values()))
        return {
            process: [step.tolist() for step in own[:last]] + [[]] * (last - len(own)) for process, own in steps.items()
        }

    rows = wanted(batches(ROWS, 12), "global", "partial")
    texts = wanted(batches(TEXTS, 9), "global")
    each = wanted(np.arange(4 * layout.trainers * len(readers)), "per_rank")
    large = wanted(np.arange(STEPS * layout.trainers) % 256, "per_rank")
    for number, process in enumerate(trainers):
        *epochs, last, _ = job.told("TOLD", process)
        assert len(epochs) == EPOCHS
        for epoch in epochs:
            assert (epoch["rank"], epoch["size"]) == (number, layout.trainers)
            assert epoch["rows"] == rows[process]
            assert epoch["each"] == each[process]
            assert epoch["texts"] == [[step, [str(n) for n in step]] for step in texts[process]]
        assert last["large"] == [[LARGE, value, value] for value in large[process]]
    for epoch in range(EPOCHS):
        assert is_dynamic_delivery(range(LOOSE), [job.told("TOLD", process)[epoch]["loose"] for process in trainers])


def check_ways(job: Job, layout: Layout, bed: Bed) -> None:
    """Asserts that large batches went through shared memory within hosts, and as messages between hosts.

    Only readers sent them. The lines of this bed, which has run no other job, carried little else.
    """
    shared, messages = [0] * len(layout.places), [0] * len(layout.places)
    sent, received = [0] * layout.hosts, [0] * layout.hosts
    for reading, training in layout.groups:
        for reader in reading:
            for trainer in training:
                here, there = layout.places[reader], layout.places[trainer]
                count = STEPS * LARGE // len(reading)
                if here != there:
                    messages[reader] += count
                    sent[here] += count
                    received[there] += count
                elif reader != trainer:
                    shared[reader] += count
    for process, host in enumerate(layout.places):
        last = job.told("TOLD", process)[-1]
        assert last["host"] == bed.names[host]
        ways = last["stats"]["payload_bytes_arena"], last["stats"]["payload_bytes_message"]
        assert ways == (shared[process], messages[process]), f"process {process}"
    rest = REST + 10_000 * max(0, job.seconds - 40)  # Horovod's ranks talk for as long as the job lasts
    for host in range(layout.hosts):
        line = bed.counters(host)
        assert sent[host] <= line.payload_sent <= 1.01 * sent[host] + rest, f"host {host}"
        assert received[host] <= line.payload_received <= 1.01 * received[host] + rest, f"host {host}"
