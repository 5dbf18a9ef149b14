# SPDX-License-Identifier: Apache-2.0
"""A dataset function with a parameter `epoch` on dedicated readers, of which there may be several: each makes its own
part."""

import pytest
import tensorflow as tf
from together import results

pytestmark = [
    pytest.mark.world(np=2, readers=1),
    pytest.mark.readers(1, 2),
    pytest.mark.ranks(2, 3),
    pytest.mark.limit(120),
]


def test_each_reader_is_told_the_epoch(hvdata, comm):
    seen = []
    trainers = comm.size - hvdata.num_readers()

    def make(epoch, context):
        seen.append(epoch)
        first = 1000 * epoch + 100 * context.input_pipeline_id
        return tf.data.Dataset.range(first, first + 2 * trainers)

    dataset = hvdata.distribute_dataset(make, batch="per_rank")
    got = results(comm, lambda: [[int(x) for x in dataset] for _ in range(3)] if hvdata.is_trainer() else None)
    got = [mine for mine in got if mine is not None]
    for epoch in (1, 2, 3):
        want = sorted(
            1000 * epoch + 100 * reader + i for reader in range(hvdata.num_readers()) for i in range(2 * trainers)
        )
        assert sorted(x for mine in got for x in mine[epoch - 1]) == want
    calls = [[1, 2, 3] if hvdata.is_reader() else []]
    assert comm.allgather(seen == calls[0]) == [True] * comm.size
