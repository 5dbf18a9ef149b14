# SPDX-License-Identifier: Apache-2.0
"""loader(): states, with sources that have a state in any of their parts, and in none."""

import time
from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from loaders import Stream, loads, of_epoch
from stateful import SOURCES, KeepsItsPlace, OfGrain, OfTorch, WithIterators
from together import raises_everywhere, results

pytestmark = pytest.mark.world(np=3)

HOMES = {
    "source": KeepsItsPlace,
    "iterator": partial(WithIterators, iterator=OfTorch),
    "grain": partial(WithIterators, iterator=OfGrain),
    "nowhere": WithIterators,
}


def state_after(comm, loader, steps):
    """The first numbers of an epoch on this rank, its state when all ranks have taken them, and its iterator."""
    it = iter(loader)
    comm.barrier()
    first = [np.ravel(next(it)).tolist() for _ in range(steps)]
    state = loader.state_dict()
    comm.barrier()
    return first, state, it


@pytest.mark.parametrize("batch, schedule", [("global", "static"), ("per_rank", "static"), ("per_rank", "dynamic")])
@pytest.mark.parametrize("where", [*HOMES, "tf.data"])
@pytest.mark.usefixtures("either_way")
def test_states(hvdata, comm, where, batch, schedule):
    n = comm.size
    total = 12 * n

    def source():
        if where == "tf.data":
            numbers = tf.data.Dataset.range(total)
            return numbers.batch(n) if batch == "global" else numbers
        if batch == "global":
            return HOMES[where](12, lambda i: np.arange(i * n, (i + 1) * n))
        return HOMES[where](total)

    arguments = dict(batch=batch, schedule=schedule)
    loader = loads(hvdata, source, **arguments)
    flat = lambda it: [np.ravel(x).tolist() for x in it]
    first, saved, it = state_after(comm, loader, 3)
    after = results(comm, lambda: flat(it))
    again = loads(hvdata, source, **arguments)
    again.load_state_dict(saved)
    resumed = results(comm, lambda: flat(again))
    before = comm.allgather(first)
    everything = sorted(x for mine in (*before, *resumed) for one in mine for x in one)
    assert everything == list(range(total)), (before, resumed)
    if schedule == "static":
        assert resumed == after
    whole = results(comm, lambda: flat(again))
    assert sorted(x for mine in whole for one in mine for x in one) == list(range(total)), "the next epoch is whole"


class CountsItsStates(KeepsItsPlace):
    states = 0

    def state_dict(self):
        self.states += 1
        return super().state_dict()


def test_one_state_serves_all_ranks_that_wait_for_it(hvdata, comm):
    """The ranks ask while the reader is inside its source. A state may take a gigabyte, and it stops dealing."""

    def slow(number):
        time.sleep(0.5)
        return number

    source = CountsItsStates(3 * comm.size, slow)
    loader = loads(hvdata, lambda: source, prefetch=1)
    it = iter(loader)
    results(comm, lambda: next(it).item())
    results(comm, loader.state_dict)
    assert source.states == (1 if comm.rank == 0 else 0)


@pytest.mark.parametrize("where", HOMES)
@pytest.mark.parametrize("left", [0, 1, 2])
def test_states_near_the_end(hvdata, comm, where, left):
    """The reader has seen the end of its source when the state is saved. A source whose state is then that of the next
    epoch must not begin that epoch within this one."""
    n = comm.size
    loader, again = [loads(hvdata, lambda: HOMES[where](6 * n), prefetch=4) for _ in range(2)]

    def some():
        it = iter(loader)
        for _ in range(6 - left):
            next(it)
        time.sleep(0.05)  # until the reader is at the end
        return loader.state_dict(), [x.item() for x in it]

    comm.barrier()
    state, after = some()
    again.load_state_dict(state)
    rest = results(comm, lambda: [x.item() for x in again])
    assert rest == comm.allgather(after)
    assert all(len(mine) == left for mine in rest)
    for one in (again, loader):
        assert of_epoch(hvdata, comm, one) == list(range(6 * n))


def test_a_source_in_another_order(hvdata, comm):
    """A source without a state is read again. The rows before the position must be those that it had."""
    n = comm.size
    orders = [list(range(8 * n)), list(range(8 * n))[::-1]]
    loader, again = [loads(hvdata, lambda: Stream(order), name="turned", prefetch=1) for order in orders]
    _, state, it = state_after(comm, loader, 4)
    again.load_state_dict(state)
    raises_everywhere(comm, lambda: list(again), RuntimeError, "channel turned", "the input can't be restored",
                      "are not those that it yielded before the checkpoint was saved")  # fmt: skip


def test_a_wrong_length_after_a_restore(hvdata, comm):
    n = comm.size

    class Longer(KeepsItsPlace):
        def __len__(self):
            return 6 * n

    _, state, it = state_after(comm, loads(hvdata, lambda: KeepsItsPlace(6 * n), prefetch=1), 3)
    again = loads(hvdata, lambda: Longer(7 * n))
    again.load_state_dict(state)
    text = rf"len\(\) is {6 * n}, but it yielded element {6 * n + 1}"
    raises_everywhere(comm, lambda: list(again), ValueError, text)


@pytest.mark.world(np=2)
@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("steps", [6, 12], ids=["the source has ended", "the source is in its middle"])
@pytest.mark.parametrize("make", SOURCES)
def test_states_of_states(hvdata, comm, make, steps):
    """A state is saved, restored, saved before the source is asked, and restored again. Each number comes once."""
    total = steps * comm.size

    def part(loader, number):
        it = iter(loader)
        return [next(it).item() for _ in range(number)], loader.state_dict()

    before, state = [], None
    for number, prefetch in ((3, 16 if steps == 6 else 3), (1, 1), (0, 1)):
        loader = loads(hvdata, lambda: make(total), prefetch=prefetch)
        if state is not None:
            loader.load_state_dict(state)
        if number > 0:
            parts = results(comm, lambda: part(loader, number))
            before += [x for numbers, _ in parts for x in numbers]
            state = parts[comm.rank][1]
    rest = of_epoch(hvdata, comm, loader)
    assert sorted(before + rest) == list(range(total)), (before, rest)
    for _ in range(2):
        assert of_epoch(hvdata, comm, loader) == list(range(total)), "later epochs are whole"


@pytest.mark.parametrize("make", [range, KeepsItsPlace])
def test_states_outside_of_an_epoch(hvdata, comm, make):
    numbers = lambda: loads(hvdata, lambda: make(12 * comm.size))
    loader = numbers()
    saved = results(comm, loader.state_dict)[comm.rank]
    whole = of_epoch(hvdata, comm, loader)
    over = results(comm, loader.state_dict)[comm.rank]
    for state in (saved, over):
        again = numbers()
        again.load_state_dict(state)
        assert of_epoch(hvdata, comm, again) == whole, "a state before an epoch, or behind it, begins a whole one"
    loader.load_state_dict(over)
    for state, kind, text in (({}, TypeError, "no state of a Loader"), ({"state": b"x"}, RuntimeError, "is damaged")):
        with pytest.raises(kind, match=text):
            loader.load_state_dict(state)
    comm.barrier()
    assert of_epoch(hvdata, comm, loader) == whole, "an earlier state is forgotten"
    results(comm, lambda: next(iter(loader)).item())
    raises_everywhere(comm, loader.state_dict, RuntimeError, "had broken the epoch off")
