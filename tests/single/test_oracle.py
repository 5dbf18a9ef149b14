# SPDX-License-Identifier: Apache-2.0
"""The oracle against expectations written out by hand."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from oracle import deliver, deliver_from_readers, dropped, equal, is_dynamic_delivery, map_nest, rotate


def as_lists(shares):
    return [[map_nest(lambda array: array.tolist(), share) for share in steps] for steps in shares]


def arrays(*values):
    return [np.array(value) for value in values]


GLOBAL = arrays([0, 1, 2, 3, 4], [5, 6, 7], [8])
PER_RANK = arrays([1, 1], [2], [3, 3, 3], [4], [5])
TEXTS = [(np.array([[1, 2], [3, 4], [5, 6]]), np.array([b"a", b"b", b"c"], object))]
SCALARS = [np.float32(1), np.float32(2), np.float32(3)]


@pytest.mark.parametrize("elements, batch, remainder, expected", [
    (GLOBAL, "global", "drop", [[[0, 1], [5]], [[2, 3], [6]]]),
    (GLOBAL, "global", "partial", [[[0, 1, 2], [5, 6], [8]], [[3, 4], [7], []]]),
    (TEXTS, "global", "pad", [[([[1, 2], [3, 4]], [b"a", b"b"], [1.0, 1.0])], [([[5, 6], [0, 0]], [b"c", b""], [1.0, 0.0])]]),
    (PER_RANK, "per_rank", "drop", [[[1, 1], [3, 3, 3]], [[2], [4]]]),
    (PER_RANK, "per_rank", "partial", [[[1, 1], [3, 3, 3], [5]], [[2], [4], []]]),
    (PER_RANK, "per_rank", "pad", [[([1, 1], [1.0, 1.0]), ([3, 3, 3], [1.0, 1.0, 1.0]), ([5], [1.0])],
                                   [([2], [1.0]), ([4], [1.0]), ([0], [0.0])]]),
    (SCALARS, "per_rank", "pad", [[(1, 1), (3, 1)], [(2, 1), (0, 0)]]),
    (SCALARS[:2], "per_rank", "partial", [[1], [2]]),
    ([], "global", "pad", [[], []]),
    ([], "per_rank", "partial", [[], []]),
])  # fmt: skip
def test_two_ranks(elements, batch, remainder, expected):
    assert as_lists(deliver(elements, 2, batch, remainder=remainder)) == expected


def test_global_pad_of_ranks_without_a_row():
    assert as_lists(deliver([{"x": np.arange(1, 6)}], 4, "global", remainder="pad")) == [
        [({"x": [1, 2]}, [1.0, 1.0])],
        [({"x": [3, 4]}, [1.0, 1.0])],
        [({"x": [5, 0]}, [1.0, 0.0])],
        [({"x": [0, 0]}, [0.0, 0.0])],
    ]


def test_global_batches_of_few_rows():
    shares = deliver([np.ones((2, 5)), np.ones((0, 5))], 3, "global", remainder="partial")
    assert [[len(share) for share in steps] for steps in shares] == [[1, 0], [1, 0], [0, 0]]
    assert shares[2][0].shape == (0, 5)
    assert deliver([np.ones((0, 5))], 3, "global", remainder="drop") == [[], [], []]


def test_elements_that_make_no_share():
    with pytest.raises(AssertionError, match="no common axis 0"):
        deliver([(np.zeros(2), np.zeros(3))], 2, "global")
    with pytest.raises(AssertionError, match="a scalar has no empty share"):
        deliver(SCALARS, 2, "per_rank", remainder="partial")


def test_per_rank_tail_takes_the_dims_of_rank_0():
    one = {"s": np.array([[b"x", b"y", b"z"]], object), "f": np.ones((4, 2), np.float16)}
    (empty,) = deliver([one], 2, "per_rank", remainder="partial")[1]
    assert (empty["s"].shape, empty["s"].dtype, empty["f"].shape, empty["f"].dtype) == ((0, 3), object, (0, 2), "f2")
    ((padding, weight),) = deliver([one], 2, "per_rank", remainder="pad")[1]
    assert padding["s"].tolist() == [[b"", b"", b""]]
    assert padding["f"].tolist() == [[0, 0]] * 4
    assert weight.tolist() == [0.0] * 4  # "f" comes before "s"


def test_dropped():
    assert dropped(GLOBAL, 2, "global", "drop") == 3
    assert dropped(GLOBAL, 2, "per_rank", "drop") == 1
    assert dropped(GLOBAL, 2, "global", "partial") == dropped(GLOBAL, 2, "per_rank", "pad") == 0


class Pair(NamedTuple):
    x: np.ndarray
    y: np.ndarray


def test_the_weight_joins_only_a_plain_pair():
    x = np.array([7])
    pad = {"n": 1, "batch": "global", "remainder": "pad"}
    assert as_lists(deliver([(x, x)], **pad)) == [[([7], [7], [1.0])]]
    assert as_lists(deliver([(x,)], **pad)) == [[(([7],), [1.0])]]
    assert as_lists(deliver([[x, x]], **pad)) == [[([[7], [7]], [1.0])]]
    ((element, weight),) = deliver([Pair(x, x)], **pad)[0]
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
    assert rotate([]) == rotate([[], []]) == []
    assert rotate([["a0", "a1", "a2"], ["b0"], ["c0", "c1"]]) == ["a0", "b0", "c0", "a1", "c1", "a2"]
    readers = [arrays([1], [2], [3]), arrays([4], [5])]
    assert as_lists(deliver_from_readers(readers, 2, "per_rank", "partial")) == [[[1], [4], [3]], [[2], [5], []]]
