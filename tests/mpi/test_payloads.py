# SPDX-License-Identifier: Apache-2.0
"""The ways of batches: which way they take, and how often they are copied. No process overwrites them."""

import os
import socket
import time

import numpy as np
import pytest
import tensorflow as tf
from together import results

pytestmark = pytest.mark.world(np=3)

ROWS, WIDTH = 16, 2048  # rows of 8 KiB: batches are too large to travel with a header
BESIDE = 40  # messages that begin and end an epoch


def beside_the_reader(comm):
    """The number of ranks that share the reader's memory, without its own."""
    hosts = comm.allgather(socket.gethostname())
    return 0 if os.environ.get("HOROVOD_DATA_PAYLOAD") == "message" else hosts.count(hosts[0]) - 1


def quiet(hvdata, comm):
    """This rank's counters, after all batches of earlier tests have arrived."""

    def payloads():
        return {name: number for name, number in hvdata.stats().items() if name.startswith("payload_bytes")}

    before, now = None, payloads()
    while any(comm.allgather(before != now)):
        time.sleep(0.05)
        before, now = now, payloads()
    return hvdata.stats()


def moved(hvdata, comm, call):
    """The growth of the counters of all ranks together while every rank calls `call`."""
    before = quiet(hvdata, comm)
    comm.Barrier()  # the reader begins when the first rank does
    results(comm, call)
    comm.Barrier()
    after = hvdata.stats()
    return {name: sum(comm.allgather(after[name] - before[name])) for name in before}


def took(comm, grown, each, copied=0):
    """Asserts how `each` bytes for each rank travelled, and how many were copied into shared memory."""
    here = beside_the_reader(comm)
    assert grown["payload_bytes_arena"] == here * each
    assert grown["payload_bytes_message"] == (comm.size - 1 - here) * each
    assert grown["payload_bytes_copied_to_arena"] == copied


def sent_by_reader(hvdata, comm, call):
    """The number of messages that rank 0, the reader, sends by MPI while every rank calls `call`."""
    comm.Barrier()
    before = hvdata.stats()["mpi_messages_sent"]
    comm.Barrier()
    results(comm, call)
    comm.Barrier()
    return comm.bcast(hvdata.stats()["mpi_messages_sent"] - before)


def numbered(rows):
    """Rows of their own number, batched by TensorFlow."""
    return tf.data.Dataset.range(rows).map(lambda i: tf.fill([WIDTH], tf.cast(i, tf.float32)))


def are_numbered(batches, rows=ROWS):
    """Asserts that the batches have rows of numbered(). Each is given with the number of its first row."""
    for first, x in batches:
        np.testing.assert_array_equal(
            x, np.repeat(np.arange(first, first + rows, dtype=np.float32)[:, None], x.shape[1], 1)
        )


def drain(dataset):
    for _ in dataset:
        pass


@pytest.mark.ways("auto", "arena", "message", "two hosts")
@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("batch", ["per_rank", "global"])
def test_a_pipeline_that_ends_in_batch_is_not_copied(hvdata, comm, batch):
    """MPI sends the payload to other hosts, and little more."""
    rows = ROWS * (comm.size if batch == "global" else 1)
    steps = 12 if batch == "global" else 12 * comm.size
    ds = hvdata.distribute_dataset(lambda: numbered(rows * steps).batch(rows), batch=batch)
    grown = moved(hvdata, comm, lambda: drain(ds))
    took(comm, grown, 12 * ROWS * WIDTH * 4)
    assert grown["payload_bytes_realigned"] == grown["payload_bytes_inline"] == 0
    if remote := grown["payload_bytes_message"]:
        assert remote <= grown["mpi_bytes_sent"] <= remote * 1.02


