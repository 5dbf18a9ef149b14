# SPDX-License-Identifier: Apache-2.0
"""prefetch="auto": a window that grows while it helps, bounded in bytes. It never changes order, rows or steps."""

import math
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
    """TensorFlow adds no prefetch to the reader's pipeline."""
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
    """A number stays what it is."""
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
        time.sleep(0.05)  # room for the reader to run too far
        # Beside the window, one large step was sent before its size was known, and one is with the pipeline.
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
        comm.Barrier()  # else the quick ones might have had all before the slow one begins
        for x in it:
            got.append(int(x))
            time.sleep(0.03 if comm.rank == slow else 0.003)
            widest = max(widest, window(hvdata))
        return got, widest

    walked = results(comm, walk)
    assert sorted(sum((got for got, _ in walked), [])) == list(range(n))
    assert walked[slow][1] == 2


@pytest.mark.slow
@pytest.mark.limit(120)
@pytest.mark.ranks(2, 3, 4)
def test_dynamic_gives_a_slow_rank_no_more_than_its_part_of_a_wide_window(hvdata, comm):
    """Ranks take 0.2 ms or 2 ms. The fast ranks have wide windows; the slow one holds two elements and a tenth of such
    a window."""
    n, slow, faster = 400 * comm.size, comm.size - 1, 10
    ds = distribute(hvdata, slowly(n, 0.0004), schedule="dynamic")

    def walk():
        it = iter(ds)
        took, widest = [(time.monotonic(), int(next(it)))], window(hvdata)
        comm.Barrier()
        for x in it:
            took.append((time.monotonic(), int(x)))
            time.sleep(0.0002 * (faster if comm.rank == slow else 1))
            widest = max(widest, window(hvdata))
        return took, widest

    walked = results(comm, walk)
    assert sorted(x for took, _ in walked for _, x in took) == list(range(n))
    wide = max(widest for rank, (_, widest) in enumerate(walked) if rank != slow)
    if wide <= 4:
        pytest.skip("the machine is so busy that quick ranks are slow")
    # Elements are dealt in order. So when a quick rank takes one, earlier ones that the slow rank takes later lie with the
    # slow rank. The last elements are left out, because they may be recalled.
    quick = sorted(
        moment for rank, (took, _) in enumerate(walked) if rank != slow for moment in took if moment[1] < 0.7 * n
    )
    mine = walked[slow][0]
    held = [sum(at > now and x < element for at, x in mine) for now, element in quick[:: max(1, len(quick) // 300)]]
    assert max(held) <= 2 + math.ceil(wide / faster) + 1  # that it has taken already, and not noted


class Slow(Counted):
    """A slow pipeline: ranks wait for it, so windows grow."""

    def __call__(self):
        for i in super().__call__():
            time.sleep(0.001)
            yield i


@pytest.mark.slow
@pytest.mark.limit(120)
@pytest.mark.alone(HOROVOD_DATA_PREFETCH_MB="1")
@pytest.mark.ranks(2, 3)
def test_the_environment_bounds_the_bytes(hvdata, comm):
    """Elements have 128 KiB. 1 MiB holds a few steps of all ranks. prefetch_mb=64 at the call allows more."""
    size, n, taken = 128 << 10, 200, 90
    most = {mib: min(64, (mib << 20) // (size * comm.size)) for mib in (1, 64)}

    def ahead(**arguments):
        """The steps that the reader is ahead of the ranks, after some time."""
        source = Slow(n * comm.size)
        ds = source.dataset().map(lambda x: tf.fill([size], tf.cast(x % 100, tf.uint8)))
        it = iter(distribute(hvdata, unbuffered(ds), **arguments))
        results(comm, lambda: [int(next(it)[0]) for _ in range(taken)])
        time.sleep(1)
        lead = -(-comm.bcast(source.yields) // comm.size) - taken
        results(comm, lambda: len(list(it)))
        return lead

    narrow, wide = ahead(), ahead(prefetch_mb=64)
    assert narrow <= most[1] + 2 < wide <= most[64] + 2


@pytest.mark.parametrize("arguments, kind, text", [
    ({"prefetch_mb": 0}, ValueError, "prefetch_mb=0 is not a size in MiB of 0.01 or more."),
    ({"prefetch_mb": float("nan")}, ValueError, "prefetch_mb=nan is not a size in MiB of 0.01 or more."),
    ({"prefetch_mb": 10**400}, ValueError, "prefetch_mb=inf is not a size in MiB of 0.01 or more."),
    ({"prefetch_mb": -(10**5000)}, ValueError, "prefetch_mb=-inf is not a size in MiB of 0.01 or more."),
    ({"prefetch_mb": "8"}, TypeError, "prefetch_mb must be a number of MiB, not '8'."),
    ({"prefetch_mb": True}, TypeError, "prefetch_mb must be a number of MiB, not True."),
    ({"prefetch_mb": 8, "prefetch": 3}, ValueError, f'prefetch_mb=8 bounds prefetch="auto", but {NUMBER}'),
    ({"prefetch": "Auto"}, TypeError, "prefetch='Auto' is not a whole number. It counts steps: 1 or more; \"auto\" stands for as "
     "many as help."),
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
