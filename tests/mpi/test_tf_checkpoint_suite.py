# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's own checks of saved and restored iterators, on pipelines before and after distribute_dataset."""

import pytest
import tensorflow as tf
from tensorflow.python.data.kernel_tests import checkpoint_test_base
from together import Counted, results

pytestmark = pytest.mark.world(np=1)

STEPS = 4
Data = tf.data.Dataset

# For each name: the reader's pipeline of n elements, and the stages of a rank after it. The stages keep the number of
# elements.
PIPELINES = {
    "range": (Data.range, lambda ds: ds),
    "shuffle": (lambda n: Data.range(n).shuffle(5, seed=3, reshuffle_each_iteration=False), lambda ds: ds),
    "map and prefetch": (
        lambda n: Data.range(n).map(lambda x: x + 1, num_parallel_calls=2).prefetch(2),
        lambda ds: ds.map(lambda x: 2 * x, num_parallel_calls=2).prefetch(3),
    ),
    "interleave": (
        lambda n: Data.range(n // STEPS).interleave(
            lambda i: Data.range(STEPS).map(lambda k: STEPS * i + k), cycle_length=2
        ),
        lambda ds: ds.map(lambda x: -x),
    ),
    "flat_map": (
        lambda n: Data.range(n // 2).flat_map(lambda i: Data.from_tensors(i).repeat(2)),
        lambda ds: ds.flat_map(Data.from_tensors),
    ),
    "filter": (lambda n: Data.range(2 * n).filter(lambda x: x % 2 == 0), lambda ds: ds.filter(lambda x: x >= 0)),
    "batch": (lambda n: Data.range(3 * n).batch(3), lambda ds: ds.unbatch().batch(3)),
    "concatenate and repeat": (
        lambda n: Data.range(n // 2).concatenate(Data.range(n // 4).repeat(2)),
        lambda ds: ds.skip(0),
    ),
    "text": (
        lambda n: Data.range(n).map(lambda i: {"text": tf.strings.as_string(i), "row": tf.range(i)}),
        lambda ds: ds.map(lambda x: {**x, "sum": tf.reduce_sum(x["row"])}).prefetch(1),
    ),
    "generator": (lambda n: Counted(n).dataset(), lambda ds: ds.take(STEPS)),
}
VERIFY = ["verify_unused_iterator", "verify_fully_used_iterator", "verify_exhausted_iterator", "verify_multiple_breaks"]


@pytest.mark.slow
@pytest.mark.limit(180)
@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_tensorflows_own_checks(hvdata, comm, tmp_path, pipeline):
    source, behind = PIPELINES[pipeline]
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False

    def dataset():
        ds = hvdata.distribute_dataset(lambda: source(STEPS * comm.size), batch="per_rank")
        return behind(ds).with_options(options)

    for verify in VERIFY:
        suite = checkpoint_test_base.CheckpointTestBase()
        suite.get_temp_dir = lambda verify=verify: str(tmp_path / verify)
        results(comm, lambda suite=suite, verify=verify: getattr(suite, verify)(dataset, STEPS))
