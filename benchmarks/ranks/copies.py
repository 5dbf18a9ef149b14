# SPDX-License-Identifier: Apache-2.0
"""The cost of a batch on its way, with a copy and without, compared with memcpy.

Settings: pipelines, bytes (of one rank's batch, a list), window (bytes). Two ranks; rank 0 reads and trains. Results:

- `deal`: seconds in which the reader cut, copied and sent a batch, by the engine's clocks.
- `receive`: seconds in which a rank made tensors of it, by the engine's clocks.
- `memcpy`: seconds of a copy of the same bytes on the reader, while the other rank sleeps. It is measured with one
  thread, and with as many threads as the engine uses. Targets go round over the window's memory, as batches on their
  way do. Sources go round over the same number of bytes.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import os
import time
from typing import Any

import numpy as np
import tensorflow as tf

import horovod_data as hvdata
from ranks.setting import ROWS
from ranks.start import finish, meet, start

# of the engine's copies: the most threads, and the bytes from which it uses several
MOST_THREADS, PARALLEL = 4, 8 << 20


def batches(pipeline: str, size: int) -> tf.data.Dataset:
    """Elements of `size` bytes."""
    shape = [ROWS, size // (4 * ROWS)]
    if pipeline == "batch":  # makes them in shared memory
        return tf.data.Dataset.from_tensors(tf.ones(shape[1:])).repeat().batch(ROWS, drop_remainder=True)
    if pipeline == "generator":
        array = np.ones(shape, np.float32)

        def arrays() -> Any:
            while True:
                yield array

        dataset = tf.data.Dataset.from_generator(arrays, output_signature=tf.TensorSpec(shape, tf.float32))
    else:
        whole = tf.data.Dataset.from_tensors(0).repeat()
        dataset = whole.flat_map(lambda i: tf.data.Dataset.from_tensors(tf.fill(shape, tf.cast(i, tf.float32))))
    # so that the pipeline does not make the next element during the copy, which needs the memory bandwidth
    alone = tf.data.Options()
    alone.experimental_optimization.inject_prefetch = False
    return dataset.with_options(alone)


class Memcpy:
    """Copies of `size` bytes. Each copy goes from the next batch to the next place."""

    def __init__(self, size: int, window: int, threads: int) -> None:
        self._size, self._count = size, max(2, window // size)
        self._sources = np.ones(self._count * size, np.uint8)
        self._targets = np.zeros(self._count * size, np.uint8)
        self._threads = threads
        self._pool = concurrent.futures.ThreadPoolExecutor(threads) if threads > 1 else None

    def seconds(self, copies: int) -> float:
        """The mean seconds of a copy. ctypes lets other threads run meanwhile."""
        part = self._size // self._threads
        source, target = self._sources.ctypes.data, self._targets.ctypes.data
        began = time.perf_counter()
        for number in range(copies):
            at = number % self._count * self._size
            if self._pool:
                list(
                    self._pool.map(
                        lambda i: ctypes.memmove(target + at + i * part, source + at + i * part, part),
                        range(self._threads),
                    )
                )
            else:
                ctypes.memmove(target + at, source + at, self._size)
        return (time.perf_counter() - began) / copies

    def close(self) -> None:
        if self._pool:
            self._pool.shutdown()


def times(name: str) -> dict[str, float]:
    told = hvdata.stats()
    return {what: told[f"{name}/{what}_seconds"] for what in ("deal", "receive")} | {
        "copied": told["payload_bytes_copied_to_arena"],
        "refused": told["arena_refusals"],
    }


def main() -> None:
    job, given = start()
    threads = min(MOST_THREADS, len(os.sched_getaffinity(0)))
    results = []
    for pipeline in given["pipelines"]:
        for size in given["bytes"]:
            name = f"{pipeline}{size}"
            elements = iter(hvdata.distribute_dataset(lambda: batches(pipeline, size), batch="per_rank", name=name))
            memcpys = {
                count: Memcpy(size, given["window"], count)
                for count in ((1, threads) if size >= PARALLEL and threads > 1 else (1,))
            }
            for _ in range(8):
                next(elements)
            meet(job.comm)
            began = time.perf_counter()
            for _ in range(4):
                next(elements)
            took = job.comm.bcast((time.perf_counter() - began) / 4, root=0)
            steps = max(8, min(2000, round(given["seconds"] / max(took, 1e-6))))
            pause = took  # otherwise the loops of two ranks would take the processors from the copies
            rounds: dict[str, list[float]] = {
                what: [] for what in ("deal", "receive", "step", "memcpy", "copied", "refused")
            }
            for turn in range(1 + given["rounds"]):  # the first warms up
                before = times(name)
                meet(job.comm)
                began = time.perf_counter()
                for _ in range(steps):
                    element = next(elements)
                    view = memoryview(element)
                    view[0, 0], view[-1, -1]
                    time.sleep(pause)
                took = time.perf_counter() - began
                del element, view
                meet(job.comm)
                spent = {what: value - before[what] for what, value in times(name).items()}
                spent["memcpy"] = (
                    min(memcpy.seconds(max(2, min(steps, (256 << 20) // size))) for memcpy in memcpys.values())
                    if job.reads
                    else 0.0
                )
                meet(job.comm)
                told = job.comm.allgather((took, spent["receive"]))
                if turn:
                    elements_dealt = steps * job.size
                    rounds["deal"].append(spent["deal"] / elements_dealt)
                    rounds["receive"].append(max(receive for _, receive in told) / steps)
                    rounds["step"].append(max(took for took, _ in told) / steps)
                    rounds["memcpy"].append(spent["memcpy"])
                    rounds["copied"].append(spent["copied"] / (elements_dealt * size))
                    rounds["refused"].append(spent["refused"])
            for memcpy in memcpys.values():
                memcpy.close()
            del elements, memcpys
            results.append({"pipeline": pipeline, "bytes": size, "ranks": job.size, "steps": steps, **rounds})
    finish(job, given, results)


if __name__ == "__main__":
    main()
