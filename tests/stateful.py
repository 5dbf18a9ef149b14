# SPDX-License-Identifier: Apache-2.0
"""Python sources of the numbers from 0 to n - 1 that have a state, as libraries have it.

`element(i)` makes an element of a number.
"""

from __future__ import annotations


class WithoutIter:
    """An iterator that has no __iter__."""

    def __init__(self, n, element=int, at=0):
        self.n, self.element, self.at = n, element, at

    def __next__(self):
        if self.at == self.n:
            raise StopIteration
        self.at += 1
        return self.element(self.at - 1)


class Plain(WithoutIter):
    def __iter__(self):
        return self


class OfTorch(Plain):
    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class OfGrain(Plain):
    get_state, set_state = OfTorch.state_dict, OfTorch.load_state_dict


class WithIterators:
    """A source whose iterators alone may have a state. It has no length."""

    def __init__(self, n, element=int, iterator=Plain):
        self.n, self.element, self.iterator = n, element, iterator

    def __iter__(self):
        return self.iterator(self.n, self.element)


class KeepsItsPlace:
    """A source whose iterators go on where the last one has stopped. After its end it begins anew."""

    def __init__(self, n, element=int):
        self.n, self.element, self.at = n, element, 0

    def __iter__(self):
        start, self.at = self.at, 0
        for self.at in range(start + 1, self.n + 1):
            yield self.element(self.at - 1)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class KeepsItsState:
    """Like a Hugging Face dataset: each iterator begins with the last given state, and then has the dataset's state."""

    def __init__(self, n):
        self.n, self.now, self._starting_state_dict = n, {"at": 0}, None

    def __iter__(self):
        self.now = dict(self._starting_state_dict or {"at": 0})
        for i in range(self.now["at"], self.n):
            self.now["at"] = i + 1
            yield i

    def state_dict(self):
        return dict(self.now)

    def load_state_dict(self, state):
        self._starting_state_dict = state


class BeginsAnewAtItsEnd:
    """Like a StatefulDataLoader: a state from its end makes it begin anew."""

    def __init__(self, n):
        self.n, self.start = n, 0
        self.state_dict = lambda: {"at": self.iterator.at}

    def load_state_dict(self, state):
        self.start = state["at"] % self.n

    def __iter__(self):
        self.iterator, self.start = WithoutIter(self.n, at=self.start), 0
        return self.iterator


SOURCES = [KeepsItsPlace, KeepsItsState, BeginsAnewAtItsEnd]
