# SPDX-License-Identifier: Apache-2.0
"""copied(): a copy of a state that the next step of a training does not change."""

import collections
import pickle
import sys
import types
from typing import NamedTuple

import numpy as np
import pytest

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


class OnADevice:
    """Like an array of JAX, whose copy is a computation."""

    error = RuntimeError

    def __init__(self, value):
        self.value = value

    def __deepcopy__(self, memo):
        raise self.error("a computation on the device")


@pytest.mark.parametrize("error, modules", [(MemoryError, {"jax": types.ModuleType("jax")}), (RuntimeError, {})])
def test_what_only_pickle_can_copy(monkeypatch, error, modules):
    """Arrays of JAX, also in objects of the program. Without JAX, tensors of PyTorch with a graph, in objects."""
    monkeypatch.setattr(OnADevice, "error", error)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    array, both = OnADevice([1]), types.SimpleNamespace(array=OnADevice([2]))
    copy = copied({"array": array, "both": both})
    array.value.append(0)
    both.array.value.append(0)
    read = pickle.loads(pickle.dumps(copy))
    assert (read["array"].value, read["both"].array.value) == ([1], [2])


def test_an_object_that_holds_itself():
    parent = {"values": [1], "children": []}
    parent["children"].append({"parent": parent})
    copy = copied(parent)
    parent["values"].append(2)
    read = pickle.loads(pickle.dumps(copy))
    assert read["values"] == [1] and read["children"][0]["parent"] is read
