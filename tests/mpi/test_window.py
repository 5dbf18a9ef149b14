# SPDX-License-Identifier: Apache-2.0
"""prefetch="auto" makes the window grow while that helps, up to a size in bytes.

Order, rows and steps stay the same.
"""

import time

import pytest
import tensorflow as tf
from together import Counted, dealt_to_all, elements, outcomes, results

pytestmark = pytest.mark.world(np=3)

LARGE = 256 << 10


def distribute(hvdata, dataset, **arguments):
    return hvdata.distribute_dataset(dataset, **{"batch": "per_rank", "name": "window", **arguments})


def window(hvdata):
    return hvdata.stats()["window/window"]


def unbuffered(ds):
    """Returns the dataset with an option: TensorFlow adds no prefetch to the reader's pipeline."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return ds.with_options(options)


def slowly(n, seconds):
    def wait(x):
        time.sleep(seconds)
        return x

    return tf.data.Dataset.range(n).map(lambda x: tf.ensure_shape(tf.numpy_function(wait, [x], tf.int64), []))


@pytest.mark.parametrize("prefetch", ["auto", 3])
def test_small_elements_widen_it(hvdata, comm, prefetch):
    """Small elements widen the window only with prefetch="auto"."""
    n = 150 * comm.size
    ds = distribute(hvdata, slowly(n, 0.001), prefetch=prefetch)
    assert elements(comm, ds) == dealt_to_all(comm, range(n))
    windows = results(comm, lambda: window(hvdata))
    assert min(windows) >= 8 if prefetch == "auto" else windows == [3] * comm.size, windows


@pytest.mark.parametrize("steps, megabytes", [(4, 1), (2, 0.01)])
def test_large_elements_keep_to_the_bytes(hvdata, comm, steps, megabytes):
    """The formula of docs/guarantees.md holds: (window + 1) steps. Small elements have widened the window before."""
    small, large = 80 * comm.size, 12 * comm.size
    source = Counted(small + large)
    ds = source.dataset().map(lambda x: tf.fill([LARGE if x >= small else 8], tf.cast(x % 100, tf.uint8)))
    it = iter(distribute(hvdata, unbuffered(ds), prefetch_mb=megabytes * comm.size))
    for _ in range(small // comm.size):
        results(comm, lambda: int(next(it)[0]))
    for taken in range(1, large // comm.size + 1):
        results(comm, lambda: int(next(it)[0]))
        time.sleep(0.05)  # a faulty reader would run too far meanwhile
        # Two steps come on top of the window: one was sent before its size was known, and the pipeline holds one.
        assert comm.bcast(source.yields) - small <= (taken + steps + 2) * comm.size
    assert max(results(comm, lambda: window(hvdata))) <= steps  # on the rank that reads, too
    assert outcomes(comm, lambda: next(it, None) is None) == [True] * comm.size
