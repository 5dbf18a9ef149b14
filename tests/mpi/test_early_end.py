# SPDX-License-Identifier: Apache-2.0
"""A rank leaves its loop early. The others finish, and the next epoch starts clean."""

import gc
import time

import pytest
import tensorflow as tf
from together import Counted, dealt_to_all, elements, generated, numbers, results

pytestmark = pytest.mark.world(np=4)

STEPS = 12


@pytest.fixture(params=["first", "last"])
def quitter(request, comm):
    """The reader's rank, and another."""
    return 0 if request.param == "first" else comm.size - 1


def want(comm, n=STEPS):
    return dealt_to_all(comm, range(n * comm.size))


def walk(ds, steps=None):
    got = []
    for x in ds:
        got.append(int(x))
        if len(got) == steps:
            break
    return got


@pytest.mark.parametrize("size", ["small", "large"])
def test_static_others_finish(hvdata, comm, quitter, size):
    """The shares of the leaving rank are discarded, also large ones that are under way. The others get their own."""
    source = Counted(STEPS * comm.size)
    ds = source.dataset()
    if size == "large":
        ds = ds.map(lambda i: tf.fill([1 << 20], tf.cast(i, tf.uint8)))
    ds = hvdata.distribute_dataset(ds, batch="per_rank", prefetch=2)
    if size == "large":
        ds = ds.map(lambda x: tf.where(tf.reduce_min(x) == tf.reduce_max(x), x[0], 255))
    for _ in range(2):
        got = results(comm, lambda: walk(ds, 3 if comm.rank == quitter else None))
        assert got == [steps[:3] if rank == quitter else steps for rank, steps in enumerate(want(comm))]
        assert results(comm, lambda: walk(ds)) == want(comm)
    assert comm.bcast(source.starts) == 4


def test_dynamic_nothing_is_lost(hvdata, comm, quitter):
    """The elements that the leaving rank has not taken go to the others."""
    n = STEPS * comm.size
    ds = numbers(hvdata, n, schedule="dynamic", prefetch=4)
    for _ in range(2):
        taken = sorted(sum(results(comm, lambda: walk(ds, 1 if comm.rank == quitter else None)), []))
        assert taken == (list(range(n)) if comm.size > 1 else [0])
        assert sorted(sum(elements(comm, ds), [])) == list(range(n))


@pytest.mark.slow
def test_an_iterator_destroyed_while_it_waits(hvdata, comm):
    """A prefetch stage waits in our GetNext when the iterator is destroyed. GetNext returns, although the reader
    sleeps."""

    naps = [5.0]  # in the first epoch

    def slow():
        yield from range(comm.size)
        time.sleep(naps.pop() if naps else 0)
        yield from range(comm.size, 2 * comm.size)

    source = generated(slow)
    ds = hvdata.distribute_dataset(source, batch="per_rank", prefetch=1)

    def run():
        it = iter(ds.prefetch(2))
        first = int(next(it))
        gc.collect()
        time.sleep(0.3)  # the prefetching thread is now waiting for step 1
        began = time.monotonic()
        del it
        gc.collect()
        return first, time.monotonic() - began

    for rank, (first, seconds) in enumerate(results(comm, run)):
        assert first == rank
        assert seconds < 3, f"rank {rank} waited {seconds:.1f} s for its iterator to go"
    assert elements(comm, ds) == want(comm, 2)
