# SPDX-License-Identifier: Apache-2.0
"""prefetch="auto" makes the window grow while that helps, up to a size in bytes.

Order, rows and steps stay the same.
"""

import time

import numpy as np
import pytest
import tensorflow as tf
from checkpoints import rest, restored, saved, take
from together import Counted, dealt_to_all, elements, outcomes, raises_everywhere, results

pytestmark = pytest.mark.world(np=3)

LARGE = 256 << 10
NUMBER = "prefetch=3 says how many steps. Give one of them."


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


@pytest.mark.ranks(2, 3, 4)
def test_dynamic_gives_a_slow_rank_no_more(hvdata, comm):
    """One rank is ten times slower than the others. At most two elements are on their way to it."""
    n, slow = 60 * comm.size, comm.size - 1

    def walk():
        it = iter(distribute(hvdata, tf.data.Dataset.range(n), schedule="dynamic"))
        got, widest = [int(next(it))], window(hvdata)
        comm.Barrier()  # otherwise the fast ranks might take all elements before the slow rank begins
        for x in it:
            got.append(int(x))
            time.sleep(0.03 if comm.rank == slow else 0.003)
            widest = max(widest, window(hvdata))
        return got, widest

    walked = results(comm, walk)
    assert sorted(sum((got for got, _ in walked), [])) == list(range(n))
    assert walked[slow][1] == 2


@pytest.mark.parametrize("arguments, kind, text", [
    ({"prefetch_mb": 0}, ValueError, "prefetch_mb=0 is not a size in MiB of 0.01 or more."),
    ({"prefetch_mb": float("nan")}, ValueError, "prefetch_mb=nan is not a size in MiB of 0.01 or more."),
    ({"prefetch_mb": 10**400}, ValueError, "prefetch_mb=inf is not a size in MiB of 0.01 or more."),
    ({"prefetch_mb": -(10**5000)}, ValueError, "prefetch_mb=-inf is not a size in MiB of 0.01 or more."),
    ({"prefetch_mb": "8"}, TypeError, "prefetch_mb must be a number of MiB, not '8'."),
    ({"prefetch_mb": True}, TypeError, "prefetch_mb must be a number of MiB, not True."),
    ({"prefetch_mb": 8, "prefetch": 3}, ValueError, f'prefetch_mb=8 bounds prefetch="auto", but {NUMBER}'),
    ({"prefetch": "Auto"}, TypeError, "prefetch='Auto' is not a whole number. Use 1 or more steps, or \"auto\"."),
])  # fmt: skip
def test_wrong_values(hvdata, comm, arguments, kind, text):
    for raised in raises_everywhere(comm, lambda: distribute(hvdata, tf.data.Dataset.range(8), **arguments), kind):
        assert text in raised.text


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("other", [{"prefetch_mb": 8}, {"prefetch": 2}])
def test_all_ranks_agree_on_it(hvdata, comm, other):
    mine = other if comm.rank == 1 else {}
    raises_everywhere(comm, lambda: distribute(hvdata, tf.data.Dataset.range(8), **mine), ValueError, "prefetch")


@pytest.mark.parametrize("before, after", [({}, {"prefetch": 3}), ({"prefetch": 5}, {"prefetch_mb": np.float32(0.5)})])
def test_saved_with_one_and_restored_with_another(hvdata, comm, path, before, after):
    numbers = tf.data.Dataset.range(20 * comm.size)
    want = dealt_to_all(comm, range(20 * comm.size))
    it = iter(distribute(hvdata, numbers, **before))
    assert results(comm, lambda: take(it, 7)) == [values[:7] for values in want]
    saved(comm, it, path)
    again = restored(comm, distribute(hvdata, numbers, **after), path)
    assert results(comm, lambda: rest(again)) == [values[7:] for values in want]
