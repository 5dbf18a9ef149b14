# SPDX-License-Identifier: Apache-2.0
"""The processor time of processes that wait. Settings: pause (seconds). Two ranks; rank 0 reads."""

from __future__ import annotations

import time
from collections.abc import Callable

import tensorflow as tf

import horovod_data as hvdata
from ranks.setting import Batch
from ranks.start import cpu_seconds, finish, meet, start

SETTLE = 1.0  # seconds until a reader has filled its window and TensorFlow's threads are idle


def used(wait: Callable[[], object]) -> float:
    """The share of one core that this process uses during `wait`."""
    cpu, began = cpu_seconds(), time.monotonic()
    wait()
    return (cpu_seconds() - cpu) / (time.monotonic() - began)


def main() -> None:
    job, given = start()
    pause = given["pause"]

    def slow() -> tf.data.Dataset:
        """A pipeline that yields one step, sleeps, and yields another."""

        def element(i: tf.Tensor) -> tf.Tensor:
            tf.py_function(lambda: time.sleep(pause + SETTLE), [], [])
            return i

        elements = tf.data.Dataset.range(job.size)
        return elements.concatenate(elements.take(1).map(element)).concatenate(elements.skip(1))

    shares = {}
    meet(job.comm)
    time.sleep(SETTLE)
    shares["rest"] = used(lambda: time.sleep(pause))

    waiting = iter(hvdata.distribute_dataset(slow, batch="per_rank"))
    next(waiting)
    time.sleep(SETTLE)
    shares["data"] = used(lambda: next(waiting))

    full = iter(hvdata.distribute_dataset(Batch(1 << 20).own, batch="per_rank"))
    next(full)
    meet(job.comm)
    time.sleep(SETTLE)
    shares["credit"] = used(lambda: time.sleep(pause))

    told = job.comm.allgather(shares)
    del waiting, full
    finish(job, given, [{"role": "reader" if rank == 0 else "trainer", **shares} for rank, shares in enumerate(told)])


if __name__ == "__main__":
    main()
