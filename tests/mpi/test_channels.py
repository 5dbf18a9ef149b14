# SPDX-License-Identifier: Apache-2.0
"""Several channels run at once, in any order, each with epochs of its own."""

import random

import pytest
from together import Counted, dealt_to_all, elements, numbers, outcomes, results

pytestmark = pytest.mark.world(np=4)


def part(comm, n, start=0):
    return dealt_to_all(comm, range(start, start + n))


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


@pytest.mark.parametrize("prefetch", [1, 2, 3, 8, 16])
def test_a_rank_may_be_ahead_by_prefetch_steps(hvdata, comm, prefetch):
    """A rank may be exactly `prefetch` steps ahead, however many steps the others have taken."""
    n = comm.size
    slowest = comm.rank == n - 1
    it = iter(numbers(hvdata, 64 * n, prefetch=prefetch))
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
    """In eager mode every call makes a new channel, whatever its name. The old one is released."""
    for epoch in range(5):
        source = Counted(4 * comm.size)
        ds = source.dataset().map(lambda x, epoch=epoch: x + 100 * epoch)
        ds = hvdata.distribute_dataset(ds, batch="per_rank", name="train")
        assert elements(comm, ds) == part(comm, 4 * comm.size, 100 * epoch)
        assert comm.allgather(source.starts) == [1] + [0] * (comm.size - 1)
