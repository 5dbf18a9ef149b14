# SPDX-License-Identifier: Apache-2.0
"""The dataset composes with tf.data and Python like any other. Every iteration is an epoch."""

import gc
import random
import time

import pytest
import tensorflow as tf
from together import Counted, dealt_to_all, elements, generated, numbers, outcomes, raises_everywhere, results

pytestmark = pytest.mark.world(np=1)


def counted(hvdata, n, **arguments):
    source = Counted(n)
    return source, hvdata.distribute_dataset(source.dataset(), batch="per_rank", **arguments)


def want(n, comm, change=lambda values: values):
    return [change(values) for values in dealt_to_all(comm, range(n))]


def test_iter_and_next(hvdata, comm):
    n = 2 * comm.size
    ds = numbers(hvdata, n)

    def walk():
        it = iter(ds)
        got = [int(next(it)), int(next(it))]
        ends = [next(it, None), next(it, None)]  # the end stays the end
        it = iter(ds)
        return got, ends, [bool(it.get_next_as_optional().has_value()) for _ in range(4)]

    has = [True, True, False, False]
    assert results(comm, walk) == [(values, [None, None], has) for values in want(n, comm)]


STAGES = {
    "none": (lambda ds: ds, lambda v: v),
    "map, filter, prefetch and batch": (
        lambda ds: ds.map(lambda x: x * 10, num_parallel_calls=2).filter(lambda x: x >= 0).prefetch(2).batch(4),
        lambda v: [[x * 10 for x in v[at : at + 4]] for at in range(0, 8, 4)],
    ),
    "skip": (lambda ds: ds.skip(1), lambda v: v[1:]),
    "take": (lambda ds: ds.take(3), lambda v: v[:3]),
    "repeat": (lambda ds: ds.repeat(2), lambda v: v * 2),
}


@pytest.mark.parametrize("stage", STAGES)
def test_stages_after_it(hvdata, comm, stage):
    """Each pass is an epoch, and so is each of a repeat()."""
    source, ds = counted(hvdata, 8 * comm.size, prefetch=2)
    make, change = STAGES[stage]
    ds = make(ds)
    for epoch in range(1, 4):
        assert results(comm, lambda: [x.numpy().tolist() for x in ds]) == want(source.n, comm, change)
        assert comm.bcast(source.starts) == epoch * (2 if stage == "repeat" else 1)
    assert stage != "take" or comm.bcast(source.yields) < 3 * source.n  # an epoch left early is not read to its end


def test_cache_after_it_is_local(hvdata, comm):
    source, ds = counted(hvdata, 4 * comm.size)
    ds = ds.cache()
    for _ in range(3):
        assert elements(comm, ds) == want(source.n, comm)
    assert comm.allgather(source.starts) == [1] + [0] * (comm.size - 1)
    if comm.rank == comm.size - 1:  # a local pass needs no other rank
        assert len(list(ds)) == 4


def test_zip_of_a_channel_with_itself_is_an_error(hvdata, comm):
    ds = numbers(hvdata, 6 * comm.size)
    both = tf.data.Dataset.zip((ds, ds))
    raises_everywhere(comm, lambda: list(both), tf.errors.FailedPreconditionError, "channel", "epoch 1")
    assert elements(comm, ds) == want(6 * comm.size, comm)  # and the next epoch is clean


def test_an_unused_iterator_starts_nothing(hvdata, comm):
    source, ds = counted(hvdata, 3 * comm.size)
    kept = [iter(ds) for _ in range(3)]
    if comm.rank == 0:
        kept.append(iter(ds))  # nor does an iterator that a single rank makes
    comm.barrier()
    assert source.starts == 0
    del kept[0]
    gc.collect()
    for it in (iter(ds), iter(ds)):
        assert results(comm, lambda it=it: [int(x) for x in it]) == want(source.n, comm)
    assert comm.allgather(source.starts) == [2] + [0] * (comm.size - 1)


def test_prefetch_bounds_how_far_the_reader_runs_ahead(hvdata, comm):
    """Contract 5: beyond its own pipeline and its buffers the reader holds at most prefetch + 1 steps."""
    unbuffered = tf.data.Options()
    unbuffered.experimental_optimization.inject_prefetch = False  # TensorFlow adds one to the reader's pipeline
    for prefetch in 1, 2, 5:
        source = Counted(40 * comm.size)
        ds = source.dataset().with_options(unbuffered)
        it = iter(hvdata.distribute_dataset(ds, batch="per_rank", prefetch=prefetch))
        for taken in range(1, 4):
            results(comm, lambda: int(next(it)))
            time.sleep(0.1)  # room for the reader to run too far
            assert comm.bcast(source.yields) <= (taken + prefetch + 1) * comm.size
        del it


def test_making_a_channel_inside_a_tf_function_is_an_error(hvdata, comm):
    @tf.function
    def build():
        numbers(hvdata, 4)
        return 1

    raises_everywhere(comm, build, (RuntimeError, ValueError), "tf.function", "distribute_dataset")


def test_auto_shard_is_off(hvdata, comm):
    policy = numbers(hvdata, comm.size).options().experimental_distribute.auto_shard_policy
    assert policy == tf.data.experimental.AutoShardPolicy.OFF


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
    assert elements(comm, ds) == want(2 * comm.size, comm)


# ---- Several channels run at once, in any order, each with epochs of its own.


def part(comm, n, start=0):
    return dealt_to_all(comm, range(start, start + n))


@pytest.mark.world(np=4)
def test_two_training_channels_and_one_for_validation(hvdata, comm):
    """All ranks interleave the channels in the same order, with whole epochs of validation in mid-epoch."""
    n = 6 * comm.size
    first, second, valid = (numbers(hvdata, n, start) for start in (0, 1000, 2000))

    def epoch():
        got = [[], [], []]
        a, b = iter(first), iter(second)
        for step in range(6):
            got[0].append(int(next(a)))
            if step % 2:
                got[1].append(int(next(b)))
            if step % 3 == 2:
                got[2].append([int(x) for x in valid])
        got[1] += [int(x) for x in b]
        return got

    want = [[a, b, [c, c]] for a, b, c in zip(*(part(comm, n, start) for start in (0, 1000, 2000)))]
    for _ in range(2):
        assert results(comm, epoch) == want


@pytest.mark.world(np=4)
def test_ranks_take_channels_in_different_orders(hvdata, comm):
    """This works while no rank is more than `prefetch` steps ahead of another on a channel."""
    n = 10 * comm.size
    channels = [numbers(hvdata, n, start, prefetch=2) for start in (0, 1000, 2000)]
    order = random.Random(comm.rank)

    def epoch():
        iterators = [iter(ds) for ds in channels]
        got = [[], [], []]
        for _ in range(10):
            for which in order.sample(range(3), 3):  # the order differs from rank to rank
                got[which].append(int(next(iterators[which])))
        return got

    want = [list(lists) for lists in zip(*(part(comm, n, start) for start in (0, 1000, 2000)))]
    for _ in range(2):
        assert outcomes(comm, epoch) == want


@pytest.mark.world(np=4)
def test_a_new_dataset_each_epoch(hvdata, comm):
    """In eager mode every call makes a new channel, whatever its name. The old one is released."""
    for epoch in range(5):
        source = Counted(4 * comm.size)
        ds = source.dataset().map(lambda x, epoch=epoch: x + 100 * epoch)
        ds = hvdata.distribute_dataset(ds, batch="per_rank", name="train")
        assert elements(comm, ds) == part(comm, 4 * comm.size, 100 * epoch)
        assert comm.allgather(source.starts) == [1] + [0] * (comm.size - 1)
