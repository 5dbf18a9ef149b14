# SPDX-License-Identifier: Apache-2.0
"""Several dedicated readers: the order of their steps, their leftovers, and their errors."""

import itertools
import time

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from oracle import deliver_from_readers, dropped_by_readers, equal, is_dynamic_delivery
from together import Raised, attempt, outcomes, raises_everywhere, results, same_on_all_ranks

pytestmark = [pytest.mark.world(np=2, readers=3), pytest.mark.readers(2, 3), pytest.mark.limit(120)]
REMAINDERS = ["drop", "partial", "pad"]
lengths_of_readers = st.lists(st.integers(0, 9), min_size=3, max_size=3)
prefetches = st.sampled_from(["auto", 1, 2, 3, 8])


def batches_of(reader: int, rows_of_batches):
    """Rows that contain the number of their reader."""
    starts = itertools.accumulate(rows_of_batches, initial=1000 * reader)
    return [
        (np.arange(first, first + rows), np.array([b"%d" % reader] * rows, object))
        for first, rows in zip(starts, rows_of_batches)
    ]


def from_readers(batches_of_readers, seen=None):
    """A dataset function that yields other batches on each reader."""
    spec = (tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.string))

    def function(context):
        if seen is not None:
            seen.append((context.input_pipeline_id, context.num_input_pipelines, context.num_replicas_in_sync))
        mine = batches_of_readers[context.input_pipeline_id]
        return tf.data.Dataset.from_generator(lambda: iter(mine), output_signature=spec)

    return function


def shares(hvdata, comm, dataset):
    """The elements of one pass for each trainer, in order. Other processes don't iterate."""

    def local():
        if not hvdata.is_trainer():
            return None
        return [tf.nest.map_structure(lambda tensor: tensor.numpy(), element) for element in dataset]

    return [got for got in results(comm, local) if got is not None]


def trainers_of(hvdata, comm) -> int:
    return comm.size - hvdata.num_readers()


def assert_delivered(got, want, note):
    assert [len(mine) for mine in got] == [len(mine) for mine in want], note
    for mine, its in zip(got, want):
        assert all(equal(a, b) for a, b in zip(mine, its)), (note, got, want)


def test_roles(hvdata, comm):
    readers = hvdata.num_readers()
    trainers = trainers_of(hvdata, comm)
    assert (
        comm.allgather((hvdata.is_reader(), hvdata.is_trainer(), hvdata.rank(), hvdata.size()))
        == [(False, True, rank, trainers) for rank in range(trainers)] + [(True, False, None, None)] * readers
    )


@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.usefixtures("either_way")
@same_on_all_ranks(4)
@given(lengths=lengths_of_readers, prefetch=prefetches)
def test_per_rank(hvdata, comm, remainder, lengths, prefetch):
    n = trainers_of(hvdata, comm)
    batches = [batches_of(r, [3] * length) for r, length in enumerate(lengths[: hvdata.num_readers()])]
    ds = hvdata.distribute_dataset(from_readers(batches), batch="per_rank", remainder=remainder, prefetch=prefetch)
    want = deliver_from_readers(batches, n, "per_rank", remainder)
    assert sum(map(len, batches)) - sum(
        1 for mine in want for x in mine if len(x[0]) and (remainder != "pad" or x[2].any())
    ) == dropped_by_readers(batches, n, "per_rank", remainder)
    for epoch in range(2):
        assert_delivered(shares(hvdata, comm, ds), want, (lengths, epoch))


@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.usefixtures("either_way")
@same_on_all_ranks(4)
@given(rows=st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=3, max_size=3), prefetch=prefetches)
def test_global(hvdata, comm, remainder, rows, prefetch):
    batches = [batches_of(r, mine) for r, mine in enumerate(rows[: hvdata.num_readers()])]
    ds = hvdata.distribute_dataset(from_readers(batches), batch="global", remainder=remainder, prefetch=prefetch)
    want = deliver_from_readers(batches, trainers_of(hvdata, comm), "global", remainder)
    for epoch in range(2):
        assert_delivered(shares(hvdata, comm, ds), want, (rows, epoch))


