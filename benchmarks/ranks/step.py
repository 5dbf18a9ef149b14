# SPDX-License-Identifier: Apache-2.0
"""A training step of pure computation, with delivered batches and with a batch in memory, in turns.

Settings: bytes (a list), milliseconds (of a step, about). One process reads, one trains on one thread, so two cores
  suffice.
"""

from __future__ import annotations

import statistics
import time

import tensorflow as tf

import horovod_data as hvdata
from ranks.setting import Batch
from ranks.start import finish, start

WIDTH = 512
PATIENCE = 3  # times as many steps as other benchmarks, because the difference is small


def main() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    job, given = start()
    delivered = {size: hvdata.distribute_dataset(Batch(size).own, batch="per_rank") for size in given["bytes"]}
    hvdata.serve()

    weights = tf.random.normal([WIDTH, WIDTH]) / WIDTH**0.5

    @tf.function(reduce_retracing=True)
    def step(batch: tf.Tensor, times: tf.Tensor) -> tf.Tensor:
        state = weights + batch[0, 0]
        for _ in tf.range(times):
            state = tf.matmul(state, weights)
        return state[0, 0]

    def seconds(batch: tf.Tensor, times: tf.Tensor) -> float:
        began = time.perf_counter()
        step(batch, times).numpy()
        return time.perf_counter() - began

    memory = {size: tf.random.uniform([32, size // 128]) for size in given["bytes"]}
    some = next(iter(memory.values()))
    seconds(some, tf.constant(10))
    times = tf.constant(max(1, round(10 * given["milliseconds"] / 1e3 / seconds(some, tf.constant(10)))))
    pairs = max(5, round(PATIENCE * given["seconds"] / (given["milliseconds"] / 1e3)))
    results = []
    for size, dataset in delivered.items():
        elements = iter(dataset)
        rounds: dict[str, list[float]] = {"delivered": [], "memory": []}
        for turn in range(1 + given["rounds"]):  # the first warms up
            spent: dict[str, list[float]] = {name: [] for name in rounds}
            for _ in range(
                pairs
            ):  # alternate after each step, because the machine's own pace drifts by more than the difference
                for name, values in spent.items():
                    began = time.perf_counter()
                    step(next(elements) if name == "delivered" else memory[size], times).numpy()
                    values.append(time.perf_counter() - began)
            if turn:
                for name, values in spent.items():
                    rounds[name].append(statistics.fmean(values))
        del elements
        results.append({"bytes": size, **rounds})
    finish(job, given, results)


if __name__ == "__main__":
    main()
