# SPDX-License-Identifier: Apache-2.0
"""Several processes that only read, each its own files.

    HOROVOD_DATA_READERS=2 mpirun -np 4 python examples/several_readers.py             2 ranks train, 2 processes read
    HOROVOD_DATA_READERS_PER_NODE=1 mpirun -np 3 python examples/several_readers.py    every host has its own reader
    mpirun -np 2 python examples/several_readers.py                                    the same script: rank 0 reads

Only one process reads a file, and each line of the file reaches one rank.
"""

import sys
import tempfile
from pathlib import Path

import horovod.tensorflow as hvd
import tensorflow as tf

import horovod_data as hvdata

FILES, LINES = 6, 40
folder = tempfile.TemporaryDirectory()  # stands for files that every reader can open


def write_files() -> None:
    for file in range(FILES):
        text = "".join(f"{file} {line}\n" for line in range(LINES))
        Path(folder.name, f"{file}.txt").write_text(text, encoding="utf-8")


def lines(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Called on every reader, for its part of the files."""
    paths = tf.data.Dataset.list_files(f"{folder.name}/*.txt", shuffle=False)
    mine = paths.shard(context.num_input_pipelines, context.input_pipeline_id)
    return mine.interleave(tf.data.TextLineDataset).batch(8)


hvdata.init()
if hvdata.is_reader():
    write_files()
dataset = hvdata.distribute_dataset(lines, batch="per_rank", remainder="partial", name="lines")
hvdata.serve()  # dedicated readers stay here

mine = [line.decode() for batch in dataset for line in batch.numpy()]

everybody = hvd.allgather_object(mine)
if sorted(sum(everybody, [])) != sorted(f"{file} {line}" for file in range(FILES) for line in range(LINES)):
    sys.exit(f"not every line came exactly once: {everybody}")
if hvd.rank() == 0:
    print(
        f"{hvdata.num_readers()} reader(s); lines on each rank: {[len(one) for one in everybody]}, each of {FILES * LINES} once"
    )
