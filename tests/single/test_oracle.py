# SPDX-License-Identifier: Apache-2.0
"""The oracle against expectations written out by hand, where an error of the oracle would hide errors of the product."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from oracle import deliver, deliver_from_readers, dropped, equal, is_dynamic_delivery, map_nest


def as_lists(shares):
    return [[map_nest(lambda array: array.tolist(), share) for share in steps] for steps in shares]


def arrays(*values):
    return [np.array(value) for value in values]


GLOBAL = arrays([0, 1, 2, 3, 4], [5, 6, 7], [8])
PER_RANK = arrays([1, 1], [2], [3, 3, 3], [4], [5])
TEXTS = [(np.array([[1, 2], [3, 4], [5, 6]]), np.array([b"a", b"b", b"c"], object))]


@pytest.mark.parametrize("elements, batch, remainder, expected", [
    (GLOBAL, "global", "drop", [[[0, 1], [5]], [[2, 3], [6]]]),
    (GLOBAL, "global", "partial", [[[0, 1, 2], [5, 6], [8]], [[3, 4], [7], []]]),
    (TEXTS, "global", "pad", [[([[1, 2], [3, 4]], [b"a", b"b"], [1.0, 1.0])], [([[5, 6], [0, 0]], [b"c", b""], [1.0, 0.0])]]),
    (PER_RANK, "per_rank", "drop", [[[1, 1], [3, 3, 3]], [[2], [4]]]),
    (PER_RANK, "per_rank", "partial", [[[1, 1], [3, 3, 3], [5]], [[2], [4], []]]),
    (PER_RANK, "per_rank", "pad", [[([1, 1], [1.0, 1.0]), ([3, 3, 3], [1.0, 1.0, 1.0]), ([5], [1.0])],
                                   [([2], [1.0]), ([4], [1.0]), ([0], [0.0])]]),
])  # fmt: skip
def test_two_ranks(elements, batch, remainder, expected):
    assert as_lists(deliver(elements, 2, batch, remainder=remainder)) == expected


def test_dropped():
    assert dropped(GLOBAL, 2, "global", "drop") == 3
    assert dropped(GLOBAL, 2, "per_rank", "drop") == 1
    assert dropped(GLOBAL, 2, "global", "partial") == dropped(GLOBAL, 2, "per_rank", "pad") == 0


class Pair(NamedTuple):
    x: np.ndarray
    y: np.ndarray


def test_the_weight_joins_only_a_plain_pair():
    x = np.array([7])
    ((element, weight),) = deliver([Pair(x, x)], 1, "global", remainder="pad")[0]
    assert isinstance(element, Pair) and weight.dtype == np.float32


def test_equal_sees_structure_type_shape_and_value():
    x = np.array([1.0, np.nan])
    assert equal({"a": (x, x)}, {"a": (x.copy(), x)})
    assert equal(np.array([b"a"], object), np.array([b"a"], object))
    others = [x.astype("f4"), x[:, None], np.array([2.0, np.nan]), (x,), {"a": x}]
    assert not any(equal(x, other) or equal(other, x) for other in others)
    assert not equal(np.array([b"a"], object), np.array([b"b"], object))


def test_dynamic_delivery():
    one, two, three = arrays([1], [2], [3])
    assert is_dynamic_delivery([one, two, one], [[one], [], [two, one]])
    for wrong in [[one], []], [[one, two], [two]], [[one, three]]:
        assert not is_dynamic_delivery([one, two], wrong)


def test_several_readers():
    readers = [arrays([1], [2], [3]), arrays([4], [5])]
    assert as_lists(deliver_from_readers(readers, 2, "per_rank", "partial")) == [[[1], [4], [3]], [[2], [5], []]]
