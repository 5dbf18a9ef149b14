# SPDX-License-Identifier: Apache-2.0
"""Verified channels: the records of the certificate. No rank receives an altered byte."""

import resource
import time

import pytest
import tensorflow as tf
from checkpoints import restored, saved
from together import elements, raises_everywhere, results

from horovod_data.certificate import last

pytestmark = pytest.mark.world(np=3)


def certificate(hvdata, comm, name):
    """The last record of a channel. Reader 0 has it when ranks see the end of the epoch."""
    return comm.bcast(last().get(name), 0)


def channel(hvdata, make, name, **arguments):
    return hvdata.distribute_dataset(make, name=name, verify=True, **arguments)


KINDS = {
    "numbers": lambda ds: ds,
    "strings": lambda ds: ds.map(tf.as_string),
    "nest": lambda ds: ds.map(
        lambda i: {"x": tf.fill([3, 2], tf.cast(i, tf.bfloat16)), "y": (i % 2 == 0, tf.as_string(i))}
    ),
}


@pytest.mark.parametrize(
    "batch, remainder", [("global", "drop"), ("global", "partial"), ("global", "pad"), ("per_rank", "drop")]
)
@pytest.mark.parametrize("kind", [*KINDS, "ragged", "sparse"])
def test_an_epoch(hvdata, comm, kind, batch, remainder):
    rows, each = 10 * comm.size + 3, 2 * comm.size + 1

    def make():
        ds = tf.data.Dataset.range(rows)
        if kind == "ragged":
            return ds.map(lambda i: tf.range(i % 4)).ragged_batch(each)
        if kind == "sparse":
            return ds.batch(each).map(lambda i: tf.sparse.from_dense(tf.stack([i, i % 3], 1)))
        return KINDS[kind](ds).batch(each, drop_remainder=False)

    name = f"{kind}-{batch}-{remainder}"
    got = elements(comm, channel(hvdata, make, name, batch=batch, remainder=remainder))
    record = certificate(hvdata, comm, name)
    sizes = [each] * (rows // each) + [rows % each] * (rows % each > 0)
    dropped = (
        sum(size % comm.size for size in sizes)
        if batch == "global"
        else sum(sizes[len(sizes) // comm.size * comm.size :])
    )
    dropped = dropped if remainder == "drop" else 0
    assert (record["verdict"], record["rows"], record["dropped"]) == ("complete", rows - dropped, dropped)
    assert sum(record["rows_per_rank"]) == rows - dropped
    assert record["steps_per_rank"] == [len(its) for its in got]


def test_an_error_that_is_no_text(hvdata, comm):
    """The record quotes the error, whose file name may not be UTF-8."""

    def make():
        return tf.data.Dataset.range(2 * comm.size).map(lambda i: (i, tf.io.read_file(b"/nowhere/caf\xe9.jpg")))

    name = "no text\u2028nor a line"  # which Python's splitlines() would split
    dataset = channel(hvdata, make, name, batch="per_rank")
    # TensorFlow can't make the text of an error that is none.
    raises_everywhere(comm, lambda: list(dataset), (tf.errors.NotFoundError, UnicodeDecodeError), "(nowhere/caf|utf-8)")
    record = None
    while record is None:  # the reader makes it when it has heard from all ranks
        record = results(comm, lambda: certificate(hvdata, comm, name))[0]
    assert "caf\ufffd.jpg" in record["why"]
    results(comm, hvdata.stats)


@pytest.mark.slow
def test_a_sparse_vector_of_hashed_features(hvdata, comm):
    """Nearly all rows are empty. The fingerprints of all rows at once would take 256 MiB; the certificate needs little
    memory."""
    length = 1 << 25

    def make():
        vector = tf.SparseTensor([[7], [length - 1]], [1.0, 2.0], [length])
        return tf.data.Dataset.from_tensors(vector).repeat(comm.size)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    elements(comm, channel(hvdata, make, "hashed", batch="per_rank"))
    record = certificate(hvdata, comm, "hashed")
    assert (record["verdict"], record["rows"]) == ("complete", comm.size * length)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 128 << 10  # KiB


@pytest.mark.parametrize("schedule", ["static", "dynamic"])
def test_the_digest_depends_on_rows_and_order_alone(hvdata, comm, schedule):
    """The digest doesn't depend on the number of ranks, on which rank takes which rows, or on the epoch. The test has
    the digests."""

    def digests(change, name):
        make = lambda: tf.data.Dataset.range(60).map(change)
        ds = channel(hvdata, make, f"{name}-{schedule}", batch="per_rank", schedule=schedule)
        got = set()
        for _ in range(2):
            elements(comm, ds)
            record = certificate(hvdata, comm, f"{name}-{schedule}")
            got.add((record["rows"], record["order"], record["any_order"]))
        return got

    assert digests(lambda i: i, "digest") == {(60, "103315cce3d93d8d", "c56b64c9f1132c23")}
    ((_, order, any_order),) = digests(lambda i: 59 - i, "reverse")
    assert any_order == "c56b64c9f1132c23" and order != "103315cce3d93d8d"


def test_the_digest_does_not_depend_on_the_way(hvdata, comm):
    """Elements too large for a header travel as messages, in shared memory, or both. The test has the digests."""
    make = lambda: tf.data.Dataset.range(12).map(lambda i: tf.fill([5000], i))
    elements(comm, channel(hvdata, make, "digest-large", batch="per_rank"))
    record = certificate(hvdata, comm, "digest-large")
    assert (record["rows"], record["order"], record["any_order"]) == (60000, "142448bb479e34c6", "79d2ea4d20daad00")


def test_a_rank_that_stops_short_holds_nobody_up_for_ever(hvdata, comm):
    """The rank keeps its iterator. The others see the end after three seconds at most."""
    ds = channel(hvdata, lambda: tf.data.Dataset.range(3 * comm.size), "short", batch="per_rank", prefetch=4)
    begin = time.monotonic()

    def go():
        iterator = iter(ds)
        taken = sum(1 for _ in zip(range(2 if comm.rank == comm.size - 1 else 100), iterator))
        comm.Barrier()
        return taken

    assert results(comm, go) == [3] * (comm.size - 1) + [2]
    assert time.monotonic() - begin < 13


def same_record(one, other, keys=None):
    """Asserts that two records are the same, apart from the number of the epoch."""
    different = {key: (one[key], other[key]) for key in keys or one if one[key] != other[key] and key != "epoch"}
    assert not different, different


@pytest.mark.parametrize("batch", ["global", "per_rank"])
@pytest.mark.parametrize("further", [0, 1])
def test_over_a_checkpoint(hvdata, comm, path, batch, further):
    """The record equals that of a run without interruption, also if some ranks save a step later than others."""
    taken = 7 + further * (comm.rank % 2)

    def run():
        each = 2 * comm.size if batch == "global" else 2
        make = lambda: tf.data.Dataset.range(30 * comm.size).shuffle(16, seed=5).batch(each).prefetch(2)
        return channel(hvdata, make, "resumed", batch=batch)

    elements(comm, run())
    whole = certificate(hvdata, comm, "resumed")
    it = iter(run())
    results(comm, lambda: [next(it).shape[0] for _ in range(taken)])
    saved(comm, it, path)
    results(comm, lambda: [next(it).shape[0] for _ in range(comm.rank % 2)])
    del it
    again = restored(comm, run(), path)
    assert results(comm, lambda: taken + sum(1 for _ in again)) == [15] * comm.size
    same_record(whole, certificate(hvdata, comm, "resumed"))
