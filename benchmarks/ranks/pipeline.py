# SPDX-License-Identifier: Apache-2.0
"""A pipeline from files, delivered, and alone in one process. Also counts how often the job reads the files.

Settings: batches, rows, row_bytes, parallel (calls of the parser at once; 0: no parallel calls), directory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

import horovod_data as hvdata
from horovod_data.observe.stats import stats
from ranks.in_step import InStep
from ranks.setting import Job
from ranks.start import finish, meet, start
from ranks.turns import Contestant, Steps, take_turns

FILES = 4
APART = (2, 16)  # steps between ranks that only iterate


def write(directory: Path, rows: int, row_bytes: int) -> None:
    """`rows` examples of random bytes, in FILES files."""
    payload = tf.random.uniform([row_bytes], maxval=256, dtype=tf.int32, seed=1).numpy().astype("uint8").tobytes()
    example = tf.train.Example(
        features=tf.train.Features(feature={"image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[payload]))})
    ).SerializeToString()
    for number in range(FILES):
        with tf.io.TFRecordWriter(str(directory / f"{number}.tfrecord")) as file:
            for _ in range(rows // FILES):
                file.write(example)


def pipeline(given: dict[str, Any], repeat: bool, shard: tuple[int, int] | None = None) -> tf.data.Dataset:
    """TFRecord, parse_example, decode_raw, batch. Sharding comes after the records, where it saves the most work."""

    def parse(record: tf.Tensor) -> tf.Tensor:
        features = tf.io.parse_single_example(record, {"image": tf.io.FixedLenFeature([], tf.string)})
        return tf.reshape(tf.io.decode_raw(features["image"], tf.uint8), [given["row_bytes"]])

    files = tf.data.Dataset.from_tensor_slices([str(p) for p in sorted(Path(given["directory"]).glob("*.tfrecord"))])
    records = tf.data.TFRecordDataset(files.repeat() if repeat else files)
    if shard:
        records = records.shard(*shard)
    return records.map(parse, num_parallel_calls=given["parallel"] or None).batch(given["rows"], drop_remainder=True)


def alone(job: Job, dataset: tf.data.Dataset) -> Steps | None:
    return (element for element in dataset) if job.reads else None


def steps(dataset: tf.data.Dataset) -> Steps:
    yield from dataset


def only_iterate(job: Job, given: dict[str, Any], apart: int) -> Steps:
    """The pipeline runs on the reader. Every rank takes an element for each of its elements, and nothing is delivered.

    The reader has two threads, one for the pipeline and one for its loop, as in horovod_data.
    """
    ranks = InStep(job.comm)
    mine = tf.zeros([given["rows"] // job.size, given["row_bytes"]], tf.uint8)
    elements = zip(
        tf.data.Dataset.from_tensors(mine).repeat(),
        pipeline(given, True).prefetch(apart) if job.reads else itertools.repeat(None),
    )
    for step, (element, _) in enumerate(elements):
        ranks.wait(step - apart)
        ranks.reach(step)
        yield element


def characters_read() -> int:
    """The bytes that this process has asked the kernel to read, mainly from files."""
    with open("/proc/self/io") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("rchar"))


def counted() -> dict[str, int]:
    return {"read": characters_read(), **stats()}


def epoch(job: Job, make: Callable[[], tf.data.Dataset]) -> dict[str, int]:
    """The sum over all ranks of what they counted while every rank iterates to the end."""
    dataset = make()
    meet(job.comm)
    before = counted()
    for _ in dataset:
        pass
    mine = counted()
    meet(job.comm)
    told = job.comm.allgather({name: count - before[name] for name, count in mine.items()})
    return {name: sum(counts[name] for counts in told) for name in mine}


def main() -> None:
    job, given = start()
    if job.reads:
        write(Path(given["directory"]), given["batches"] * given["rows"], given["row_bytes"])
    meet(job.comm)
    distribute = hvdata.distribute_dataset
    shard = (job.size, job.rank)
    # (elements of the pipeline in a step, steps)
    ways: dict[str, tuple[int, Steps | None]] = {
        "pipeline alone": (1, alone(job, pipeline(given, True))),
        "horovod_data, per_rank": (
            job.size,
            steps(distribute(lambda: pipeline(given, True), batch="per_rank")),
        ),
        "horovod_data, global": (1, steps(distribute(lambda: pipeline(given, True), batch="global"))),
        "all read + shard": (job.size, steps(pipeline(given, True, shard))),
    }
    for apart in APART:
        ways[f"limit: ranks only iterate, {apart} steps apart"] = 1, only_iterate(job, given, apart)
    contestants = [Contestant(job, made, ahead=max(APART)) for _, made in ways.values()]
    take_turns(job, contestants, given["rounds"], given["seconds"])
    results = [
        {"name": name, "ranks": job.size, "elements_per_step": elements, **contestant.told()}
        for (name, (elements, _)), contestant in zip(ways.items(), contestants)
    ]

    dataset_bytes = sum(path.stat().st_size for path in Path(given["directory"]).glob("*.tfrecord"))
    source = {
        "pipeline alone": lambda: pipeline(given, False) if job.reads else tf.data.Dataset.range(0),
        "horovod_data, per_rank": lambda: distribute(lambda: pipeline(given, False), batch="per_rank"),
        "horovod_data, global": lambda: distribute(lambda: pipeline(given, False), batch="global"),
        "all read + shard": lambda: pipeline(given, False, shard),
    }
    for result in results:
        if result["name"] not in source:
            result["epoch"] = result["times_read"] = None
            continue
        result["epoch"] = epoch(job, source[result["name"]])
        result["times_read"] = result["epoch"]["read"] / dataset_bytes
    finish(job, given, results)


if __name__ == "__main__":
    main()
