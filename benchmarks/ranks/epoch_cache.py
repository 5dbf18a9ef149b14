# SPDX-License-Identifier: Apache-2.0
"""Epochs over a slow source, in one way. All ranks of all hosts share the bandwidth of the source. IN_MEMORY is another
job: its ways have all rows in the reader's memory, and take turns.

Settings: way, state (the file of a checkpoint, for SAVE and RESTORE), rows, row_bytes, batch (rows of all ranks in a
  step), storage (MB/s of the source), epochs.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import horovod_data as hvdata
from ranks.hosts import line
from ranks.setting import Job
from ranks.start import finish, meet, start

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
from oracle import cached_epoch, deliver  # noqa: E402

NO_CACHE, ON_THE_READER, PER_RANK, OURS = "no cache", "cache() on the reader", "cache() on each rank", 'cache="job"'
READY_MADE, SAVE, RESTORE, IN_MEMORY = "ready-made batches", "save", "restore", "in memory"
SHUFFLE = "Dataset.shuffle() on the reader"
KINDS = {NO_CACHE: "rival", ON_THE_READER: "rival", PER_RANK: "rival", OURS: "ours", READY_MADE: "limit"}
SEED = 1
SAVED_EPOCH = 3  # of SAVE and RESTORE


class Source:
    """Storage that all processes share. A file counts its bytes, and says when it is free again."""

    def __init__(self, path: Path, rate: float):
        self._path, self._rate = path, rate

    def read(self, count: int) -> None:
        """Waits as long as the storage needs for so many bytes, behind all reads before this one."""
        with open(self._path, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            free, total = self._known(file)
            free = max(free, time.monotonic()) + count / self._rate
            file.truncate(0)
            file.write(struct.pack("dq", free, total + count))
            file.flush()
        time.sleep(max(0.0, free - time.monotonic()))

    def total(self) -> int:
        """The bytes that all processes have read."""
        with open(self._path, "a+b") as file:
            return self._known(file)[1]

    @staticmethod
    def _known(file: Any) -> tuple[float, int]:
        file.seek(0)
        found = file.read()
        return struct.unpack("dq", found) if found else (0.0, 0)


class Rows:
    """Row i is its number, and bytes that all have the value i % 251."""

    def __init__(self, given: dict[str, Any]):
        self.source = Source(Path(given["directory"]) / "source", given["storage"] * 1e6)
        self.size, self.bytes, self.batch = given["rows"], given["row_bytes"], given["batch"]

    def made(self, numbers: np.ndarray) -> np.ndarray:
        return np.repeat((numbers % 251).astype(np.uint8)[:, None], self.bytes, axis=1)

    def batches(self) -> list[np.ndarray]:
        return [np.arange(first, min(first + self.batch, self.size)) for first in range(0, self.size, self.batch)]

    def dataset(self) -> tf.data.Dataset:
        def read() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for numbers in self.batches():
                self.source.read(len(numbers) * self.bytes)
                yield numbers, self.made(numbers)

        spec = tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, self.bytes], tf.uint8)
        return tf.data.Dataset.from_generator(read, output_signature=spec).prefetch(2)

    def ready_made(self) -> tf.data.Dataset:
        numbers = self.batches()[0]
        return tf.data.Dataset.from_tensors((numbers, self.made(numbers))).repeat(len(self.batches()))


class PartlyCached:
    """Each rank reads its part of a permutation of all rows. It keeps the rows that it reads first, as far as its part of
    the host's memory goes."""

    def __init__(self, job: Job, rows: Rows, room: int):
        self._job, self._rows, self._room = job, rows, room
        self._kept: dict[int, np.ndarray] = {}
        self._epoch = 0

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        self._epoch += 1
        order = np.random.default_rng([SEED, self._epoch]).permutation(self._rows.size)
        mine = order[self._job.rank :: self._job.size]
        step = max(1, self._rows.batch // self._job.size)
        for first in range(0, len(mine), step):
            numbers = mine[first : first + step]
            yield numbers, np.stack([self._row(int(number)) for number in numbers])

    def _row(self, number: int) -> np.ndarray:
        if number in self._kept:
            return self._kept[number]
        self._rows.source.read(self._rows.bytes)
        row = self._rows.made(np.array([number]))[0]
        if len(self._kept) < self._room:
            self._kept[number] = row
        return row


def memory() -> int:
    """The bytes of this process's memory that hold data: private memory, and shared memory that this process has made."""
    with open("/proc/self/smaps_rollup") as file:
        private = next(int(text.split()[1]) << 10 for text in file if text.startswith("Pss_Anon:"))
    files = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return private + sum(os.stat(file).st_blocks * 512 for file in files if "memfd:" in os.path.realpath(file))


def one_epoch(dataset: Any) -> list[list[int]]:
    """The numbers of the rows of each step. Checks the rows."""
    seen = []
    for numbers, values in dataset:
        numbers, values = np.asarray(numbers), np.asarray(values)
        if len(numbers) and not (values[:, 0] == numbers % 251).all():
            raise AssertionError("a row has another row's bytes")
        seen.append(numbers.tolist())
    return seen


def as_oracle(job: Job, rows: Rows, epoch: int, mine: list[list[int]], first: int = 0) -> bool:
    """Whether all ranks got the oracle's rows from step `first` on."""
    want = deliver(cached_epoch(rows.batches(), "global", epoch, SEED), job.size, "global", remainder="partial")
    return all(job.comm.allgather(mine == [numbers.tolist() for numbers in want[job.rank]][first:]))


def made(job: Job, rows: Rows, way: str) -> Any:
    """What the ranks iterate over."""
    if way == PER_RANK:
        return PartlyCached(job, rows, rows.size // job.size)  # all ranks together have room for all rows once
    make: Callable[[], tf.data.Dataset] = rows.ready_made if way == READY_MADE else rows.dataset
    if way == ON_THE_READER:
        make = lambda: rows.dataset().cache()  # noqa: E731
    kept = {"cache": "job", "shuffle": True, "seed": SEED} if way in (OURS, SAVE, RESTORE) else {}
    return hvdata.distribute_dataset(make, batch="global", remainder="partial", name="rows", **kept)


def in_memory(job: Job, rows: Rows, epochs: int) -> list[dict[str, Any]]:
    """The seconds of epochs 2 and later of both ways."""
    every = np.arange(rows.size)
    slices = tf.data.Dataset.from_tensor_slices((every, rows.made(every))) if job.reads else None
    made = {
        SHUFFLE: (lambda: slices.shuffle(rows.size).batch(rows.batch), {}),
        OURS: (lambda: slices.batch(rows.batch), {"cache": "job", "shuffle": True, "seed": SEED}),
    }
    ways = {
        way: hvdata.distribute_dataset(make, batch="global", remainder="partial", name=way, **kept)
        for way, (make, kept) in made.items()
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    right = []
    for epoch in range(1, epochs + 1):
        for way, dataset in ways.items():
            meet(job.comm)
            began = time.monotonic()
            mine = one_epoch(dataset)
            meet(job.comm)
            seconds[way].append(time.monotonic() - began)
            if way == OURS:
                right.append(as_oracle(job, rows, epoch, mine))
    steps = len(rows.batches())
    return [
        {"name": way, "seconds": its[1:], "steps": steps, "right": all(right) if way == OURS else None}
        for way, its in seconds.items()
    ]


def interrupted(job: Job, rows: Rows, dataset: Any, given: dict[str, Any]) -> bool:
    """SAVE: rank 0 saves in the middle of an epoch. RESTORE: all ranks continue there. Returns if all rows were right."""
    half = len(rows.batches()) // 2
    if given["way"] == RESTORE:
        iterator = iter(dataset)
        if job.reads:
            tf.train.Checkpoint(iterator=iterator).read(given["state"]).assert_consumed()
        job.comm.Barrier()
        right = as_oracle(job, rows, SAVED_EPOCH, one_epoch(iterator), half)
        return right and as_oracle(job, rows, SAVED_EPOCH + 1, one_epoch(dataset))
    for _ in range(SAVED_EPOCH - 1):
        one_epoch(dataset)
    iterator = iter(dataset)
    for _ in range(half):
        next(iterator)
    meet(job.comm)
    if job.reads:
        tf.train.Checkpoint(iterator=iterator).write(given["state"])
    meet(job.comm)
    return True


def main() -> None:
    job, given = start()
    way, rows = given["way"], Rows(given)
    if way == IN_MEMORY:
        finish(job, given, in_memory(job, rows, given["epochs"]))
        return
    hosts = job.comm.allgather(socket.gethostname())
    dataset = made(job, rows, way)
    result: dict[str, Any] = {"name": way, "kind": KINDS.get(way, ""), "ranks": job.size, "hosts": len(set(hosts))}
    if way in (SAVE, RESTORE):
        finish(job, given, [{**result, "right": interrupted(job, rows, dataset, given)}])
        return
    rows.made(np.arange(rows.batch)).sum()  # memory that the first step would take
    before, sent = memory(), line()[0] if os.path.exists("/sys/class/net/eth0") else 0
    seconds, right = [], []
    for epoch in range(1, given["epochs"] + 1):
        meet(job.comm)
        began = time.monotonic()
        mine = one_epoch(dataset)
        meet(job.comm)
        seconds.append(time.monotonic() - began)
        if way == OURS:
            right.append(as_oracle(job, rows, epoch, mine))
    grown, sent = memory() - before, (line()[0] if os.path.exists("/sys/class/net/eth0") else 0) - sent
    of_all = job.comm.allgather((grown, sent))
    of_host = {host: sum(grown for (grown, _), its in zip(of_all, hosts) if its == host) for host in set(hosts)}
    lines = {host: sent for (_, sent), host in zip(of_all, hosts)}
    data = rows.size * rows.bytes
    result |= {
        "seconds": seconds,
        "source": rows.source.total() / data,
        "memory": max(of_host.values()) / data,
        "line": sum(lines.values()) / data / given["epochs"],
        "right": all(right) if right else None,
    }
    finish(job, given, [result])


if __name__ == "__main__":
    main()
