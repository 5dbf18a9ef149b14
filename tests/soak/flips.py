# SPDX-License-Identifier: Apache-2.0
"""A thousand bytes that change while batches lie in memory: each is to be found before its batch is handed out.

    python tests/soak/flips.py [--flips 1000] [--ranks 3] [--seed 1] [--mpirun mpirun]

A third each in shared memory, in messages and inside headers. One byte of the next batch of one rank is changed, wherever it lies at
that moment, in a process of the job. Where it lies nowhere any more, or not yet, that is no flip and another one is drawn. Every
rank must then get an error that names the unlucky rank and its step, and no batch with another byte in it. Status 1: not so.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))
CHANNELS = 10  # a flip in each at once: to look through a process's memory takes longer than anything else
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
        """What the error of these steps says, if there is one."""
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
        victims = [
            (drawn.randrange(ranks), drawn.randrange(1, 7), drawn.randrange(1, 6)) for _ in datasets
        ]  # rank, step, byte
        iterators = [iter(dataset) for dataset in datasets]
        for it, (_, step, _) in zip(iterators, victims):
            for _ in range(step):
                next(it)
        time.sleep(0.05)  # for what comes next to lie in memory
        MPI.COMM_WORLD.Barrier()
        flip(
            {
                (CHANNELS * epoch + channel, step * ranks + unlucky): byte
                for channel, (unlucky, step, byte) in enumerate(victims)
            }
        )
        MPI.COMM_WORLD.Barrier()
        said = [
            rest_of(
                it,
                step,
                lambda i, channel=channel: mark(CHANNELS * epoch + channel, i * ranks + mine).ljust(size, b"\0"),
            )
            for channel, (it, (_, step, _)) in enumerate(zip(iterators, victims))
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mpirun", default="mpirun")
    arguments = parser.parse_args()
    from ranks.launch import DEFAULTS

    for number, way in enumerate(WAYS):
        flips = arguments.flips * (number + 1) // len(WAYS) - arguments.flips * number // len(WAYS)
        env = {**DEFAULTS, **os.environ, "HVDATA_FLIPS": f"{flips} {arguments.seed} {way}"}
        if way != "inline":
            env["HOROVOD_DATA_PAYLOAD"] = way
        done = subprocess.run(
            [*shlex.split(arguments.mpirun), "-np", str(arguments.ranks), sys.executable, __file__],
            env=env,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            print(done.stderr[-5000:], file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    if "HVDATA_FLIPS" in os.environ:
        count, seed, way = os.environ["HVDATA_FLIPS"].split()
        every_rank(int(count), int(seed), way)
    else:
        sys.exit(main())
