# SPDX-License-Identifier: Apache-2.0
"""The cost of taking an element on a rank that trains, if the element has arrived. Settings: bytes (a list), burst.

The rank takes `burst` elements that have had time to arrive, while the reader's rank sleeps. With prefetch=burst no
more elements can arrive meanwhile. Then the reader's rank takes its own elements. The same is done with local datasets.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import tensorflow as tf

import horovod_data as hvdata
from ranks.setting import Batch
from ranks.start import meet, start, tell

ARRIVE = 0.1  # seconds for a burst to arrive
OURS, LOCAL, BARE = "horovod_data", "local dataset", "local dataset, nothing injected"


def bare(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset without the prefetch and the autotuning that TensorFlow adds. No dataset is cheaper."""
    settings = tf.data.Options()
    settings.experimental_optimization.inject_prefetch = False
    settings.autotune.enabled = False
    return dataset.with_options(settings)


def take(elements: Iterator[tf.Tensor], burst: int) -> float:
    """Microseconds for each element."""
    time.sleep(ARRIVE)
    began = time.perf_counter()
    for _ in range(burst):
        next(elements)
    return (time.perf_counter() - began) / burst * 1e6


def main() -> None:
    job, given = start()
    trainer = job.size - 1
    results = []
    for size in given["bytes"]:
        batch = Batch(size)
        ways = {
            OURS: iter(hvdata.distribute_dataset(batch.own, batch="per_rank", prefetch=given["burst"])),
            LOCAL: iter(batch.own()),
            BARE: iter(bare(batch.own())),
        }
        microseconds: dict[str, list[float]] = {name: [] for name in ways}
        for elements in ways.values():
            next(elements)  # because an epoch begins when the reader's own rank asks for an element
        for turn in range(1 + given["rounds"]):  # the first warms up
            for name, elements in ways.items():
                meet(job.comm)
                mine = take(elements, given["burst"]) if job.rank == trainer else 0.0
                meet(job.comm)
                if job.rank != trainer:
                    take(elements, given["burst"])
                if turn:
                    microseconds[name].append(mine)
        results += [{"name": name, "bytes": size, "microseconds": values} for name, values in microseconds.items()]
        ways.clear()
    if job.rank == trainer:
        tell(given, results)
    hvdata.shutdown()


if __name__ == "__main__":
    main()
