# SPDX-License-Identifier: Apache-2.0
"""Several dedicated readers: the order of their steps, their leftovers, and their errors."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from numbered_rows import check
from oracle import deliver_from_readers, dropped_by_readers
from readers import (
    batches_of,
    failing,
    from_readers,
    shares,
    until_it_fails,
)
from together import attempt, raises_everywhere, same_on_all_ranks

pytestmark = [pytest.mark.world(np=2, readers=2), pytest.mark.readers(3, 2), pytest.mark.limit(120)]
REMAINDERS = ["drop", "partial", "pad"]


def trainers_of(hvdata, comm) -> int:
    return comm.size - hvdata.num_readers()


def test_roles(hvdata, comm):
    trainers = trainers_of(hvdata, comm)
    roles = comm.allgather((hvdata.is_reader(), hvdata.is_trainer(), hvdata.rank(), hvdata.size()))
    assert roles[:trainers] == [(False, True, rank, trainers) for rank in range(trainers)]
    assert roles[trainers:] == [(True, False, None, None)] * hvdata.num_readers()


@pytest.mark.parametrize("batch", ["global", "per_rank"])
@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.usefixtures("either_way")
@same_on_all_ranks(6)
@given(
    rows=st.lists(st.lists(st.integers(0, 9), max_size=9), min_size=3, max_size=3),
    prefetch=st.sampled_from(["auto", 1, 2, 3, 8]),
    door=st.sampled_from(["distribute_dataset", "loader"]),
)
def test_epochs(hvdata, comm, batch, remainder, rows, prefetch, door):
    n, options = trainers_of(hvdata, comm), {"batch": batch, "remainder": remainder, "prefetch": prefetch}
    if batch == "per_rank":
        rows = [[3] * len(mine) for mine in rows]
    batches = [batches_of(r, mine or [3]) for r, mine in enumerate(rows[: hvdata.num_readers()])]
    if door == "loader":
        channel = hvdata.loader(lambda context: batches[context.input_pipeline_id], **options)
    else:
        batches = [mine if its else [] for mine, its in zip(batches, rows)]
        channel = hvdata.distribute_dataset(from_readers(batches), **options)
    want = deliver_from_readers(batches, n, batch, remainder)
    if batch == "per_rank":
        delivered = sum(1 for mine in want for x in mine if (x[1].any() if remainder == "pad" else len(x["id"])))
        assert sum(map(len, batches)) - delivered == dropped_by_readers(batches, n, "per_rank", remainder)
    for _ in range(2):
        check(shares(hvdata, comm, channel), want)


def test_the_context_and_who_calls_the_function(hvdata, comm):
    seen = []
    readers, n = hvdata.num_readers(), trainers_of(hvdata, comm)
    hvdata.distribute_dataset(from_readers([[]] * 3, seen), batch="global")
    assert comm.allgather(seen) == [[]] * n + [[(r, readers, n)] for r in range(readers)]


def test_each_reader_is_told_the_epoch(hvdata, comm):
    seen, n = [], trainers_of(hvdata, comm)

    def make(epoch, context):
        seen.append(epoch)
        first = 1000 * epoch + 100 * context.input_pipeline_id
        return tf.data.Dataset.range(first, first + 2 * n)

    ds = hvdata.distribute_dataset(make, batch="per_rank")
    for epoch in (1, 2, 3):
        want = [1000 * epoch + 100 * reader + i for reader in range(hvdata.num_readers()) for i in range(2 * n)]
        assert sorted(sum(shares(hvdata, comm, ds), [])) == want
    assert comm.allgather(seen) == [[]] * n + [[1, 2, 3]] * hvdata.num_readers()


@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.parametrize("lengths", [(5, 2, 9), (0, 0, 0), (1, 1, 1), (0, 7, 0)])
def test_cardinality(hvdata, comm, lengths, remainder):
    def function(context):
        return tf.data.Dataset.range(lengths[context.input_pipeline_id]).batch(1)

    ds = hvdata.distribute_dataset(function, batch="per_rank", remainder=remainder)
    n, total = trainers_of(hvdata, comm), sum(lengths[: hvdata.num_readers()])
    steps = total // n if remainder == "drop" else -(-total // n)
    assert set(comm.allgather(int(ds.cardinality()))) == {steps}
    assert [len(mine) for mine in shares(hvdata, comm, ds)] == [steps] * n


def test_what_the_readers_disagree_about(hvdata, comm):
    def types(context):
        return tf.data.Dataset.range(4, output_type=tf.int32 if context.input_pipeline_id else tf.int64)

    def components(context):
        ds = tf.data.Dataset.range(4)
        return tf.data.Dataset.zip((ds, ds)) if context.input_pipeline_id else ds

    for function, says in (
        (types, r"the readers' datasets in distribute_dataset\(name='t'\) have different elements: for reader 0 the element "
         r"is int64 of shape \(\), for reader 1 it is int32 of shape \(\).*same kind of dataset"),
        (components, r"different elements: reader 0 has the element, reader 1 has \[0\], \[1\]"),
    ):  # fmt: skip
        call = lambda function=function: hvdata.distribute_dataset(function, batch="per_rank", name="t")
        raises_everywhere(comm, call, ValueError, says)


def test_shapes_that_differ_are_unknown(hvdata, comm):
    ds = hvdata.distribute_dataset(
        lambda context: tf.data.Dataset.from_tensors(tf.zeros([4, 2 + context.input_pipeline_id])).repeat(comm.size),
        batch="per_rank",
    )
    assert set(comm.allgather(repr(ds.element_spec))) == {"TensorSpec(shape=(4, None), dtype=tf.float32, name=None)"}
    assert {x.shape for mine in shares(hvdata, comm, ds) for x in mine} >= {(4, 2), (4, 3)}


def one_fails(n):
    """4 n elements on each reader. Reader 1 fails after 2 n."""

    def function(context):
        first = 100 * context.input_pipeline_id
        return failing(tf.data.Dataset.range(first, first + 4 * n), 100 + 2 * n)

    return function


def test_an_error_names_its_reader_on_every_rank(hvdata, comm):
    n, readers = trainers_of(hvdata, comm), hvdata.num_readers()
    ds = hvdata.distribute_dataset(one_fails(n), batch="per_rank", name="bad")
    for _ in range(2):  # the next epoch has the same elements and error
        for rank, (got, text) in enumerate(until_it_fails(hvdata, comm, ds)):
            assert got == [100.0 * r + k * n + rank for k in range(2) for r in range(readers)] + [2.0 * n + rank]
            assert "[reader 1 on " in text and "step 2 of its own]" in text and "bad row" in text


def test_on_reader_error_continue(hvdata, comm):
    n, readers = trainers_of(hvdata, comm), hvdata.num_readers()
    ds = hvdata.distribute_dataset(one_fails(n), batch="per_rank", on_reader_error="continue")
    lengths = [4 * n, 2 * n] + [4 * n] * (readers - 2)
    batches = [[np.float32(100 * r + i) for i in range(length)] for r, length in enumerate(lengths)]
    for _ in range(2):
        check(shares(hvdata, comm, ds), deliver_from_readers(batches, n, "per_rank"))
    # The length is unknown, because Keras relies on a known one.
    assert set(comm.allgather(int(ds.cardinality()))) == {-2}


def test_readers_dont_iterate(hvdata, comm):
    ds = hvdata.distribute_dataset(lambda context: tf.data.Dataset.range(2), batch="per_rank", name="mine")
    got = comm.allgather(attempt(lambda: next(iter(ds))) if hvdata.is_reader() else None)
    for one in got[trainers_of(hvdata, comm) :]:
        assert issubclass(one.kind, tf.errors.FailedPreconditionError) and "call horovod_data.serve() there" in one.text
