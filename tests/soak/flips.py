# SPDX-License-Identifier: Apache-2.0
"""Changes a thousand bytes of batches in memory. Each change must be found before its batch is handed out.

    python tests/soak/flips.py [--flips 1000] [--ranks 3] [--seed 1] [--mpirun mpirun]

A third of the changes is in shared memory, a third in messages, and a third inside headers. Each changes one byte of
one rank's next batch. The search goes through the memory of all processes of the job. If the batch is nowhere, another
batch is drawn.

Every rank must get an error that names the rank and its step, and no rank gets a changed batch. Status 1: a change
without that error.
"""

from __future__ import annotations

import functools
import random
import sys
import time
from collections.abc import Callable, Iterator

import proof

CHANNELS = 10  # each has a flip in one search, because the search through the processes takes longest
WAYS = {"arena": 100_000, "message": 100_000, "inline": 64}  # bytes of a batch


def every_rank(flips: int, seed: int, way: str) -> None:
    import tensorflow as tf
    from flipping import flip, mark
    from mpi4py import MPI

    import horovod_data as hvdata

    hvdata.init()
    ranks, mine, size = hvdata.size(), hvdata.rank(), WAYS[way]

    def make(channel: int, epoch: int) -> tf.data.Dataset:
        def row(i: tf.Tensor) -> tf.Tensor:
            begin = tf.strings.reduce_join(["<", str(CHANNELS * epoch + channel), "-", tf.as_string(i), "-marked->"])
            return tf.concat(
                [tf.io.decode_raw(begin, tf.uint8), tf.zeros([size - tf.strings.length(begin)], tf.uint8)], 0
            )

        return tf.data.Dataset.range(8 * ranks).map(row)

    def rest_of(it: Iterator[tf.Tensor], step: int, right: Callable[[int], bytes]) -> str:
        """Takes the rest of the epoch. Returns the text of its error, or nothing."""
        try:
            for taken, batch in enumerate(it, step):
                if batch.numpy().tobytes() != right(taken):
                    raise AssertionError(f"rank {mine} got another batch in step {taken} than the pipeline's")
        except tf.errors.DataLossError as error:
            return str(error.message)
        return ""

    datasets = [
        hvdata.distribute_dataset(
            functools.partial(make, channel), batch="per_rank", prefetch=4, name=f"flips{channel}", verify=True
        )
        for channel in range(CHANNELS)
    ]
    drawn = random.Random(f"{seed} {way}")
    found = draws = 0
    while found < flips:
        epoch = draws // CHANNELS + 1
        # Rank, step and byte, in each channel.
        victims = [(drawn.randrange(ranks), drawn.randrange(1, 7), drawn.randrange(1, 6)) for _ in datasets]
        iterators = [iter(dataset) for dataset in datasets]
        for it, (_, step, _) in zip(iterators, victims):
            for _ in range(step):
                next(it)
        time.sleep(0.05)  # until the next batches lie in memory
        MPI.COMM_WORLD.Barrier()
        numbers = range(CHANNELS * epoch, CHANNELS * (epoch + 1))  # in the marks
        flip({(number, step * ranks + rank): byte for number, (rank, step, byte) in zip(numbers, victims)})
        MPI.COMM_WORLD.Barrier()
        said = [
            rest_of(it, step, lambda i, number=number: mark(number, i * ranks + mine).ljust(size, b"\0"))
            for number, it, (_, step, _) in zip(numbers, iterators, victims)
        ]
        del iterators, it
        for (unlucky, step, _), *everybody in zip(victims, *MPI.COMM_WORLD.allgather(said)):
            draws += 1
            if not any(everybody):
                continue
            found += 1
            for rank, text in enumerate(everybody):
                if f"rank {unlucky} on" not in text or f"step {step}" not in text:
                    raise AssertionError(f"a flip of rank {unlucky} in step {step}: rank {rank} was told {text!r}")
    if mine == 0:
        print(
            f"[flips] {found:,} flipped bytes, way {way}: all found, by rank and step; {draws - found:,} draws met nothing",
            flush=True,
        )
    hvdata.shutdown()


def jobs(flips: int, ranks: int, seed: int) -> Iterator[proof.Job]:
    for number, way in enumerate(WAYS):
        part = flips * (number + 1) // len(WAYS) - flips * number // len(WAYS)
        yield ranks, [part, seed, way], {} if way == "inline" else {"HOROVOD_DATA_PAYLOAD": way}


if __name__ == "__main__":
    sys.exit(proof.main(__doc__, __file__, every_rank, jobs, flips=1000, ranks=3, seed=1))
