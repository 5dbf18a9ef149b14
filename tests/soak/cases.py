# SPDX-License-Identifier: Apache-2.0
"""The random cases of `make soak` and the rows of each rank. A number decides all of it, on every rank."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import oracle

DTYPES = [
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
    "complex64",
    "string",
]
# How the reader's pipeline makes its elements: by Python; rows that TensorFlow batches; that and a map and a prefetch;
# tensors that it keeps; elements without rows.
KINDS = ["generator", "batched", "mapped", "ready-made", "single"]
FORMS = 15  # of elements in a job
MOST_BYTES = 6 << 20  # of all elements of a case: many small cases find more than a few large ones


@dataclasses.dataclass(frozen=True)
class Epoch:
    """`how`: "whole"; "break": rank r leaves after `at[r]` steps, if it is there by then; "go on", "restore" and "new channel":
    all save after `at[0]` steps and go on with the same iterator, another one, or another channel's."""

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

    def elements(self) -> list[Any]:
        drawn = np.random.default_rng(list(self.name.encode()))
        return [
            nested(
                self.nest,
                [
                    _array(drawn, dtype, shape if self.kind == "single" else (rows, *shape))
                    for dtype, shape in self.parts
                ],
            )
            for rows in self.lengths
        ]


def draw(job: str, number: int, trainers: int) -> Case:
    """The case of this number of the job of this name, which has so many trainers."""
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
    return Case(
        name,
        batch,
        schedule,
        remainder,
        r.choice(["auto", "auto", 1, 2, 3, 8, 64]),
        form.kind,
        form.nest,
        form.parts,
        lengths,
        epochs,
        r.choice([-1, -1, r.randrange(trainers)]),
    )


@dataclasses.dataclass(frozen=True)
class _Form:
    """What elements look like, and how they are made. TensorFlow keeps something of each that it has met, for ever."""

    kind: str
    nest: str
    parts: list[tuple[str, tuple[int, ...]]]
    rows: int  # of most elements


def _form(job: str, number: int) -> _Form:
    r = random.Random(f"{job}, form {number}")
    width = r.choice([1, 3, 16, 200, 1000, 6000])  # numbers in a row, about
    parts = [
        (r.choice(DTYPES), r.choice([(width,), (1, width), (2, -(-width // 2))] + [()] * (width == 1)))
        for _ in range(r.choice([1, 1, 2, 2, 3]))
    ]
    kind = KINDS[number % len(KINDS)]
    # Of a known size, which `drop` wants to be divided by the ranks: by any number of them.
    rows = 12 if kind == "ready-made" else r.choice([1, 2, 7, 12, 32])
    return _Form(kind, _nest(r, len(parts)), parts, rows)


def draw_handed_on(name: str) -> Case:
    """A case that one job begins and another one goes on with, on another number of ranks: nothing of it depends on that."""
    r = random.Random(name)
    kind = r.choice(["generator", "batched", "mapped", "ready-made"])
    parts = [(r.choice(DTYPES), (r.choice([1, 50, 3000]),)) for _ in range(r.choice([1, 2]))]
    rows = r.randint(4, 9)
    lengths = [r.randint(1, 9) if kind == "generator" else rows for _ in range(r.randint(12, 24))]
    return Case(
        name,
        r.choice(["global", "per_rank"]),
        "static",
        "partial",
        r.choice(["auto", 1, 2, 4]),
        kind,
        _nest(r, len(parts)),
        parts,
        lengths,
        [Epoch("whole", [])],
        -1,
    )


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
    most = (
        steps if schedule == "static" else steps // 2
    )  # a rank that comes to the end waits for those that stop short of it
    if how in saves:
        return Epoch(how, [r.randint(0, most)])
    # One step at least: a rank that does not begin an epoch has not left it, and the others wait for it.
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
    # Any bits: NaN, infinities and denormals are to arrive as they were.
    return np.frombuffer(drawn.bytes(count * np.dtype(dtype).itemsize), dtype).reshape(shape)


def of_readers(elements: Sequence[Any], readers: int) -> list[list[Any]]:
    """Each reader's part: every readers-th element."""
    return [list(elements[reader::readers]) for reader in range(readers)]


def shares(case: Case, elements: Sequence[Any], readers: int, trainers: int) -> list[list[Any]]:
    """For each trainer what it is to get in one epoch, in its order. With "dynamic" any of them may get any of it: all."""
    if case.schedule == "static":
        return oracle.deliver_from_readers(of_readers(elements, readers), trainers, case.batch, case.remainder)
    if case.remainder == "pad":  # nothing is ever missing
        elements = [oracle.add_weight(one, np.ones(oracle.weight_shape(one), np.float32)) for one in elements]
    return [list(elements)] * trainers


def rows_delivered(case: Case, elements: Sequence[Any], readers: int, trainers: int) -> int:
    """How many rows of them a whole epoch delivers, padding not counted; an element without rows counts as one."""
    if case.kind == "single" and any(len(shape) == 0 or shape[0] != case.parts[0][1][0] for _, shape in case.parts):
        rows = [1] * len(elements)
    else:
        rows = [len(oracle.flatten(one)[0]) for one in elements]
    if case.schedule == "dynamic" or case.remainder != "drop":
        return sum(rows)
    if case.batch == "global":
        return sum(count // trainers * trainers for count in rows)
    # Whole steps of each reader first, then of what they have left, in their order.
    parts = of_readers(rows, readers)
    left = [count for part in parts for count in part[len(part) // trainers * trainers :]]
    return sum(rows) - sum(left[len(left) // trainers * trainers :])
