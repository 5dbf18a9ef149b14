# SPDX-License-Identifier: Apache-2.0
"""The random cases of `make soak`, and the shares of each rank. Every rank draws the same case from its number."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import oracle

INTEGERS = "int8 int16 int32 int64 uint8 uint16 uint32 uint64"
DTYPES = f"float32 float64 float16 bfloat16 {INTEGERS} bool complex64 string".split()
# How the reader's pipeline makes its elements:
# generator: in Python; batched: TensorFlow batches rows; mapped: the same with a map and a prefetch;
# ready-made: the pipeline keeps its tensors; single: elements have no rows.
KINDS = ["generator", "batched", "mapped", "ready-made", "single"]
FORMS = 15  # of elements in a job
MOST_BYTES = 6 << 20  # of all elements of a case: many small cases find more than a few large ones


@dataclasses.dataclass(frozen=True)
class Epoch:
    """`how` is one of:

    - "whole"
    - "break": rank r leaves after `at[r]` steps, or at the end of the epoch
    - "go on", "restore", "new channel": all ranks save after `at[0]` steps. They go on with the same iterator, with
      another iterator, or with an iterator of another channel
    """

    how: str
    at: list[int]


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    batch: str
    schedule: str
    remainder: str
    prefetch: int | str  # steps, or "auto"
    kind: str
    nest: str
    parts: list[tuple[str, tuple[int, ...]]]  # dtype, and shape of a row
    lengths: list[int]  # rows of each element
    epochs: list[Epoch]
    slow: int  # the rank that sleeps a little at each step; -1: none
    cache: str | None  # "job", or None
    shuffle: bool  # with "job"
    seed: int  # with `shuffle`; otherwise 0

    def elements(self) -> list[Any]:
        drawn = np.random.default_rng(list(self.name.encode()))

        def element(rows: int) -> Any:
            shapes = [shape if self.kind == "single" else (rows, *shape) for _, shape in self.parts]
            return nested(self.nest, [_array(drawn, dtype, shape) for (dtype, _), shape in zip(self.parts, shapes)])

        return [element(rows) for rows in self.lengths]


def draw(job: str, number: int, trainers: int) -> Case:
    """Returns case `number` of the job with this name and this many trainers."""
    name = f"{job}/{number}"
    r = random.Random(name)
    form = _form(job, r.randrange(FORMS))
    schedule = r.choice(["static", "static", "static", "dynamic"])
    batch = "per_rank" if schedule == "dynamic" or form.kind == "single" else r.choice(["global", "per_rank"])
    # Elements without rows have no empty share for `partial`.
    remainder = r.choice(
        ["drop", "partial", "pad"] if form.kind != "single" or schedule == "dynamic" else ["drop", "pad"]
    )
    lengths = _lengths(r, form)
    row = sum(int(np.prod(shape)) * 8 for _, shape in form.parts)
    while sum(lengths) * row > MOST_BYTES:
        lengths = lengths[: len(lengths) // 2]
    steps = len(lengths) if batch == "global" else len(lengths) // trainers
    epochs = [_epoch(r, schedule, steps, trainers) for _ in range(r.choice([1, 2, 2, 3]))]
    prefetch = r.choice(["auto", "auto", 1, 2, 3, 8, 64])
    slow = r.choice([-1, -1, r.randrange(trainers)])
    cache = r.choice(["job", None, None]) if schedule == "static" else None
    shuffle = cache is not None and r.choice([True, True, False])
    seed = r.getrandbits(64) if shuffle else 0
    return Case(
        name, batch, schedule, remainder, prefetch, form.kind, form.nest, form.parts, lengths, epochs, slow,
        cache, shuffle, seed,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Form:
    """The shape of elements, and how they are made. A job has few forms, because TensorFlow keeps memory for each."""

    kind: str
    nest: str
    parts: list[tuple[str, tuple[int, ...]]]
    rows: int  # of most elements


def _form(job: str, number: int) -> _Form:
    r = random.Random(f"{job}, form {number}")
    width = r.choice([1, 3, 16, 200, 1000, 6000])  # about how many numbers a row has
    parts = [
        (r.choice(DTYPES), r.choice([(width,), (1, width), (2, -(-width // 2))] + [()] * (width == 1)))
        for _ in range(r.choice([1, 1, 2, 2, 3]))
    ]
    kind = KINDS[number % len(KINDS)]
    # With "drop" a known number of rows must be divisible by each possible number of ranks.
    rows = 12 if kind == "ready-made" else r.choice([1, 2, 7, 12, 32])
    return _Form(kind, _nest(r, len(parts)), parts, rows)


def _lengths(r: random.Random, form: _Form) -> list[int]:
    count = r.choice([r.randint(0, 5), r.randint(6, 40), r.randint(20, 120)])
    if form.kind == "generator":
        return [r.choice([r.randint(0, 3), r.randint(1, 40)]) for _ in range(count)]
    if form.kind in ("single", "ready-made"):
        return [1 if form.kind == "single" else form.rows] * count
    return [form.rows] * count + ([r.randint(1, form.rows)] if r.random() < 0.5 else [])


def _epoch(r: random.Random, schedule: str, steps: int, trainers: int) -> Epoch:
    saves = ["go on", "restore", "new channel"]
    how = r.choice(["whole", "whole", "break", "break", *(saves if schedule == "static" else r.sample(saves, 1))])
    # With "dynamic", a rank at the end of an epoch waits for ranks that stopped before the end.
    most = steps if schedule == "static" else steps // 2
    if how in saves:
        return Epoch(how, [r.randint(0, most)])
    # A rank takes at least one step. Other ranks would wait for a rank that does not begin the epoch.
    return Epoch(how, [r.choice([r.randint(1, max(1, steps)), steps + 1]) for _ in range(trainers)])


def _nest(r: random.Random, parts: int) -> str:
    return r.choice({1: ["one", "dict"], 2: ["tuple", "dict"], 3: ["tuple", "dict", "nested"]}[parts])


def nested(nest: str, arrays: Sequence[Any]) -> Any:
    if nest == "one":
        return arrays[0]
    if nest == "tuple":
        return tuple(arrays)
    if nest == "dict":
        return {f"part{i}": array for i, array in enumerate(arrays)}
    return {"first": arrays[0], "others": tuple(arrays[1:])}


def _array(drawn: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Any:
    count = int(np.prod(shape))
    if dtype == "string":
        texts = np.empty(count, object)
        texts[:] = [drawn.bytes(int(length)) for length in drawn.integers(0, 20, count)]
        return texts.reshape(shape)
    if dtype == "bool":
        return drawn.integers(0, 2, count).astype(bool).reshape(shape)
    if dtype == "bfloat16":
        import tensorflow as tf

        return np.frombuffer(drawn.bytes(2 * count), tf.bfloat16.as_numpy_dtype).reshape(shape)
    # The bits are random. NaN, infinities and denormals must arrive unchanged.
    return np.frombuffer(drawn.bytes(count * np.dtype(dtype).itemsize), dtype).reshape(shape)


def of_readers(elements: Sequence[Any], readers: int) -> list[list[Any]]:
    """Each reader's part: every readers-th element."""
    return [list(elements[reader::readers]) for reader in range(readers)]


