# SPDX-License-Identifier: Apache-2.0
"""copied(): a copy of a state that the next step of a training does not change."""

import collections
import dataclasses
import pickle
import sys
import types
from typing import NamedTuple

import numpy as np

from horovod_data.backup.copies import copied


class Pair(NamedTuple):
    first: np.ndarray
    second: int


def test_arrays_in_nests():
    array = np.zeros(2)
    state = collections.OrderedDict(one=array, two=[array, (array, Pair(array, 3))], three={"four": "text"})
    state._metadata = {"version": 1}
    copy = copied(state)
    array += 1
    assert type(copy) is collections.OrderedDict and copy._metadata == {"version": 1} and list(copy) == list(state)
    assert copy["one"].tolist() == copy["two"][0].tolist() == copy["two"][1][0].tolist() == [0, 0]
    pair = copy["two"][1][1]
    assert (
        type(pair) is Pair and pair.first.tolist() == [0, 0] and pair.second == 3 and copy["three"] == {"four": "text"}
    )


class Array:
    """Like an array of JAX: its deep copy is a computation on the device. Pickle reads the host."""

    def __init__(self, values):
        self.values = values

    def __deepcopy__(self, memo):
        raise RuntimeError("a computation of this rank alone")

    def __reduce__(self):
        return Array, (list(self.values),)


@dataclasses.dataclass(frozen=True)
class State:
    step: int
    array: Array


def test_arrays_of_jax_are_read_on_the_host(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))
    array = Array([1, 2])
    copy = copied({"tree": [array], "state": State(3, array), "array": np.arange(2)})
    array.values[0] = 5
    got = pickle.loads(pickle.dumps(copy))
    assert got["tree"][0].values == got["state"].array.values == [1, 2]
    assert got["state"].step == 3 and got["array"].tolist() == [0, 1]


def test_objects_that_only_pickle_can_write():
    """A tensor of PyTorch with a graph refuses a deep copy. An object may hold itself."""
    parent = {"array": Array([1]), "children": []}
    parent["children"].append({"parent": parent})
    for array, take in (State(3, Array([1])), lambda got: got.array), (parent, lambda got: got["array"]):
        copy = copied(array)
        take(array).values[0] = 5
        assert take(pickle.loads(pickle.dumps(copy))).values == [1]