@pytest.mark.usefixtures("either_way")
@same_on_all_ranks(4)
@given(lengths=lengths_of_readers, prefetch=prefetches)
def test_dynamic(hvdata, comm, lengths, prefetch):
    batches = [batches_of(r, [2] * length) for r, length in enumerate(lengths[: hvdata.num_readers()])]
    ds = hvdata.distribute_dataset(from_readers(batches), batch="per_rank", schedule="dynamic", prefetch=prefetch)
    for _ in range(2):
        assert is_dynamic_delivery(sum(batches, []), shares(hvdata, comm, ds))


@pytest.mark.usefixtures("either_way")
def test_large_batches_of_all_readers(hvdata, comm):
    """The batches are large enough for shared memory and for messages of their own."""

    def function(context):
        first = 100 * context.input_pipeline_id
        return (
            tf.data.Dataset.range(first, first + 7).map(lambda i: tf.fill([300_000], tf.cast(i, tf.float32))).batch(1)
        )

    n = trainers_of(hvdata, comm)
    ds = hvdata.distribute_dataset(function, batch="per_rank", remainder="partial")
    batches = [[np.full([1, 300_000], 100 * r + i, np.float32) for i in range(7)] for r in range(hvdata.num_readers())]
    assert_delivered(shares(hvdata, comm, ds), deliver_from_readers(batches, n, "per_rank", "partial"), None)


def test_the_context_and_who_calls_the_function(hvdata, comm):
    seen = []
    readers = hvdata.num_readers()
    hvdata.distribute_dataset(from_readers([[]] * 3, seen), batch="global")
    n = trainers_of(hvdata, comm)
    assert comm.allgather(seen) == [[]] * n + [[(r, readers, n)] for r in range(readers)]


def test_more_readers_than_files(hvdata, comm, tmp_path_factory):
    """Files are sharded among readers; one of them gets none."""
    folder = comm.bcast(str(tmp_path_factory.mktemp("files")) if comm.rank == 0 else None)
    paths = [f"{folder}/{i}.txt" for i in range(hvdata.num_readers() - 1)]
    if comm.rank == 0:
        for i, path in enumerate(paths):
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(f"{i}.{line}\n" for line in range(6))
    comm.Barrier()

    def function(context):
        files = tf.data.Dataset.from_tensor_slices(paths)
        return files.shard(context.num_input_pipelines, context.input_pipeline_id).interleave(tf.data.TextLineDataset)

    got = shares(hvdata, comm, hvdata.distribute_dataset(function, batch="per_rank", remainder="drop"))
    lines = [f"{i}.{line}".encode() for i in range(len(paths)) for line in range(6)]
    all_of_them = [line for mine in got for line in mine]
    assert len(all_of_them) == len(lines) // len(got) * len(got) and set(all_of_them) <= set(lines)


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


def test_scalars_have_no_empty_share(hvdata, comm):
    """Every rank raises in the same step, also those that would get an element."""
    n, readers = trainers_of(hvdata, comm), hvdata.num_readers()
    ds = hvdata.distribute_dataset(
        lambda context: tf.data.Dataset.range(n + (context.input_pipeline_id == 1)),
        batch="per_rank",
        remainder="partial",
        name="scalars",
    )

    def walk():
        taken = 0
        if hvdata.is_reader():
            return "reader"
        try:
            for _ in ds:
                taken += 1
        except tf.errors.InvalidArgumentError as error:
            return taken, str(error)
        return taken

    got = results(comm, walk)[:n]
    if n == 1:
        assert got == [readers + 1]
        return
    for taken, text in got:
        assert taken == readers
        assert "[reader 1 on " in text and f"channel scalars, epoch 1, step {readers}]" in text
        assert "the last step has no element for some ranks" in text and "the element is a scalar" in text


