# SPDX-License-Identifier: Apache-2.0
"""loader(): memory that several users read and write, and errors that must not pass for the end of an epoch."""

import ctypes
import gc
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
from together import dealt_to_all, merged, on_trainers, raises_everywhere, results, until

pytestmark = [pytest.mark.world(np=3), pytest.mark.ranks(1, 2, 3)]


def in_use(hvdata) -> int:
    gc.collect()
    return hvdata.stats().get("arena_bytes_in_use", 0)


@pytest.fixture(autouse=True)
def before(hvdata, comm):
    """The bytes of shared memory that shares of earlier tests use, on this rank."""
    comm.Barrier()
    return in_use(hvdata)


def large(n: int) -> list[np.ndarray]:
    """Elements that travel in shared memory."""
    return [np.full(20000, i, np.int64) for i in range(n)]


# ---- Errors.


def test_a_source_that_was_cancelled(hvdata, comm):
    """The error has the code with which Ctrl-C ends a wait."""

    def source(epoch):
        if epoch == 2:
            raise tf.errors.CancelledError(None, None, "the storage has closed")
        return range(2 * comm.size)

    loader = hvdata.loader(source, batch="per_rank")
    assert results(comm, lambda: len(list(loader))) == [2] * comm.size
    raises_everywhere(comm, lambda: list(loader), RuntimeError, "epoch 2, step 0.*the storage has closed")


@pytest.mark.parametrize("given", ["loader", "iterator", "function"])
def test_a_loader_is_no_source(hvdata, comm, given):
    """Otherwise the reader would wait for itself."""
    loader = hvdata.loader(range(8), batch="per_rank")
    source = {"loader": loader, "iterator": iter(loader), "function": lambda: loader}[given]
    call = lambda: hvdata.loader(source, batch="per_rank")
    raises_everywhere(comm, call, ValueError, r"is what loader\(\) returned.*would wait for itself.*the original")


# ---- Memory.


@pytest.fixture
def torch(monkeypatch):
    """The part of torch that makes tensors of arrays. `make test-frameworks` tests the real torch."""
    kinds = {name: np.dtype(name) for name in ("int64", "float32")}
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(dtype=np.dtype, from_numpy=lambda x: x, **kinds))


SOURCES = {
    "cached": lambda x, rows: tf.data.Dataset.from_tensor_slices(x).batch(rows).cache(),
    "cached and mapped": lambda x, rows: tf.data.Dataset.from_tensor_slices(x).batch(rows).cache().map(lambda x: x),
    "repeated": lambda x, rows: tf.data.Dataset.from_tensors(x[:rows]).repeat(3),
}


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("columns", [1, 4000])
@pytest.mark.parametrize("batch", ["global", "per_rank"])
@pytest.mark.usefixtures("torch")
def test_the_reader_writes_into_its_tensors(hvdata, comm, kind, columns, batch):
    """The reader may write into its tensors. Its own pipeline must not see what it writes."""
    rows, n = 2 * comm.size, 3 * comm.size
    x = np.arange(rows * n * columns, dtype=np.int64).reshape(-1, columns)
    loader = hvdata.loader(lambda: SOURCES[kind](x, rows), batch=batch, to="torch")

    def epoch():
        got = []
        for share in loader:
            got.append(share[:, 0].tolist())
            if hvdata.is_reader():
                share += 1
        return got

    first = on_trainers(hvdata, comm, epoch)
    assert on_trainers(hvdata, comm, epoch) == first
    assert merged(first)[0][0] == 0


def test_filler_rows_are_a_copy(hvdata, comm):
    """With remainder="repeat" rows of one rank also fill other ranks' last step.

    The first rank writes into its rows.
    """
    loader = hvdata.loader([np.zeros([4, 4000])], batch="per_rank", remainder="repeat", verify=True)

    def written():
        share = next(it)[0]
        if hvdata.is_reader():
            ctypes.memset(share.ctypes.data, 1, share.nbytes)
        return True

    it = iter(loader)
    assert not hvdata.is_reader() or written()
    comm.barrier()
    got = results(comm, lambda: [float(share.sum()) for share, _ in it])
    assert got == [[]] + [[0.0]] * (comm.size - 1)


def test_shares_that_no_program_has_got(hvdata, comm, before):
    """A signal's handler may raise when the share has come. Its memory is free with the next share, or the iterator."""
    loader = hvdata.loader(large(4 * comm.size), batch="per_rank", prefetch=1)

    def lost():
        it = iter(loader)
        return [len(it.shares.next()) for _ in range(3)]

    assert results(comm, lost) == [[1, 1, 1]] * comm.size
    until(comm, lambda: in_use(hvdata) <= before)  # a reader learns from a message that a share is free


def test_threads_share_an_iterator(hvdata, comm, before):
    n = 2000
    elements = [{str(name): np.full(5, i, np.int64) for name in range(8)} for i in range(n)]
    loader = hvdata.loader(elements, batch="per_rank")

    def taken():
        it = iter(loader)

        def some():
            got = []
            for share in it:
                (value,) = {int(x) for column in share.values() for x in column}
                got.append(value)
            return got

        with ThreadPoolExecutor(8) as pool:
            parts = [thread.result() for thread in [pool.submit(some) for _ in range(8)]]
        return sorted(value for part in parts for value in part)

    assert results(comm, taken) == dealt_to_all(comm, range(n))
    until(comm, lambda: in_use(hvdata) <= before)  # a reader learns from a message that a share is free
