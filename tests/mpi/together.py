# SPDX-License-Identifier: Apache-2.0
"""Brings the results of every rank to every rank.

A rank that fails an assertion alone leaves the others waiting in their next collective call. So a test first sends the
results of each rank to all ranks, and then asserts the same on all of them.
"""

from __future__ import annotations

import os
import re
import socket
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from hypothesis import HealthCheck, Phase, seed, settings


def same_on_all_ranks(examples: int) -> Callable[[Any], Any]:
    """Marks a property test: every rank draws the same examples, and no rank searches for smaller ones.

    The seed is the number of processes.
    """
    drawn = seed(int(os.environ.get("HVDATA_TEST_PROCESSES", "0")))
    how = settings(database=None, max_examples=examples, phases=[Phase.explicit, Phase.generate],
                   suppress_health_check=list(HealthCheck))  # fmt: skip
    return lambda test: drawn(how(test))


class Raised(NamedTuple):
    """An exception in a form that can be sent."""

    kind: type
    text: str
    where: str


class Unwilling:
    """Can't be made an array."""

    def __array__(self, *_, **__):
        raise RuntimeError("requires grad")


def attempt(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # every kind, because the other ranks must know
        return Raised(type(error), str(error), traceback.format_exc())


def outcomes(comm, call: Callable[[], Any]) -> list[Any]:
    """The result of `call()`, or a Raised, for every rank in order."""
    return comm.allgather(attempt(call))


def results(comm, call: Callable[[], Any]) -> list[Any]:
    """The results of `call()` on every rank. An exception on any rank fails the test on all of them."""
    got = outcomes(comm, call)
    failed = {rank: f"{one.kind.__name__}: {one.text}" for rank, one in enumerate(got) if isinstance(one, Raised)}
    mine = got[comm.rank]
    assert not failed, f"raised on {failed}" + (f"\n{mine.where}" if isinstance(mine, Raised) else "")
    return got


def on_trainers(hvdata, comm, call: Callable[[], Any]) -> list[Any]:
    """Returns results() of the trainers alone, by rank."""
    got = results(comm, lambda: (hvdata.rank(), call()) if hvdata.is_trainer() else None)
    return [mine for _, mine in sorted(filter(None, got), key=lambda one: one[0])]


def local(channel: Iterable[Any]) -> list[Any]:
    """The elements of one pass over a dataset or a loader in this process: numpy arrays, lists of ragged tensors,
    SparseTensorValues."""

    def numpy(tensor: Any) -> Any:
        if isinstance(tensor, tf.RaggedTensor):
            return tensor.to_list()
        if isinstance(tensor, tf.SparseTensor):
            return tf.compat.v1.SparseTensorValue(
                *(part.numpy() for part in (tensor.indices, tensor.values, tensor.dense_shape))
            )
        return tensor.numpy() if isinstance(tensor, tf.Tensor) else tensor

    return [tf.nest.map_structure(numpy, element) for element in channel]


def elements(comm, dataset: tf.data.Dataset) -> list[list[Any]]:
    """The elements of one pass over `dataset`, for every rank."""
    return results(comm, lambda: local(dataset))


def merged(shares: Sequence[Sequence[Any]]) -> list[Any]:
    """The job's order: rank 0's share of step 0, rank 1's of step 0, ..., then step 1."""
    return [share for step in zip(*shares) for share in step]


def numbers(hvdata, n: int, start: int = 0, **arguments: Any) -> tf.data.Dataset:
    """A channel of n numbers from `start` on, each a batch of one rank."""
    return hvdata.distribute_dataset(tf.data.Dataset.range(start, start + n), **{"batch": "per_rank", **arguments})


def raises_everywhere(comm, call: Callable[[], Any], kind: type | tuple[type, ...], *patterns: str) -> list[Raised]:
    """Asserts that `call()` raises `kind` on every rank, each with a text that has all `patterns`."""
    got = outcomes(comm, lambda: repr(call())[:200])  # not every result can be sent
    for rank, one in enumerate(got):
        assert isinstance(one, Raised), f"rank {rank} raised nothing, it got {one}"
        assert issubclass(one.kind, kind), f"rank {rank} raised {one.kind.__name__}: {one.text}\n{one.where}"
        for pattern in patterns:
            assert re.search(pattern, one.text, re.S), f"rank {rank}: no {pattern!r} in: {one.text}"
    return got


def heard_everywhere(comm, call: Callable[[], Any], who: int, kind: type, *patterns: str) -> None:
    """Does what raises_everywhere() does, but only rank `who` raises `kind`. The others raise InvalidArgumentError."""
    for rank, one in enumerate(raises_everywhere(comm, call, Exception, *patterns)):
        assert one.kind is (kind if rank == who else tf.errors.InvalidArgumentError), (rank, one)


def gradient_of_a_gradient(x: tf.Tensor, call: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.reduce_sum(call(x) ** 3)
        gradient = inner.gradient(y, x)
    return outer.gradient(gradient, x)


def written(comm, capfd, text: str) -> str:
    """Waits until some rank has written `text` to stderr, which may be after the epoch. Returns the stderr of all
    ranks."""
    whole = ""
    for _ in range(200):
        whole += "".join(comm.allgather(capfd.readouterr().err))
        if text in whole:
            break
        time.sleep(0.05)
    return whole


def until(comm, condition: Callable[[], bool], seconds: float = 20) -> None:
    """Waits until the condition is true on every rank. After so many seconds the test fails on all of them."""

    def wait() -> bool:
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.01)
        return bool(condition())

    assert results(comm, wait) == [True] * comm.size


def plain(value: Any) -> Any:
    """Returns `value` with arrays as (dtype, shape, bytes). Results are equal if and only if the bytes are, NaN too."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return (type(value).__name__, *(plain(part) for part in value))
    if isinstance(value, (tuple, list)):
        return [plain(part) for part in value]
    if isinstance(value, bytes):
        return ("string", (), [value])
    array = np.asarray(value)
    if array.dtype == object:
        return ("string", array.shape, array.ravel().tolist())
    return (array.dtype.name, array.shape, array.tobytes())


def on_reader(hvdata, make: Callable[[], tf.data.Dataset]) -> Callable[[], tf.data.Dataset]:
    """Returns a function that calls `make` on the reader, and fails on other ranks."""

    def function() -> tf.data.Dataset:
        assert hvdata.is_reader(), "the dataset function was called on a rank that does not read"
        return make()

    return function


def generated(function: Callable[[], Any], spec: tf.TensorSpec = tf.TensorSpec([], tf.int64)) -> tf.data.Dataset:
    return tf.data.Dataset.from_generator(function, output_signature=spec)


class Counted:
    """A generator and an iterable of 0..n-1 that counts its starts and its elements in this process."""

    def __init__(self, n: int):
        self.n = n
        self.starts = 0
        self.yields = 0

    def __call__(self):
        self.starts += 1
        for i in range(self.n):
            self.yields += 1
            yield i

    def __iter__(self):
        return self()

    def dataset(self) -> tf.data.Dataset:
        return generated(self)


class Failing(Counted):
    """Raises an error before element `at`, in the epochs with these numbers."""

    def __init__(self, n: int, at: int, error: Exception, epochs: Sequence[int] = (1,)):
        super().__init__(n)
        self.at, self.error, self.epochs = at, error, epochs

    def __call__(self):
        fails = self.starts + 1 in self.epochs
        for i in super().__call__():
            if fails and i == self.at:
                raise self.error
            yield i


def host_of(rank: int) -> str:
    """The host name of a process. In some worlds it isn't that of the machine (tests/ranks/rank.sh)."""
    hosts = os.environ.get("HVDATA_TEST_HOSTS")
    return f"host{rank % int(hosts)}" if hosts else socket.gethostname()


def prefix(channel: str = r"\S+", epoch: int | str = r"\d+", step: int | str = r"\d+", host: str | None = None) -> str:
    """The pattern at the start of an error of the reader's pipeline."""
    host = re.escape(host or host_of(0))
    return rf"\[reader 0 on {host}, channel {channel}, epoch {epoch}, step {step}\]"


def dealt(values: Sequence[Any], rank: int, ranks: int) -> list[Any]:
    """Rank `rank`'s part of whole groups of `ranks` values, as per-rank batches under `static` with
    remainder="drop"."""
    return list(values[: len(values) // ranks * ranks][rank::ranks])


def dealt_to_all(comm, values: Sequence[Any]) -> list[list[Any]]:
    """dealt() for every rank."""
    return [dealt(values, rank, comm.size) for rank in range(comm.size)]