@pytest.mark.ways("auto", "arena", "two hosts")
@pytest.mark.ranks(2, 3, 4)
def test_large_strings_are_encoded_where_they_are_to_be(hvdata, comm):
    texts = [bytes([65 + i]) * (i << 10) for i in range(20)]
    ds = hvdata.distribute_dataset(lambda: tf.data.Dataset.from_tensors(texts).repeat(4 * comm.size), batch="per_rank")
    seen = []
    grown = moved(hvdata, comm, lambda: seen.extend(x.numpy().tolist() for x in ds))
    assert seen == [texts] * 4
    took(comm, grown, 4 * (20 * 8 + sum(map(len, texts))))


STEPS = 6
Data = tf.data.Dataset


def filled(rows, number):
    return tf.fill([rows, WIDTH], tf.cast(number, tf.float32))


def slices(steps, rows):
    return np.repeat(np.arange(steps, dtype=np.float32), rows * WIDTH).reshape(steps, rows, WIDTH)


# Elements that TensorFlow does not make in shared memory: some rows of WIDTH float32, filled with the element's number.
# The pipeline holds these until the epoch is over.
KEPT = {
    "ready-made": lambda steps, rows: Data.from_tensor_slices(slices(steps, rows)),
    "behind many stages": lambda steps, rows: (
        Data.from_tensors(filled(rows, 0))
        .concatenate(Data.from_tensor_slices(slices(steps, rows)))
        .skip(1)
        .repeat()
        .filter(lambda x: True)
        .shuffle(1)
        .take(steps)
        .prefetch(2)
    ),
    "cache": lambda steps, rows: Data.range(steps).map(lambda i: filled(rows, i)).cache(),
}
# The pipeline doesn't hold these.
ANEW = {
    "generator": lambda steps, rows: Data.from_generator(
        lambda: (np.full((rows, WIDTH), i, np.float32) for i in range(steps)),
        output_signature=tf.TensorSpec((rows, WIDTH), tf.float32),
    ),
    "map": lambda steps, rows: Data.range(steps).map(lambda i: filled(rows, i)),
    # A dataset holds each element until the next one comes.
    "flat_map": lambda steps, rows: Data.range(steps).flat_map(lambda i: Data.from_tensors(filled(rows, i))),
    "flat_map of slices": lambda steps, rows: Data.from_tensors(0).flat_map(
        lambda _: Data.from_tensor_slices(slices(steps, rows))
    ),
    # A cache that was not filled is freed with its iterator.
    "a cache left early": lambda steps, rows: Data.range(2 * steps).map(lambda i: filled(rows, i)).cache().take(steps),
}


@pytest.mark.ways("auto", "arena", "two hosts")
@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("source", [*KEPT, *ANEW])
@pytest.mark.parametrize("batch", ["per_rank", "global"])
def test_other_pipelines_are_copied_once(hvdata, comm, batch, source):
    """If the pipeline keeps its elements, the reader copies the shares for ranks of its host.

    Otherwise it copies the whole global batch, because a share that is not copied would keep the whole batch.
    """
    of_all = batch == "global"
    steps, rows = (STEPS, ROWS * comm.size) if of_all else (STEPS * comm.size, ROWS)
    ds = hvdata.distribute_dataset(lambda: {**KEPT, **ANEW}[source](steps, rows), batch=batch)
    for _ in range(2):
        seen = []
        grown = moved(hvdata, comm, lambda: seen.extend(x.numpy() for x in ds))
        for step, x in enumerate(seen):
            number = step if of_all else step * comm.size + comm.rank
            np.testing.assert_array_equal(x, np.full((ROWS, WIDTH), number, np.float32))
        here, share = beside_the_reader(comm), STEPS * ROWS * WIDTH * 4
        whole = of_all and source in ANEW and here > 0
        took(comm, grown, share, (comm.size if whole else here) * share)
        assert grown["payload_bytes_realigned"] == 0