def test_what_the_readers_disagree_about(hvdata, comm):
    def types(context):
        return tf.data.Dataset.range(4, output_type=tf.int32 if context.input_pipeline_id else tf.int64)

    def components(context):
        ds = tf.data.Dataset.range(4)
        return tf.data.Dataset.zip((ds, ds)) if context.input_pipeline_id else ds

    raises_everywhere(
        comm,
        lambda: hvdata.distribute_dataset(types, batch="per_rank", name="t"),
        ValueError,
        r"the readers' datasets in distribute_dataset\(name='t'\) have different elements: for reader 0 the element "
        r"is TensorSpec\(shape=\(\), dtype=tf.int64.*for reader 1 it is .*tf.int32.*same kind of dataset",
    )
    raises_everywhere(
        comm,
        lambda: hvdata.distribute_dataset(components, batch="per_rank", name="t"),
        ValueError,
        r"different elements: reader 0 has the element, reader 1 has \[0\], \[1\]",
    )


def test_shapes_that_differ_are_unknown(hvdata, comm):
    ds = hvdata.distribute_dataset(
        lambda context: tf.data.Dataset.from_tensors(tf.zeros([4, 2 + context.input_pipeline_id])).repeat(comm.size),
        batch="per_rank",
    )
    assert set(comm.allgather(repr(ds.element_spec))) == {"TensorSpec(shape=(4, None), dtype=tf.float32, name=None)"}
    assert {x.shape for mine in shares(hvdata, comm, ds) for x in mine} >= {(4, 2), (4, 3)}


def failing(bad_reader: int, good: int, length: int):
    """A dataset function with `length` elements on each reader. Reader `bad_reader` fails after `good` elements."""

    def function(context):
        reader = context.input_pipeline_id
        ds = tf.data.Dataset.range(100 * reader, 100 * reader + length)
        bad = 100 * bad_reader + good
        return ds.map(
            lambda i: (
                tf.debugging.check_numerics(1.0 / tf.cast(i - bad, tf.float32), "bad row") * 0 + tf.cast(i, tf.float32)
            )
        )

    return function


def test_an_error_names_its_reader_on_every_rank(hvdata, comm):
    n, readers = trainers_of(hvdata, comm), hvdata.num_readers()
    ds = hvdata.distribute_dataset(failing(1, 2 * n, 4 * n), batch="per_rank", name="bad")

    def walk():
        got = []
        if hvdata.is_reader():
            return None
        try:
            for element in ds:
                got.append(float(element))
        except tf.errors.InvalidArgumentError as error:
            return got, str(error)
        return got, "no error"

    for _ in range(2):  # the next epoch is as good as the first
        for rank, (got, text) in enumerate(results(comm, walk)[:n]):
            assert got == [100.0 * r + k * n + rank for k in range(2) for r in range(readers)] + [2.0 * n + rank]
            assert "[reader 1 on " in text and "step 2 of its own]" in text and "bad row" in text


def test_on_reader_error_continue(hvdata, comm):
    n, readers = trainers_of(hvdata, comm), hvdata.num_readers()
    ds = hvdata.distribute_dataset(failing(1, 2 * n, 4 * n), batch="per_rank", on_reader_error="continue")
    lengths = [4 * n, 2 * n] + [4 * n] * (readers - 2)
    batches = [[np.float32(100 * r + i) for i in range(length)] for r, length in enumerate(lengths)]
    for _ in range(2):
        got = shares(hvdata, comm, ds)
        assert_delivered(got, deliver_from_readers(batches, n, "per_rank"), None)
    assert set(comm.allgather(int(ds.cardinality()))) == {-2}  # what may not come can't be counted on (Keras does)


def test_a_dynamic_error_does_not_wait_for_the_others_data(hvdata, comm):
    def function(context):
        if context.input_pipeline_id == 1:
            return failing(1, 0, 1)(context)
        return tf.data.Dataset.range(8).map(lambda i: tf.cast(i, tf.float32)).repeat()

    ds = hvdata.distribute_dataset(function, batch="per_rank", schedule="dynamic")

    def walk():
        for _ in () if hvdata.is_reader() else ds:  # without end but for the error
            time.sleep(0.02)

    for one in outcomes(comm, walk)[: trainers_of(hvdata, comm)]:
        assert isinstance(one, Raised) and "[reader 1 on " in one.text and "bad row" in one.text, one


