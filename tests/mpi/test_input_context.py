# SPDX-License-Identifier: Apache-2.0
"""The dataset function may take a tf.distribute.InputContext, as tf.distribute's own functions do."""

import functools

import pytest
import tensorflow as tf
from together import elements

pytestmark = pytest.mark.world(np=1)


@pytest.fixture(params=["distribute_dataset", "distribute_datasets_from_function"])
def distribute(hvdata, request):
    return getattr(hvdata, request.param)


def test_the_context(hvdata, comm, distribute):
    seen = []

    def function(context):
        each = context.get_per_replica_batch_size(12)
        seen.append(
            (type(context), context.input_pipeline_id, context.num_input_pipelines, context.num_replicas_in_sync)
        )
        return tf.data.Dataset.range(24).shard(context.num_input_pipelines, context.input_pipeline_id).batch(each)

    got = elements(comm, distribute(function, batch="per_rank"))
    assert comm.allgather(seen) == [[(tf.distribute.InputContext, 0, 1, comm.size)]] + [[]] * (comm.size - 1)
    assert [len(step) for steps in got for step in steps] == [12 // comm.size] * (2 * comm.size)


class Callable:
    def __call__(self):
        return tf.data.Dataset.range(4)

    def method(self, context):
        assert context.num_input_pipelines == 1
        return tf.data.Dataset.range(4)


@pytest.mark.parametrize("function", [
    lambda: tf.data.Dataset.range(4),
    lambda context: tf.data.Dataset.range(4),
    lambda n=4: tf.data.Dataset.range(n),  # a default is left alone
    lambda *, context: tf.data.Dataset.range(4 * context.num_input_pipelines),
    functools.partial(lambda n, context: tf.data.Dataset.range(n), 4),
    functools.partial(lambda n: tf.data.Dataset.range(n), 4),
    Callable(), Callable().method,
], ids=["none", "context", "by_name", "default", "partial", "partial_none", "object", "method"])  # fmt: skip
def test_callables(hvdata, comm, function, distribute):
    got = elements(comm, distribute(function, batch="per_rank", remainder="drop", schedule="dynamic"))
    assert len(sum(got, [])) == 4
