# SPDX-License-Identifier: Apache-2.0
"""Compares the oracle with expectations written by hand. An error of the oracle would hide errors of the product."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from oracle import cached_epoch, deliver, deliver_from_readers, dropped, equal, is_dynamic_delivery, map_nest, permuted


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


@pytest.mark.parametrize("n", [1, 2, 5, 255, 256, 257, 1000])
def test_a_permutation_has_each_number_once(n):
    orders = [[permuted(i, n, seed, epoch) for i in range(n)] for seed in (0, 2**64 - 1) for epoch in (2, 3)]
    assert all(sorted(order) == list(range(n)) for order in orders)
    assert n < 5 or len({tuple(order) for order in orders}) == 4


def test_the_permutation_never_changes():
    """csrc/tests/plan_permutation_test.cc has the same numbers."""
    assert [permuted(i, 10, 7, 3) for i in range(10)] == [6, 1, 0, 3, 4, 8, 7, 2, 5, 9]
    assert [permuted(i, 1000003, -1, 2) for i in (0, 1, 2, 500001, 1000002)] == [151217, 316550, 442599, 97297, 275970]


def test_a_cached_epoch_keeps_the_sizes_of_elements():
    rows = [permuted(i, 9, 3, 2) for i in range(9)]
    assert as_lists([cached_epoch(GLOBAL, "global", 2, 3)]) == [[rows[:5], rows[5:8], rows[8:]]]
    assert as_lists([cached_epoch(GLOBAL, "global", 1, 3)]) == as_lists([cached_epoch(GLOBAL, "global", 2, None)])
    order = [permuted(i, 5, 3, 2) for i in range(5)]
    assert as_lists([cached_epoch(PER_RANK, "per_rank", 2, 3)]) == as_lists([[PER_RANK[i] for i in order]])
