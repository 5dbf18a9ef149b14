# SPDX-License-Identifier: Apache-2.0
"""The reader's side of a Python source (channel/reader_iterable.py), as the dealer drives it."""

import gc
import pickle
import sys
import weakref

import numpy as np
import pytest
from stateful import SOURCES, KeepsItsPlace

from horovod_data.channel import reader_iterable
from horovod_data.channel.options import Options
from horovod_data.channel.reading import EMPTY, INFINITE, Rules
from horovod_data.elements import columns


def peeked(source):
    iterables = reader_iterable.Iterables(source, None)
    iterables.peek()
    return iterables


def taken(iterables, most=100):
    """The numbers that it yields now, at most so many."""
    found = []
    while len(found) < most and (element := iterables.next()) is not None:
        found.append(int(element[0].kept))
    return found


def ended(iterables):
    """Ends the epoch, and gives the numbers of the next one."""
    iterables.close()
    iterables.start(1)
    return taken(iterables)


@pytest.mark.parametrize("make", SOURCES)
def test_the_state_of_an_end_is_the_end(make):
    iterables = peeked(make(4))
    iterables.start(0)
    assert taken(iterables) == [0, 1, 2, 3]
    again = peeked(make(4))
    again.start_from(iterables.save(), 0)
    third = peeked(make(4))
    third.start_from(again.save(), 0)
    for one in (again, third):
        assert taken(one) == []
        assert ended(one) == [0, 1, 2, 3] and ended(one) == [0, 1, 2, 3]


@pytest.mark.parametrize("make", SOURCES)
def test_a_state_that_is_saved_before_the_first_element_is_that_of_the_restore(make):
    iterables = peeked(make(7))
    iterables.start(0)
    assert iterables.save() is None, "a restore begins the source anew"
    assert taken(iterables, 3) == [0, 1, 2]
    again = peeked(make(7))
    again.start_from(iterables.save(), 0)
    third = peeked(make(7))
    third.start_from(again.save(), 0)
    assert taken(third, 2) == [3, 4]
    fourth = peeked(make(7))
    fourth.start_from(third.save(), 0)
    assert taken(fourth) == [5, 6]
    for one in (again, third, fourth):
        taken(one)
        assert ended(one) == list(range(7)) and ended(one) == list(range(7)), "later epochs are whole"
    fourth.close()
    fourth.start(2)
    assert fourth.save() is None, "nor is it the state of an earlier epoch"


def test_an_epoch_that_asks_for_nothing_leaves_the_first_element():
    iterables = peeked(KeepsItsPlace(3))
    with pytest.raises(pickle.UnpicklingError):
        iterables.start_from(b"no state", 0)
    assert ended(iterables) == [0, 1, 2] and ended(iterables) == [0, 1, 2]
    iterables = peeked(KeepsItsPlace(3))  # of an epoch that was over, the dealer restores no state
    assert ended(iterables) == [0, 1, 2] and ended(iterables) == [0, 1, 2]


def test_a_source_without_elements_takes_the_spec_of_the_other_readers():
    iterables = reader_iterable.Iterables([], None)
    assert iterables.peek() is EMPTY
    iterables.agreed(columns.spec_of({"x": 1, "y": 2}))
    other = iterables.of_another_epoch([{"x": 1, "y": 3}, {"x": 1}], 2)
    other.start(1)
    assert [int(one.kept) for one in other.next()] == [1, 3]
    with pytest.raises(
        TypeError, match="the element is a dict of 'x', but in the first element it was a dict of 'x', 'y'"
    ):
        other.next()


@pytest.mark.parametrize("element", [None, {}, {"x": []}, (None, ())])
def test_an_element_without_components_is_refused(element):
    with pytest.raises(TypeError, match="the source's first element has no component.*Let it have an array"):
        peeked([element])
    with pytest.raises(TypeError, match="the source's first element has no component"):
        reader_iterable.Iterables([element], lambda *x: np.ones(1)).peek()


class Long:
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __iter__(self):
        return iter([1])


@pytest.mark.parametrize("n", [sys.maxsize, sys.maxsize + 1])
def test_a_source_that_is_repeated_for_ever_has_no_length(n):
    assert reader_iterable.Iterables(Long(n), None).count == INFINITE
    assert reader_iterable.Iterables(Long(sys.maxsize - 1), None).count == sys.maxsize - 1


class Source(list):
    """Can be referred to weakly."""


def test_the_source_of_an_epoch_is_freed_at_its_end(monkeypatch):
    made = {}

    def function(epoch):
        source = Source([epoch])
        made[epoch] = weakref.ref(source)
        return source

    def deal(channel, epoch, anew, divides, source):
        gc.collect()
        alive[epoch] = {number for number, one in made.items() if one() is not None}
        source.start(epoch - 1)
        assert taken(source) == [epoch]
        if epoch == 2:
            raise KeyError

    alive = {}
    monkeypatch.setattr(reader_iterable.shares, "deal", deal)
    options = Options(batch="per_rank")
    reading = reader_iterable.read_iterable(function(1), function, Rules(options, 0, 1, 1, 1))
    reading.deal(1, 1, 1)
    with pytest.raises(KeyError):
        reading.deal(1, 2, 2)
    reading.deal(1, 3, 3)
    assert alive == {1: {1}, 2: {2}, 3: {3}}
    resumed = reader_iterable.read_iterable(function(1), function, Rules(options, 0, 1, 1, 1))
    resumed.deal(1, 3, 3)
    assert alive[3] == {3}
