# SPDX-License-Identifier: Apache-2.0
"""Several channels run at once, in any order, each with epochs of its own."""

import random

import pytest
import tensorflow as tf
from together import Counted, dealt, elements, outcomes, results

pytestmark = pytest.mark.world(np=4)


def channel(hvdata, start, n, **arguments):
    return hvdata.distribute_dataset(tf.data.Dataset.range(start, start + n), batch="per_rank", **arguments)


def part(start, n, comm):
    return [dealt(range(start, start + n), rank, comm.size) for rank in range(comm.size)]


def test_two_training_channels_and_one_for_validation(hvdata, comm):
    """All ranks interleave the channels in the same order, with validation in mid-epoch."""
    n = comm.size
    first, second, valid = (channel(hvdata, start, 6 * n) for start in (0, 1000, 2000))

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

    want = [[a, b, [c, c]] for a, b, c in zip(*(part(start, 6 * n, comm) for start in (0, 1000, 2000)))]
    for _ in range(2):
        assert results(comm, epoch) == want


def test_ranks_take_channels_in_different_orders(hvdata, comm):
    """This works while no rank is more than `prefetch` steps ahead of another on a channel."""
    n = comm.size
    channels = [channel(hvdata, start, 10 * n, prefetch=2) for start in (0, 1000, 2000)]
    order = random.Random(comm.rank)

    def epoch():
        iterators = [iter(ds) for ds in channels]
        got = [[], [], []]
        for _ in range(10):
            for which in order.sample(range(3), 3):  # the order differs from rank to rank
                got[which].append(int(next(iterators[which])))
        return got

    for _ in range(2):
        assert outcomes(comm, epoch) == [
            list(lists) for lists in zip(*(part(s, 10 * n, comm) for s in (0, 1000, 2000)))
        ]


@pytest.mark.parametrize("prefetch", [1, 2, 3, 8, 16])
def test_a_rank_may_be_ahead_by_prefetch_steps(hvdata, comm, prefetch):
    """A rank may be exactly `prefetch` steps ahead, however many steps the others have taken."""
    n = comm.size
    slowest = comm.rank == n - 1
    it = iter(channel(hvdata, 0, 64 * n, prefetch=prefetch))
    taken = 0
    for more in 0, 1, 2, 1:
        if not slowest:
            comm.Barrier()  # the slowest has taken so many more
        ahead = prefetch if taken == 0 and not slowest else 0
        for _ in range(more + ahead):
            next(it)
        taken += more + ahead
        if slowest:
            comm.Barrier()
        comm.Barrier()  # and so have the others
    assert [int(x) for x in it] == [step * n + comm.rank for step in range(taken, 64)]


def test_a_new_dataset_each_epoch(hvdata, comm):
    """The reader rebuilds its pipeline: a channel per epoch, the old one released."""
    for epoch in range(5):
        source = Counted(4 * comm.size)
        ds = hvdata.distribute_dataset(source.dataset().map(lambda x, epoch=epoch: x + 100 * epoch), batch="per_rank")
        assert elements(comm, ds) == part(100 * epoch, 4 * comm.size, comm)
        assert comm.allgather(source.starts) == [1] + [0] * (comm.size - 1)


def test_the_same_name_again(hvdata, comm):
    """In eager mode every call makes a new channel, whatever its name. The name is for error texts."""
    for epoch in range(3):
        ds = channel(hvdata, 10 * epoch, 2 * comm.size, name="train")
        assert elements(comm, ds) == part(10 * epoch, 2 * comm.size, comm)


def test_other_arguments_per_channel(hvdata, comm):
    n = comm.size
    train = hvdata.distribute_dataset(tf.data.Dataset.range(12 * 3).batch(12), batch="global", prefetch=4)
    loose = channel(hvdata, 0, 5 * n, schedule="dynamic")
    tail = channel(hvdata, 0, n, remainder="drop", prefetch=1)

    def epoch():
        rows, loosely = [], []
        a, b = iter(train), iter(loose)
        for _ in range(3):
            rows += next(a).numpy().tolist()
            value = next(b, None)
            loosely += [] if value is None else [int(value)]
        loosely += [int(x) for x in b]
        return rows, loosely, [int(x) for x in tail]

    got = results(comm, epoch)
    assert sorted(sum((rows for rows, _, _ in got), [])) == list(range(36))
    assert sorted(sum((values for _, values, _ in got), [])) == list(range(5 * n))
    assert [values for _, _, values in got] == part(0, n, comm)


def test_an_epoch_of_one_channel_inside_each_step_of_another(hvdata, comm):
    n = comm.size
    outer, inner = channel(hvdata, 0, 4 * n), channel(hvdata, 100, 3 * n)
    got = results(comm, lambda: [(int(x), [int(y) for y in inner]) for x in outer])
    assert got == [[(x, inside) for x in a] for a, inside in zip(part(0, 4 * n, comm), part(100, 3 * n, comm))]


def test_channels_released_out_of_order(hvdata, comm):
    n = comm.size
    kept = [channel(hvdata, 10 * i, 2 * n) for i in range(4)]
    its = [iter(ds) for ds in kept]
    assert results(comm, lambda: [int(next(it)) for it in its]) == [[10 * i + r for i in range(4)] for r in range(n)]
    if comm.rank % 2:  # ranks let go of their channels in different orders
        kept.pop(0), its.pop(0)
        last = its[-1]
    else:
        last = its[-1]
        del kept[1], its[1]
    assert results(comm, lambda: int(next(last))) == [30 + n + rank for rank in range(n)]