def test_a_wrong_on_reader_error(hvdata, comm):
    raises_everywhere(
        comm,
        lambda: hvdata.distribute_dataset(None, batch="global", on_reader_error="ignore"),
        ValueError,
        r"on_reader_error='ignore' is not known\. Use 'raise' or 'continue'",
    )


def test_two_channels_interleaved(hvdata, comm):
    def numbers(first):
        return lambda context: tf.data.Dataset.range(
            first + 100 * context.input_pipeline_id, first + 100 * context.input_pipeline_id + 8
        )

    train = hvdata.distribute_dataset(numbers(0), batch="per_rank", name="train")
    valid = hvdata.distribute_dataset(numbers(50), batch="per_rank", name="valid")

    def walk():
        return [(int(a), int(b)) for a, b in tf.data.Dataset.zip((train, valid))] if hvdata.is_trainer() else None

    n = trainers_of(hvdata, comm)
    got = results(comm, walk)[:n]
    want = deliver_from_readers(
        [[np.int64(100 * r + i) for i in range(8)] for r in range(hvdata.num_readers())], n, "per_rank"
    )
    assert got == [[(int(x), int(x) + 50) for x in mine] for mine in want]


@pytest.mark.parametrize("who", ["every rank", "rank 0"])
@pytest.mark.parametrize("lengths", [(7, 7, 7), (2, 9, 4), (1, 0, 1)])
@pytest.mark.usefixtures("either_way")
def test_checkpoints_at_every_step(hvdata, comm, tmp_path_factory, who, lengths):
    """The positions lie within the rotation, after the end of one reader, and within the last steps that all readers
    make together."""
    folder = comm.bcast(str(tmp_path_factory.mktemp("checkpoints")) if comm.rank == 0 else None)
    trainers = comm.Split(0 if hvdata.is_trainer() else 1, comm.rank)
    ds = hvdata.distribute_dataset(
        lambda context: tf.data.Dataset.range(
            100 * context.input_pipeline_id, 100 * context.input_pipeline_id + lengths[context.input_pipeline_id]
        ),
        batch="per_rank",
    )

    def walk():
        if hvdata.is_reader():
            return []
        mine = f"{folder}/{who}-{hvdata.rank() if who == 'every rank' else 0}"
        acts = who == "every rank" or hvdata.rank() == 0
        whole = [int(x) for x in ds]
        wrong = []
        for cut in range(len(whole) + 1):
            iterator = iter(ds)
            head = [int(next(iterator)) for _ in range(cut)]
            if acts:
                tf.train.Checkpoint(iterator=iterator).write(mine)
            trainers.Barrier()
            rest = [int(x) for x in iterator]
            again = iter(ds)
            if acts:
                tf.train.Checkpoint(iterator=again).read(mine)
            trainers.Barrier()
            tail = [int(x) for x in again]
            if head + rest != whole or head + tail != whole:
                wrong.append((cut, head, rest, tail, whole))
        return wrong

    got = outcomes(comm, walk)
    trainers.Free()
    assert not any(isinstance(one, Raised) or one for one in got), got


def test_an_end_before_the_first_step_of_all(hvdata, comm):
    ds = hvdata.distribute_dataset(lambda context: tf.data.Dataset.range(0), batch="per_rank", remainder="pad")
    assert shares(hvdata, comm, ds) == [[]] * trainers_of(hvdata, comm)


def test_readers_dont_iterate(hvdata, comm):
    ds = hvdata.distribute_dataset(lambda context: tf.data.Dataset.range(2), batch="per_rank", name="mine")
    got = comm.allgather(attempt(lambda: next(iter(ds))) if hvdata.is_reader() else None)
    for one in got[trainers_of(hvdata, comm) :]:
        assert issubclass(one.kind, tf.errors.FailedPreconditionError) and "call horovod_data.serve() there" in one.text
