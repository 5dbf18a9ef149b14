# SPDX-License-Identifier: Apache-2.0
"""copied(): a copy of a state that the next step of a training does not change."""

import collections
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
