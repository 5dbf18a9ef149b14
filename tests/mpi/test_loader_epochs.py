# SPDX-License-Identifier: Apache-2.0
"""loader(): epochs that begin, break off, and have no end."""

import time

import numpy as np
import pytest
from loaders import CountedStream, Stream, loads, of_epoch
from numbered_rows import batches_of
from together import merged, on_trainers, raises_everywhere, results

pytestmark = pytest.mark.world(np=3)


@pytest.mark.world(np=2)
def test_a_source_for_every_epoch(hvdata, comm):
    asked = []

    def source(epoch):
        asked.append(epoch)
        return (epoch * 100 + i for i in range(8))

    loader = hvdata.loader(source, batch="per_rank", remainder="partial" if comm.size < 3 else "drop")
    whole = 8 - 8 % comm.size
    for number in (1, 2, 3):
        assert of_epoch(hvdata, comm, loader) == [number * 100 + i for i in range(whole)]
    assert asked == ([1, 2, 3] if hvdata.is_reader() else [])
    with pytest.raises(TypeError, match="is not known before its end"):
        len(loader)


@pytest.mark.world(np=2)
def test_an_iterator_is_read_once(hvdata, comm):
    loader = loads(hvdata, lambda: iter(range(12)))
    assert of_epoch(hvdata, comm, loader) == list(range(12 - 12 % comm.size))
    text = "the source is an iterator .*read once.*Pass a function with a parameter `epoch`"
    raises_everywhere(comm, lambda: list(loader), ValueError, text)


@pytest.mark.world(np=2, readers=1)
@pytest.mark.readers(0, 1)
def test_the_reader_alone_reads_and_once_in_each_epoch(hvdata, comm, world):
    source = CountedStream(5 * world.np + 1)
    loader = loads(hvdata, lambda: source)
    for epoch in 1, 2:
        assert of_epoch(hvdata, comm, loader) == list(range(5 * world.np))
        runs = comm.allgather((hvdata.is_reader(), source.starts, source.yields))
        assert runs == [(reads, epoch * reads, epoch * source.n * reads) for reads, *_ in runs]


@pytest.mark.world(np=2, readers=1)
@pytest.mark.readers(0, 1)
@pytest.mark.parametrize("prefetch", [1, 4])
def test_the_reader_is_at_most_the_window_and_one_step_ahead(hvdata, comm, world, prefetch):
    source = CountedStream(20 * world.np)
    loader = loads(hvdata, lambda: source, prefetch=prefetch)
    it = iter(loader) if hvdata.is_trainer() else None
    for taken in range(1, 9):
        on_trainers(hvdata, comm, lambda: next(it).item())
        time.sleep(0.05)  # room for the reader to run too far
        assert sum(comm.allgather(source.yields)) <= (taken + prefetch + 1) * world.np
    on_trainers(hvdata, comm, lambda: list(it))


class Twelve:
    def __iter__(self):
        return iter(np.arange(12).reshape(1, 12))


@pytest.mark.world(np=2)
def test_a_class_is_a_function_that_makes_the_source(hvdata, comm):
    loader = hvdata.loader(Twelve, batch="global", remainder="partial")
    shares = results(comm, lambda: next(iter(loader)).tolist())
    assert sum(shares, []) == list(range(12))


@pytest.mark.world(np=2)
def test_break_and_go_on(hvdata, comm):
    loader = loads(hvdata, lambda: range(40))

    def first_two():
        return [x.item() for x, _ in zip(loader, range(2))]

    n = comm.size
    for _ in range(3):
        assert merged(results(comm, first_two)) == list(range(2 * n))
    it = iter(loader)
    results(comm, lambda: next(it).item())
    newer = iter(loader)
    raises_everywhere(
        comm, lambda: [next(newer), next(it)], RuntimeError, "superseded: a newer one of the same channel"
    )


def test_an_epoch_without_elements(hvdata, comm):
    loader = hvdata.loader(lambda epoch: batches_of([12, 4] * (epoch % 2)), batch="global", remainder="partial")
    counts = [results(comm, lambda: len(list(loader))) for _ in range(3)]
    assert [set(one) for one in counts] == [{2}, {0}, {2}]


@pytest.mark.readers(0, 1)
@pytest.mark.parametrize("who", range(4))
def test_a_rank_breaks_off(hvdata, comm, world, who):
    """The other ranks get all their steps, and the next epoch is whole."""
    n = world.np
    who %= n
    loader = loads(hvdata, lambda: range(8 * n))
    for _ in range(2):
        got = on_trainers(
            hvdata, comm, lambda: [x.item() for x, _ in zip(loader, range(3 if hvdata.rank() == who else 99))]
        )
        assert got == [list(range(rank, (3 if rank == who else 8) * n, n)) for rank in range(n)]
    assert of_epoch(hvdata, comm, loader) == list(range(8 * n))


@pytest.mark.world(np=2)
def test_a_source_without_an_end(hvdata, comm):
    loader = loads(hvdata, lambda: Stream(range(10**9)))
    n = comm.size
    for _ in range(2):
        first = results(comm, lambda: [x.item() for x, _ in zip(loader, range(50))])
        assert merged(first) == list(range(50 * n))