@pytest.mark.ways("auto", "arena", "message", "two hosts")
@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("batch", ["per_rank", "global"])
def test_the_reader_gets_a_ready_made_tensor_itself(hvdata, comm, batch):
    rows = ROWS * (comm.size if batch == "global" else 1)
    ds = hvdata.distribute_dataset(lambda: Data.from_tensors(filled(rows, 7)).repeat(STEPS * comm.size), batch=batch)
    places = results(comm, lambda: [np.asarray(memoryview(x)).ctypes.data for x in list(ds)])
    assert len(set(places[0])) == 1


@pytest.mark.world(np=4)
@pytest.mark.ways("auto", "two hosts")
@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("last", ["batch", "map", "ready-made"])
def test_rows_of_odd_sizes_are_realigned_by_the_trainer(hvdata, comm, last):
    """A share of a global batch begins at its first row. TensorFlow needs tensors that are aligned to 64 bytes.

    Shares that are copied are aligned so.
    """
    each = 7 * comm.size
    table = np.repeat(np.arange(each * 5, dtype=np.float32)[:, None], 3001, axis=1)
    rows = {
        "batch": lambda: Data.range(each * 5).map(lambda i: tf.fill([3001], tf.cast(i, tf.float32))).batch(each),
        "map": lambda: Data.range(5).map(lambda i: tf.constant(table)[i * each : (i + 1) * each] + 0),
        "ready-made": lambda: Data.from_tensors(table[:each]).repeat(5),
    }
    ds = hvdata.distribute_dataset(rows[last], batch="global")
    seen = []
    grown = moved(hvdata, comm, lambda: seen.extend(x.numpy() for x in ds))
    first = lambda step: (0 if last == "ready-made" else step * each) + comm.rank * 7
    are_numbered(((first(step), x) for step, x in enumerate(seen)), 7)
    here, share = beside_the_reader(comm), 5 * 7 * 3001 * 4
    took(comm, grown, share, share * {"batch": 0, "map": comm.size * (here > 0), "ready-made": here}[last])
    hosts = comm.allgather(socket.gethostname())
    odd = [rank for rank in range(1, comm.size) if hosts[rank] == hosts[0] and rank * 7 * 3001 * 4 % 64]
    assert grown["payload_bytes_realigned"] == (0 if last == "ready-made" else len(odd) * share)


@pytest.mark.ways("auto", "arena", "two hosts")
@pytest.mark.ranks(2, 3, 4)
def test_a_share_with_padding_is_copied_once(hvdata, comm):
    """The share is copied to its final place."""
    rows = ROWS * comm.size - 1
    ds = hvdata.distribute_dataset(lambda: numbered(rows * STEPS).batch(rows), batch="global", remainder="pad")
    seen = []
    grown = moved(hvdata, comm, lambda: seen.extend((x.numpy(), weight.numpy()) for x, weight in ds))
    for step, (x, weight) in enumerate(seen):
        first = step * rows + comm.rank * ROWS
        real = ROWS - (comm.rank == comm.size - 1)
        np.testing.assert_array_equal(weight, [1.0] * real + [0.0] * (ROWS - real))
        are_numbered([(first, x[:real])], real)
        assert not x[real:].any()
    assert len(seen) == STEPS
    assert grown["payload_bytes_padded"] == STEPS * (ROWS - 1) * WIDTH * 4
    assert grown["payload_bytes_copied_to_arena"] <= STEPS * beside_the_reader(comm) * ROWS * 4  # the weights


# ---- No process waits for a slot, and none overwrites a slot in use.


