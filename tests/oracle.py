# SPDX-License-Identifier: Apache-2.0
"""Computes what every rank must receive, in plain Python that is easy to check.

An element is a nest (dict, list, tuple, named tuple) of numpy arrays; strings are object arrays of bytes.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

import numpy as np

Array = Any  # numpy.ndarray, or a numpy scalar
Element = Any  # a nest of arrays


def map_nest(function: Callable[..., Any], *elements: Element) -> Element:
    """Applies function to the arrays at the same place of all the elements."""
    first = elements[0]
    if isinstance(first, dict):
        return {key: map_nest(function, *(element[key] for element in elements)) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(map_nest(function, *parts) for parts in zip(*elements)))
    if isinstance(first, (list, tuple)):
        return type(first)(map_nest(function, *parts) for parts in zip(*elements))
    return function(*elements)


def flatten(element: Element) -> list[Array]:
    """The arrays of an element in TensorFlow's order, which sorts the keys of a dict."""
    if isinstance(element, dict):
        return [array for key in sorted(element) for array in flatten(element[key])]
    if isinstance(element, (list, tuple)):
        return [array for part in element for array in flatten(part)]
    return [element]


def equal(one: Element, other: Element) -> bool:
    """Whether two nests have the same structure and arrays of the same types, shapes and values (NaN equals NaN)."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    if isinstance(other, (dict, list, tuple)):
        return False
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return one.tolist() == other.tolist() if one.dtype == object else one.tobytes() == other.tobytes()


def in_order(shares: Sequence[Sequence[Sequence[Any]]]) -> list[Any]:
    """The rows of these shares of all ranks in the job's order: rank 0's share of step 0, rank 1's share of step 0, ...

    Ranks that have no share in the last step count, too.
    """
    steps = range(max(map(len, shares)))
    return [row for step in steps for mine in shares if step < len(mine) for row in mine[step]]


def zeros(shape: Sequence[int], dtype: Any) -> Array:
    """Padding: zeros, or empty strings."""
    return np.full(shape, b"", object) if dtype == object else np.zeros(shape, dtype)


def add_weight(element: Element, weight: Array) -> Element:
    """(x, y) becomes (x, y, weight), as Keras takes it; anything else becomes (element, weight)."""
    if type(element) is tuple and len(element) == 2:
        return (element[0], element[1], weight)
    return (element, weight)


def rows_of(element: Element) -> int:
    """The common length of axis 0."""
    lengths = {len(array) for array in flatten(element)}
    assert len(lengths) == 1, f"no common axis 0: {lengths}"
    return lengths.pop()


def weight_shape(element: Element) -> tuple[int, ...]:
    """One weight per row of the first array; for a scalar, one for the element."""
    return flatten(element)[0].shape[:1]


def cut(element: Element, n: int, remainder: str) -> list[Element] | None:
    """The n shares of a global batch; None if it makes no step."""
    rows = rows_of(element)
    if remainder == "drop" and rows < n:
        return None
    if remainder == "drop":
        sizes = [rows // n] * n
    elif remainder == "partial":
        sizes = [rows // n + 1] * (rows % n) + [rows // n] * (n - rows % n)
    else:
        size = -(-rows // n)
        sizes = [size] * n
        missing = size * n - rows
        first = element
        element = map_nest(lambda a: np.concatenate([a, zeros((missing, *a.shape[1:]), a.dtype)]), element)
        element = add_weight(element, np.array([1] * rows + [0] * missing, np.float32))
    shares = []
    begin = 0
    for size in sizes:
        share = map_nest(lambda array: array[begin : begin + size], element)
        real = min(max(rows - begin, 0), size)
        if remainder == "repeat" and real < size:  # filler rows are copies of the first rows of the step
            copies = map_nest(lambda array: array[: size - real], first)
            share = add_weight(
                map_nest(lambda one, other: np.concatenate([one[begin : begin + real], other]), first, copies),
                np.array([1] * real + [0] * (size - real), np.float32),
            )
        shares.append(share)
        begin += size
    return shares


def fill(elements: list[Element], n: int, remainder: str) -> list[Element] | None:
    """The n shares of up to n per-rank batches; None if they make no step."""
    missing = n - len(elements)
    if missing > 0 and remainder == "drop":
        return None
    if remainder in ("pad", "repeat"):
        ones = [add_weight(e, np.ones(weight_shape(e), np.float32)) for e in elements]
        padding = elements[0]
        if remainder == "pad":
            padding = map_nest(lambda array: zeros(array.shape, array.dtype), padding)
        return ones + [add_weight(padding, np.zeros(weight_shape(padding), np.float32))] * missing
    if missing > 0:
        assert all(array.ndim > 0 for array in flatten(elements[0])), "a scalar has no empty share"
        elements = elements + [map_nest(lambda array: zeros((0, *array.shape[1:]), array.dtype), elements[0])] * missing
    return elements


def deliver(
    elements: Sequence[Element], n: int, batch: str, schedule: str = "static", remainder: str = "drop"
) -> list[list[Element]]:
    """The shares of one epoch for each of n ranks, step by step. For "dynamic" see is_dynamic_delivery."""
    assert schedule == "static", "a dynamic schedule's order is free"
    if batch == "global":
        steps = [cut(element, n, remainder) for element in elements]
    else:
        steps = [fill(list(elements[at : at + n]), n, remainder) for at in range(0, len(elements), n)]
    return [[step[rank] for step in steps if step is not None] for rank in range(n)]


def dropped(elements: Sequence[Element], n: int, batch: str, remainder: str) -> int:
    """The number of rows (of global batches) or elements (per-rank batches) that no rank receives."""
    if remainder != "drop":
        return 0
    if batch == "global":
        return sum(rows_of(element) % n for element in elements)
    return len(elements) % n


def is_dynamic_delivery(elements: Sequence[Element], received: Sequence[Sequence[Element]]) -> bool:
    """Whether the ranks together received each element once, in any order."""
    left = list(elements)
    for share in (share for shares in received for share in shares):
        for i, element in enumerate(left):
            if equal(share, element):
                del left[i]
                break
        else:
            return False
    return not left


def rotate(steps_of_readers: Sequence[Sequence[Any]]) -> list[Any]:
    """The steps of several readers in the order in which trainers take them: all first steps, then all second steps,
    and so on."""
    order = []
    for k in range(max(map(len, steps_of_readers), default=0)):
        for steps in steps_of_readers:
            if k < len(steps):
                order.append(steps[k])
    return order


def deliver_from_readers(
    elements_of_readers: Sequence[Sequence[Element]], n: int, batch: str, remainder: str = "drop"
) -> list[list[Element]]:
    """deliver() for several readers. Each deals whole steps of its own elements, and the steps rotate.

    The leftovers of all readers, per-rank batches, make the last steps together.
    """
    left: list[Element] = []
    if batch == "per_rank":
        for elements in elements_of_readers:
            left.extend(elements[len(elements) // n * n :])
        elements_of_readers = [elements[: len(elements) // n * n] for elements in elements_of_readers]
    dealt = [deliver(elements, n, batch, remainder=remainder) for elements in elements_of_readers]
    last = deliver(left, n, batch, remainder=remainder) if left else [[] for _ in range(n)]
    return [rotate([shares[rank] for shares in dealt]) + last[rank] for rank in range(n)]


def dropped_by_readers(elements_of_readers: Sequence[Sequence[Element]], n: int, batch: str, remainder: str) -> int:
    """The number of rows or elements of several readers that no rank receives. Leftovers of per-rank batches count
    together."""
    if batch == "per_rank":
        return dropped(sum(map(list, elements_of_readers), []), n, batch, remainder)
    return sum(dropped(elements, n, batch, remainder) for elements in elements_of_readers)


def empty_share(share: Element, remainder: str) -> Element:
    """The share of a host without data for a step: no rows, or padding."""
    if remainder == "pad":
        return map_nest(lambda array: zeros(np.shape(array), np.asarray(array).dtype), share)
    return map_nest(lambda array: zeros((0, *array.shape[1:]), array.dtype), share)


def deliver_per_host(
    elements_of_hosts: Sequence[Sequence[Element]], trainers: Sequence[int], batch: str, remainder: str = "drop"
) -> list[list[list[Element]]]:
    """The shares of an epoch for each host and each of its trainers, where every host reads for itself.

    All hosts end on the same step.

    A host with data for fewer steps must have some, because its last shares have the shape of its first ones.
    """
    dealt = [deliver(elements, n, batch, remainder=remainder) for elements, n in zip(elements_of_hosts, trainers)]
    lengths = [len(shares[0]) for shares in dealt]
    steps = min(lengths) if remainder == "drop" else max(lengths)
    return [
        [
            (
                mine + [empty_share(shares[0][-1], remainder)] * (steps - len(mine))
                if len(mine) < steps
                else mine[:steps]
            )
            for mine in shares
        ]
        for shares in dealt
    ]


# ---- cache="job"


def mixed(x: int) -> int:
    """The function of splitmix64."""
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def permuted(i: int, n: int, seed: int, epoch: int) -> int:
    """The number at position i of a permutation of 0..n-1."""
    bits = max(8, (n - 1).bit_length())
    half = (bits + bits % 2) // 2
    mask = 2**half - 1
    key = mixed(mixed(seed % 2**64) ^ epoch)
    keys = [mixed((key + k) % 2**64) for k in range(8)]
    while True:
        left, right = i >> half, i & mask
        for k in keys:
            left, right = right, left ^ (mixed(k ^ right) & mask)
        i = left << half | right
        if i < n:
            return i


def cached_epoch(elements: Sequence[Element], batch: str, epoch: int, seed: int | None) -> list[Element]:
    """The elements that a channel with cache="job" delivers in this epoch, from 1. `seed` None: they are not shuffled.

    The rows of all elements are permuted, and make elements of the same sizes. With batch="per_rank" the elements are.
    """
    if epoch == 1 or seed is None or not elements:
        return list(elements)
    if batch == "per_rank":
        return [elements[permuted(i, len(elements), seed, epoch)] for i in range(len(elements))]
    whole = map_nest(lambda *arrays: np.concatenate(arrays), *elements)
    n = rows_of(whole)
    order = np.array([permuted(i, n, seed, epoch) for i in range(n)], int)
    ends = np.cumsum([rows_of(element) for element in elements])
    return [
        map_nest(lambda array: array[order[end - rows_of(element) : end]], whole)
        for element, end in zip(elements, ends)
    ]