def shares(case: Case, elements: Sequence[Any], readers: int, trainers: int, epoch: int) -> list[list[Any]]:
    """Returns the shares that each trainer must get in this epoch, in order. Epochs count from 1.

    With "dynamic", each trainer's list has all elements.
    """
    if case.cache:
        loaded = oracle.rotate(of_readers(elements, readers))
        ordered = oracle.cached_epoch(loaded, case.batch, epoch, case.seed if case.shuffle else None)
        return oracle.deliver(ordered, trainers, case.batch, remainder=case.remainder)
    if case.schedule == "static":
        return oracle.deliver_from_readers(of_readers(elements, readers), trainers, case.batch, case.remainder)
    if case.remainder == "pad":  # the weights are all 1
        elements = [oracle.add_weight(one, np.ones(oracle.weight_shape(one), np.float32)) for one in elements]
    return [list(elements)] * trainers


def rows(case: Case, share: Any) -> int:
    """The rows of a share without padding. An element whose arrays have no common axis 0 counts as one row."""
    arrays = oracle.flatten(share)
    weight = arrays.pop() if case.remainder == "pad" else None
    if weight is not None and not np.any(weight):
        return 0
    axes = {array.shape[:1] for array in arrays}
    if len(axes) > 1 or axes == {()}:
        return 1
    return len(arrays[0]) if weight is None else int(np.sum(weight))
