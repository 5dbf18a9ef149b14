# SPDX-License-Identifier: Apache-2.0
"""Memory of every rank while a global batch is delivered.

Settings: pipelines, rows, row_bytes, prefetch (0: default settings), seconds, keep. `keep`: seconds that a rank keeps
each element, so that the reader is ahead.

A thread measures two values all the time. Private memory is RssAnon. This process's part of shared memory is Pss_Shmem.
There a page that n processes map counts 1/n in each process, so the sum over ranks is the memory of the host.
"""

from __future__ import annotations

import threading
import time

import tensorflow as tf

import horovod_data as hvdata
from ranks.start import finish, meet, start

EVERY = 0.01  # seconds between two measurements
QUICK = 30  # steps in which ranks wait for the pipeline, so that an automatic window is as wide as possible


def field(path: str, name: str) -> int:
    """Bytes, from a line such as `RssAnon:  1234 kB`. 0 if the kernel has no such line."""
    with open(path) as file:
        return next((int(line.split()[1]) << 10 for line in file if line.startswith(name + ":")), 0)


def private() -> int:
    return field("/proc/self/status", "RssAnon")


def shared() -> int:
    return field("/proc/self/smaps_rollup", "Pss_Shmem")


class Peaks(threading.Thread):
    """Records the largest private and shared memory since its start."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.private = self.shared = 0
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._over.wait(EVERY):
            self.private, self.shared = max(self.private, private()), max(self.shared, shared())

    def end(self) -> None:
        self._over.set()
        self.join()


def batches(pipeline: str, rows: int, row_bytes: int) -> tf.data.Dataset:
    """Global batches. The pipeline holds only the batch that it makes, or from which it makes it."""
    numbers = tf.data.Dataset.range(1 << 40)
    shape = [rows, row_bytes // 8]
    if pipeline in ("batch", "messages"):
        dataset = numbers.map(lambda i: tf.fill(shape[1:], i)).batch(rows, drop_remainder=True)
    elif pipeline == "ready-made":
        dataset = tf.data.Dataset.from_tensors(tf.fill(shape, tf.constant(0, tf.int64))).repeat()
    else:  # the dataset that holds the batch is gone when the next one is made
        dataset = numbers.flat_map(lambda i: tf.data.Dataset.from_tensors(tf.fill(shape, i)))
    settings = tf.data.Options()
    settings.experimental_optimization.inject_prefetch = False
    settings.autotune.enabled = False
    return dataset.with_options(settings)


def main() -> None:
    job, given = start()
    window = {"prefetch": given["prefetch"]} if given["prefetch"] else {}

    def deliver(pipeline: str, row_bytes: int, seconds: float) -> int:
        name = f"{pipeline} {row_bytes}"
        elements = iter(
            hvdata.distribute_dataset(
                lambda: batches(pipeline, given["rows"], row_bytes), batch="global", name=name, **window
            )
        )
        for step in range(QUICK + round(seconds / given["keep"])):
            element = next(elements)
            if step >= QUICK:
                time.sleep(given["keep"])
            del element
        return hvdata.stats()[f"{name}/window"]

    results = []
    for pipeline in given["pipelines"]:
        deliver(pipeline, 64, 0.5)  # the first channel has costs that do not depend on its size
        meet(job.comm)
        before = private(), shared()
        peaks = Peaks()
        widest = deliver(pipeline, given["row_bytes"], given["seconds"])
        meet(job.comm)
        peaks.end()
        resident = field("/proc/self/status", "VmHWM")
        told = job.comm.allgather((peaks.private - before[0], peaks.shared - before[1], resident, widest))
        results += [
            {
                "rank": rank,
                "pipeline": pipeline,
                "prefetch": given["prefetch"],
                "widest": widest,
                "private": own,
                "shared": ours,
                "resident": most,
            }
            for rank, (own, ours, most, widest) in enumerate(told)
        ]
    finish(job, given, results)


if __name__ == "__main__":
    main()