@pytest.mark.ranks(2, 3)
def test_results_are_not_written_into_memory_that_others_read(hvdata, comm):
    """TensorFlow reuses the memory of an input for the result if nothing else holds that memory. Here the cache and
    other ranks hold it."""
    ds = hvdata.distribute_dataset(
        lambda: numbered(ROWS * comm.size * 4).batch(ROWS * comm.size).cache(), batch="global"
    )

    @tf.function
    def spoil(x):
        return tf.reduce_sum(tf.nn.relu(-(x + 1.0)) - 5.0)

    half = ROWS // 2

    for _ in range(3):

        def run():
            seen = []
            for x in ds.map(lambda x: x * -1.0).map(lambda x: -x):
                spoil(x)
                seen.append(x.numpy())
            # A slice is a view of memory that its tensor owns, as far as TensorFlow knows.
            drain(ds.map(lambda x: x[:half] + 1.0))
            drain(ds.map(lambda x: [part * 2.0 for part in tf.split(x, 2)]))
            drain(ds.map(lambda x: [part - 3.0 for part in tf.unstack(x, ROWS)]))
            return np.concatenate(seen)

        rows = np.concatenate(results(comm, run))
        assert (rows == rows[:, :1]).all() and sorted(rows[:, 0]) == list(range(ROWS * comm.size * 4))


@pytest.mark.slow
@pytest.mark.ways("auto", "arena")
@pytest.mark.alone(HOROVOD_DATA_ARENA_MB="4")
@pytest.mark.ranks(3)
def test_a_cache_in_one_pipeline_leaves_room_for_another(hvdata, comm):
    cached = hvdata.distribute_dataset(
        lambda: numbered(ROWS * 40 * comm.size).batch(ROWS).cache(), batch="per_rank", name="cached"
    )
    results(comm, lambda: drain(cached))
    other = hvdata.distribute_dataset(
        lambda: numbered(ROWS * 20 * comm.size).batch(ROWS), batch="per_rank", name="other"
    )
    for ds in other, cached:
        assert moved(hvdata, comm, lambda: drain(ds))["payload_bytes_message"] == 0


@pytest.mark.ways("auto", "arena")
@pytest.mark.ranks(2, 3)
def test_a_forked_child_leaves_batches_alone(hvdata, comm):
    """The memory of string tensors is shared, and that of their texts is not. A child that frees them would write to
    both. It also gives no memory back to the reader."""
    steps, rows = 6, 1024
    long = "a text that does not fit into the string object itself, "  # nor does its number
    texts = tf.data.Dataset.range(rows * steps * comm.size).map(lambda i: long + tf.strings.as_string(i)).batch(rows)
    floats = numbered(ROWS * steps * comm.size).batch(ROWS)
    ds = hvdata.distribute_dataset(tf.data.Dataset.zip((texts, floats)), batch="per_rank")

    def run():
        kept = []
        for batch in ds:
            kept.append(batch)
            if len(kept) == 2:
                child = os.fork()
                if child == 0:
                    kept.clear()
                    os._exit(0)
                os.waitpid(child, 0)
        return [(text.numpy()[-1].decode(), float(x[-1, 0])) for text, x in kept]

    lasts = [[step * comm.size + rank + 1 for step in range(steps)] for rank in range(comm.size)]
    assert results(comm, run) == [[(f"{long}{rows * k - 1}", ROWS * k - 1) for k in mine] for mine in lasts]


@pytest.mark.world(np=4)
@pytest.mark.ways("two hosts")
@pytest.mark.ranks(4)
@pytest.mark.parametrize("kib, least, most", [(0, 0, 1), (16, 0, 2), (17, 2, 4)])
def test_messages_for_another_host(hvdata, comm, kib, least, most):
    """Small batches for ranks 2 and 3 come in one message by their porter. Payloads of up to 16 KiB travel with their
    headers. For larger ones each of the two ranks is sent two messages."""
    steps = 100
    source = tf.data.Dataset.range(steps * comm.size)
    if kib:
        source = source.map(lambda i: tf.fill([kib << 10], tf.cast(i % 100, tf.uint8)))
    ds = hvdata.distribute_dataset(lambda: source, batch="per_rank")
    grown = moved(hvdata, comm, lambda: drain(ds))
    assert kib or (grown["mpi_bags_passed_on"] > 0 and grown["mpi_headers_in_bags"] > steps)
    sent = sent_by_reader(hvdata, comm, lambda: drain(ds))
    assert least * steps + (BESIDE if least else 0) <= sent <= most * steps + BESIDE
