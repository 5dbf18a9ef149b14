# SPDX-License-Identifier: Apache-2.0
"""How many batches per second reach all trainers, if every reader's pipeline needs a fixed time for each batch.

Settings:

- way: "ours", with the readers set in the environment; or "broadcast"
- pace: seconds that a pipeline sleeps for each rank's batch
- bytes: of one rank's batch
- steps: of a round, for all readers together
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import horovod_data as hvdata
from ranks.setting import READER, ROWS, Batch, Job
from ranks.start import meet, start, tell


def paced(dataset: tf.data.Dataset, count: int, pace: float) -> tf.data.Dataset:
    """`count` elements of `dataset`, each after a sleep. It acts as a slow device or decoder that needs no core."""

    def nap(number: np.int64) -> np.int64:
        time.sleep(pace)
        return number

    clock = tf.data.Dataset.range(count).map(lambda i: tf.numpy_function(nap, [i], tf.int64))
    return tf.data.Dataset.zip((clock, dataset)).map(lambda _, element: element)


def ours(batch: Batch, steps: int, pace: float, trainers: int) -> Callable[[], None]:
    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return paced(batch.own(), steps * trainers // context.num_input_pipelines, pace)

    dataset = hvdata.distribute_dataset(make, batch="per_rank")
    hvdata.serve()

    def iterate() -> None:
        for _ in dataset:
            pass

    return iterate


def broadcast(job: Job, batch: Batch, steps: int, pace: float) -> Callable[[], None]:
    import horovod.tensorflow as hvd

    source = paced(batch.whole(job.size), steps, pace * job.size) if job.reads else None
    nothing = tf.zeros([job.size * ROWS, batch.columns])

    def iterate() -> None:
        for whole in source if source is not None else [nothing] * steps:
            hvd.broadcast(whole, root_rank=READER, name="whole")[job.rank * ROWS : (job.rank + 1) * ROWS]

    return iterate


def main() -> None:
    job, given = start(horovod=json.loads(sys.argv[1])["way"] == "broadcast")
    batch = Batch(given["bytes"])
    together = job.comm.Split(int(hvdata.is_trainer()), job.rank)
    trainers = hvdata.size()
    if trainers is None:
        trainers = job.size - hvdata.num_readers()
    if given["way"] == "ours":
        iterate = ours(batch, given["steps"], given["pace"], trainers)
    else:
        iterate = broadcast(job, batch, given["steps"], given["pace"])
    result: dict[str, Any] = {
        "trainers": trainers,
        "readers": hvdata.num_readers(),
        "batches": given["steps"] * trainers,
        "seconds": [],
    }
    for turn in range(1 + given["rounds"]):  # the first warms up
        meet(together)
        began = time.monotonic()
        iterate()
        meet(together)
        if turn:
            result["seconds"].append(time.monotonic() - began)
    if together.rank == 0:
        tell(given, [result])
    hvdata.shutdown()


if __name__ == "__main__":
    main()
