# SPDX-License-Identifier: Apache-2.0
"""Verified channels: the records of the certificate. No rank receives an altered byte."""

import resource
import time

import numpy as np
import pytest
import tensorflow as tf
from checkpoints import restored, save, saved
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


@pytest.mark.ranks(2, 3, 4)
def test_over_two_checkpoints_of_a_dynamic_epoch(hvdata, comm, path):
    """Elements of the first checkpoint are dealt after rank 0's second save, and taken before the other ranks'
    saves."""

    def run(prefetch):
        make = lambda: tf.data.Dataset.range(20 * comm.size)
        return channel(hvdata, make, "again", batch="per_rank", schedule="dynamic", prefetch=prefetch)

    def leg(it, number, steps):
        rows = [results(comm, lambda: int(next(it)))[comm.rank]]
        if comm.rank > 0:
            comm.Barrier()
            rows += [int(next(it)) for _ in range(steps)]
        save(it, f"{path}{number}")
        if comm.rank == 0:
            comm.Barrier()
        return sum(comm.allgather(rows), [])

    elements(comm, run(2))
    whole = certificate(hvdata, comm, "again")
    rows = leg(iter(run(8)), 0, 0) + leg(restored(comm, run(1), f"{path}0"), 1, 3)
    rest = restored(comm, run(2), f"{path}1")
    rows += sum(results(comm, lambda: [int(row) for row in rest]), [])
    assert sorted(rows) == list(range(20 * comm.size))
    same_record(whole, certificate(hvdata, comm, "again"), ("verdict", "elements", "rows", "order", "any_order"))


@pytest.mark.parametrize("schedule", ["static", "dynamic"])
def test_behind_a_run_that_was_not_verified(hvdata, comm, path, unverified, schedule):
    """The rows of the unverified run are unknown. They stay unknown when a verified run of that epoch is saved and
    resumed."""

    def make():
        return tf.data.Dataset.range(40 * comm.size).shuffle(16, seed=5)

    def leg(number, verify, steps):
        """Restores the state before, and saves one unless it runs to the end."""
        ds = hvdata.distribute_dataset(make, batch="per_rank", schedule=schedule, name="legs", verify=verify)
        it = restored(comm, ds, f"{path}{number - 1}") if number else iter(ds)
        rows = []
        results(comm, lambda: rows.extend(int(row) for _, row in zip(range(steps), it)))
        if steps < 100:
            comm.Barrier()
            saved(comm, it, f"{path}{number}")
            comm.Barrier()
        return sum(comm.allgather(rows), [])

    before = leg(0, False, 10)
    rest = leg(1, True, 10) + leg(2, True, 1000)
    assert sorted(before + rest) == list(range(40 * comm.size))
    record = certificate(hvdata, comm, "legs")
    assert (record["verdict"], record["unverified"], record["rows"]) == ("not complete", len(before), len(rest)), record
    assert record["why"] == f"{len(before)} elements were delivered by a run that was not verified"
    assert record["elements"] == 40 * comm.size and record["lost"] == record["twice"] == record["altered"] == 0
    # dynamic: from the last restore on
    assert sum(record["rows_per_rank"]) == (len(rest) if schedule == "static" else len(rest) - 10 * comm.size)


@pytest.mark.parametrize("state", ["the pipeline's state", "replayed"])
def test_over_a_checkpoint_behind_elements_without_rows(hvdata, comm, path, state):
    """The reader is past these elements when the state is saved, and the ranks are not. The elements count once."""
    lengths = [comm.size, comm.size, 0, 0, 0, comm.size, 0, comm.size]

    def make():
        if state == "replayed":
            spec = tf.TensorSpec([None], tf.int64)
            return tf.data.Dataset.from_generator(lambda: (np.arange(n) for n in lengths), output_signature=spec)
        return tf.data.Dataset.from_tensor_slices(lengths).map(tf.range)

    ds = channel(hvdata, make, "gaps", batch="global", prefetch=1)
    elements(comm, ds)
    whole = certificate(hvdata, comm, "gaps")
    it = iter(ds)
    results(comm, lambda: [next(it).shape[0] for _ in range(2)])
    time.sleep(0.3)  # in which the reader goes on to the next step
    saved(comm, it, path)
    del it
    again = restored(comm, ds, path)
    assert results(comm, lambda: sum(1 for _ in again)) == [2] * comm.size
    same_record(whole, certificate(hvdata, comm, "gaps"))


def test_what_verify_may_be(hvdata, comm, unverified):
    for wrong in (1, "yes", None):
        raises_everywhere(
            comm,
            lambda wrong=wrong: hvdata.distribute_dataset(tf.data.Dataset.range(4), batch="per_rank", verify=wrong),
            TypeError,
            "verify must be True or False",
        )
    if comm.size > 1:
        raises_everywhere(
            comm,
            lambda: hvdata.distribute_dataset(tf.data.Dataset.range(4), batch="per_rank", verify=comm.rank == 0),
            ValueError,
            "disagree",
            "verify=True on rank 0",
        )


@pytest.mark.parametrize("caches", [("job", None), (None, "job")])
def test_a_name_is_distributed_again(hvdata, comm, caches):
    """The record is that of the newest channel, whichever of the two is cached."""
    for cache, steps in zip(caches, (4, 9)):
        make = lambda: tf.data.Dataset.range(steps * comm.size).batch(comm.size)
        elements(comm, channel(hvdata, make, "twice", batch="global", cache=cache))
        assert certificate(hvdata, comm, "twice")["elements"] == steps
