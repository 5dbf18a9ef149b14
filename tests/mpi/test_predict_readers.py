# SPDX-License-Identifier: Apache-2.0
"""hvdata.predict with several readers: each row's outputs come once, whoever reads it."""

import numpy as np
import pytest
import tensorflow as tf
from together import results

pytestmark = [pytest.mark.world(np=1, readers=2), pytest.mark.readers(2, 3), pytest.mark.limit(120)]


@pytest.mark.parametrize("batch", [4, 7])
def test_a_function_for_all_readers(hvdata, comm, batch):
    """The readers divide the dataset's elements. The rows come in the order of the dataset."""
    got = results(comm, lambda: hvdata.predict(lambda x: x * 2, lambda: tf.data.Dataset.range(53).batch(batch)))
    assert got[0].tolist() == [2 * i for i in range(53)]
    assert got[1:] == [None] * (comm.size - 1)


def test_a_dataset_on_all_readers(hvdata, comm):
    got = results(
        comm, lambda: hvdata.predict(lambda x: x, tf.data.Dataset.range(31).batch(4) if hvdata.is_reader() else None)
    )
    assert got[0].tolist() == list(range(31))


def test_batches_of_ranks(hvdata, comm):
    """Each row comes once. A step has elements of one reader."""
    got = results(
        comm, lambda: hvdata.predict(lambda x: x, lambda: tf.data.Dataset.range(53).batch(3), batch="per_rank")
    )
    assert sorted(got[0].tolist()) == list(range(53))


def test_files(hvdata, comm, tmp_path):
    folder = comm.bcast(str(tmp_path), 0)
    paths = [f"{folder}/{i}" for i in range(5)]
    if comm.rank == 0:
        for i, path in enumerate(paths):
            with open(path, "w") as file:
                file.writelines(f"{i}-{line}\n" for line in range(4))
    comm.barrier()
    got = results(
        comm, lambda: hvdata.predict(tf.strings.upper, lambda: tf.data.TextLineDataset(paths).batch(3), name="files")
    )
    assert sorted(got[0].tolist()) == sorted(b"%d-%d" % (i, line) for i in range(5) for line in range(4))


@pytest.mark.parametrize("kind", ["position", "name"])
def test_a_function_that_gives_each_its_own(hvdata, comm, kind):
    def sharded(context):
        return tf.data.Dataset.range(40).shard(context.num_input_pipelines, context.input_pipeline_id).batch(3)

    def by_name(*, context):
        return sharded(context)

    got = results(comm, lambda: hvdata.predict(lambda x: x, sharded if kind == "position" else by_name))
    assert sorted(got[0].tolist()) == list(range(40)) and got[0].dtype == np.int64
