# SPDX-License-Identifier: Apache-2.0
"""A dataset function with a parameter `epoch`: called anew for every epoch, on the reader, with its number."""

import functools
import os
import re
import threading

import pytest
import tensorflow as tf
from together import dealt, raises_everywhere, results

pytestmark = pytest.mark.world(np=1)

v1 = tf.compat.v1


class Numbered:
    """Epoch e yields `n` numbers from 1000 * e on. Counts its calls."""

    def __init__(self, n):
        self.n = n
        self.calls = []

    def make(self, epoch):
        self.calls.append(epoch)
        return tf.data.Dataset.range(1000 * epoch, 1000 * epoch + self.n)

    def want(self, comm, epochs):
        return [
            [dealt(range(1000 * e, 1000 * e + self.n), rank, comm.size) for e in epochs] for rank in range(comm.size)
        ]


def values(dataset):
    return [int(x) for x in dataset]


def calls_of(comm, source):
    """Of the reader; nobody else may have any."""
    calls = comm.allgather(source.calls)
    assert not any(calls[1:]), calls
    return calls[0]


def test_every_epoch_is_made_anew(hvdata, comm):
    source = Numbered(4 * comm.size)
    dataset = hvdata.distribute_dataset(source.make, batch="per_rank")
    assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
    assert results(comm, lambda: [values(dataset) for _ in range(3)]) == source.want(comm, [1, 2, 3])
    assert calls_of(comm, source) == [1, 2, 3]


def test_called_once_before_the_first_epoch(hvdata, comm):
    """The first call is for the spec. Epoch 1 uses the same dataset."""
    source = Numbered(2 * comm.size)
    dataset = hvdata.distribute_dataset(source.make, batch="per_rank")
    assert calls_of(comm, source) == [1]
    assert results(comm, lambda: [values(dataset)]) == source.want(comm, [1])
    assert calls_of(comm, source) == [1]


def test_an_epoch_may_be_longer_than_another(hvdata, comm):
    def make(epoch):
        return tf.data.Dataset.range(epoch * comm.size)

    dataset = hvdata.distribute_dataset(make, batch="per_rank")
    assert results(comm, lambda: [len(values(dataset)) for _ in range(4)]) == [[1, 2, 3, 4]] * comm.size


def test_an_infinite_dataset_is_known_to_be(hvdata, comm):
    dataset = hvdata.distribute_dataset(lambda epoch: tf.data.Dataset.range(epoch).repeat(), batch="per_rank")
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY


def test_an_abandoned_epoch_counts(hvdata, comm):
    source = Numbered(20 * comm.size)
    dataset = hvdata.distribute_dataset(source.make, batch="per_rank", prefetch=1)
    got = results(comm, lambda: [values(dataset.take(2)) for _ in range(3)])
    assert got == [[one[:2] for one in rank] for rank in source.want(comm, [1, 2, 3])]
    assert calls_of(comm, source) == [1, 2, 3]


@pytest.mark.parametrize(
    "takes", ["context first", "context last", "context by name", "only by name", "with a default", "partial"]
)
def test_how_it_may_be_declared(hvdata, comm, takes):
    seen = []

    def note(epoch, context=None):
        seen.append((epoch, None if context is None else (type(context).__name__, context.num_replicas_in_sync)))
        return tf.data.Dataset.range(comm.size)

    functions = {
        "context first": lambda context, epoch: note(epoch, context),
        "context last": lambda epoch, context: note(epoch, context),
        "context by name": lambda *, epoch, context: note(epoch, context),
        "only by name": lambda *, epoch: note(epoch),
        "with a default": lambda epoch=7: note(epoch),
        "partial": functools.partial(lambda name, epoch: note(epoch), "train"),
    }
    dataset = hvdata.distribute_dataset(functions[takes], batch="per_rank")
    results(comm, lambda: [values(dataset) for _ in range(2)])
    context = ("InputContext", comm.size) if takes.startswith("context") else None
    assert comm.allgather(seen)[0] == [(1, context), (2, context)]


@pytest.mark.parametrize("default", [False, True])
def test_an_epoch_that_cannot_be_passed_by_name(hvdata, comm, default):
    def make(epoch, /):
        return tf.data.Dataset.range(comm.size)

    make.__defaults__ = (1,) if default else None
    raises_everywhere(
        comm,
        lambda: hvdata.distribute_dataset(make, batch="per_rank"),
        Exception,
        "parameter `epoch` can be passed by its position only",
        "Leave out the `/` behind it",
    )


def test_an_epoch_that_is_bound_already(hvdata, comm):
    source = Numbered(comm.size)
    dataset = hvdata.distribute_dataset(functools.partial(source.make, epoch=5), batch="per_rank")
    assert results(comm, lambda: [values(dataset) for _ in range(2)]) == source.want(comm, [5, 5])
    assert calls_of(comm, source) == [5]


def test_global_batches_of_ragged_rows(hvdata, comm):
    """A stage of ours takes composite tensors apart. Every epoch's dataset needs it."""

    def make(epoch):
        rows = tf.ragged.constant([[epoch] * (row % 3) for row in range(2 * comm.size)], dtype=tf.int64)
        return tf.data.Dataset.from_tensors(rows)

    dataset = hvdata.distribute_dataset(make, batch="global")
    got = results(comm, lambda: [[batch.to_list() for batch in dataset] for _ in range(2)])
    assert got == [
        [[[[epoch] * (row % 3) for row in (2 * rank, 2 * rank + 1)]] for epoch in (1, 2)] for rank in range(comm.size)
    ]


def test_a_seeded_shuffle_starts_from_its_seed(hvdata, comm):
    """Each epoch has a new dataset. Its seed decides the order of the shuffle; the number of earlier epochs doesn't."""

    def make(epoch):
        return tf.data.Dataset.range(6 * comm.size).shuffle(6 * comm.size, seed=epoch)

    tf.random.set_seed(5)  # on all ranks: the other half of the shuffle's seed
    dataset = hvdata.distribute_dataset(make, batch="per_rank")
    got = results(comm, lambda: [values(dataset) for _ in range(3)])
    for epoch in (1, 2, 3):
        order = [int(x) for x in tf.data.Dataset.range(6 * comm.size).shuffle(6 * comm.size, seed=epoch)]
        assert [rank[epoch - 1] for rank in got] == [dealt(order, rank, comm.size) for rank in range(comm.size)]


@pytest.mark.parametrize("second, said", [
    (lambda: tf.data.Dataset.range(8).map(lambda i: tf.cast(i, tf.float32)), "float32"),
    (lambda: tf.data.Dataset.range(8).map(lambda i: (i, i)), "same structure"),
    (lambda: tf.data.Dataset.range(8).batch(2), "shape=(None,)"),
    (lambda: [1, 2], "list"),
])  # fmt: skip
def test_an_epoch_of_another_kind_is_an_error_everywhere(hvdata, comm, second, said):
    def make(epoch):
        return second() if epoch == 2 else tf.data.Dataset.range(comm.size)

    dataset = hvdata.distribute_dataset(make, batch="per_rank", name="kinds")
    assert results(comm, lambda: values(dataset)) == [[rank] for rank in range(comm.size)]
    raises_everywhere(
        comm,
        lambda: values(dataset),
        tf.errors.InvalidArgumentError,
        "reader 0 on .*channel kinds, epoch 2",
        re.escape(said),
    )
    assert results(comm, lambda: values(dataset)) == [[rank] for rank in range(comm.size)]  # and the third goes on


def test_an_error_in_a_later_call(hvdata, comm):
    def make(epoch):
        if epoch == 2:
            raise FileNotFoundError("shard-2 is not there")
        return tf.data.Dataset.range(comm.size)

    dataset = hvdata.distribute_dataset(make, batch="per_rank")
    results(comm, lambda: values(dataset))
    raises_everywhere(comm, lambda: values(dataset), tf.errors.UnknownError, "FileNotFoundError: shard-2 is not there")


def test_an_end_that_is_none(hvdata, comm):
    """TensorFlow takes such an error for the end of an iterator, and calls it an implementation error."""

    def make(epoch):
        if epoch == 2:
            raise tf.errors.OutOfRangeError(None, None, "no more shards")
        return tf.data.Dataset.range(comm.size)

    dataset = hvdata.distribute_dataset(make, batch="per_rank")
    results(comm, lambda: values(dataset))
    raises_everywhere(comm, lambda: values(dataset), tf.errors.UnknownError, "epoch 2.*no more shards")
    assert results(comm, lambda: values(dataset)) == [[rank] for rank in range(comm.size)]


class Interrupted(BaseException):
    pass


class Silent(ValueError):
    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize("error, said", [
    (ValueError("bad " + os.fsdecode(b"caf\xe9.jpg")), r"ValueError: bad caf\\udce9.jpg"),
    (Silent(), r"Silent: \(its text can't be had: RuntimeError\)"),
    (Interrupted("no Exception"), "Interrupted: no Exception"),
    (tf.errors.OpError(None, None, "no code", "x"), "no code"),
    (tf.errors.OpError(None, None, "all is well", 0), "all is well"),
], ids=["no text", "silent", "no Exception", "no code", "ok"])  # fmt: skip
def test_any_error_in_a_later_call_is_heard_everywhere(hvdata, comm, error, said):
    """The error ends the epoch, but not the dealer thread. The third epoch works."""

    def make(epoch):
        if epoch == 2:
            raise error
        return tf.data.Dataset.range(comm.size)

    dataset = hvdata.distribute_dataset(make, batch="per_rank")
    results(comm, lambda: values(dataset))
    raises_everywhere(comm, lambda: values(dataset), tf.errors.OpError, said)
    assert results(comm, lambda: values(dataset)) == [[rank] for rank in range(comm.size)]


def test_a_reader_without_another_thread(hvdata, comm, monkeypatch):
    """All ranks raise the error, and the next channel works."""
    start = threading.Thread.start

    def cannot(self):
        if "dealer" in self.name:
            raise RuntimeError("can't start new thread")
        start(self)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", cannot)
        raises_everywhere(
            comm,
            lambda: hvdata.distribute_dataset(lambda: tf.data.Dataset.range(comm.size), batch="per_rank"),
            RuntimeError,
            "can start no more threads",
        )
    dataset = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(comm.size), batch="per_rank")
    assert results(comm, lambda: values(dataset)) == [[rank] for rank in range(comm.size)]


def test_two_channels_count_for_themselves(hvdata, comm):
    train, valid = Numbered(2 * comm.size), Numbered(comm.size)
    datasets = [
        hvdata.distribute_dataset(source.make, batch="per_rank", name=name)
        for source, name in ((train, "train of epochs"), (valid, "valid of epochs"))
    ]
    got = results(comm, lambda: [values(datasets[0]), values(datasets[0]), values(datasets[1]), values(datasets[0])])
    a, b = train.want(comm, [1, 2, 3]), valid.want(comm, [1])
    assert got == [[one[0], one[1], other[0], one[2]] for one, other in zip(a, b)]


def test_in_a_graph(hvdata, comm):
    source = Numbered(3 * comm.size)

    def run():
        got = []
        with v1.Session() as session:
            for _ in range(3):
                session.run(iterator.initializer)
                got.append([int(session.run(fetch)) for _ in range(3)])
        return got

    with tf.Graph().as_default():
        iterator = v1.data.make_initializable_iterator(hvdata.distribute_dataset(source.make, batch="per_rank"))
        fetch = iterator.get_next()
        assert results(comm, run) == source.want(comm, [1, 2, 3])
    assert calls_of(comm, source) == [1, 2, 3]


def test_a_channel_that_graphs_take_up_again_goes_on_counting(hvdata, comm):
    source = Numbered(2 * comm.size)

    def run():
        with tf.Graph().as_default(), v1.Session() as session:
            dataset = hvdata.distribute_dataset(source.make, batch="per_rank", name="epochs of graphs")
            iterator = v1.data.make_initializable_iterator(dataset)
            fetch = iterator.get_next()
            session.run(iterator.initializer)
            return [int(session.run(fetch)) for _ in range(2)]

    assert results(comm, lambda: [run() for _ in range(3)]) == source.want(comm, [1, 2, 3])
    assert calls_of(comm, source) == [1, 2, 3]


@pytest.mark.parametrize("saved_in", [1, 2])
def test_a_restore_continues_the_count(hvdata, comm, tmp_path, saved_in):
    """Into another channel, as a restarted job does."""
    source, again = Numbered(6 * comm.size), Numbered(6 * comm.size)
    dataset = hvdata.distribute_dataset(source.make, batch="per_rank")

    def save():
        for _ in range(saved_in - 1):
            values(dataset)
        it = iter(dataset)
        got = [int(next(it)) for _ in range(2)]
        tf.train.Checkpoint(iterator=it).write(str(tmp_path / "it"))
        return got

    def restore():
        it = iter(restored)
        tf.train.Checkpoint(iterator=it).read(str(tmp_path / "it")).assert_consumed()
        return [values(it), values(restored), values(restored)]

    want = source.want(comm, [saved_in, saved_in + 1, saved_in + 2])
    assert results(comm, save) == [one[0][:2] for one in want]
    restored = hvdata.distribute_dataset(again.make, batch="per_rank")
    assert results(comm, restore) == [[one[0][2:], *one[1:]] for one in want]
    # The call for the spec has made epoch 1, which is used where that is the epoch that goes on.
    assert calls_of(comm, again) == ([1] if saved_in == 1 else [1, 2]) + [saved_in + 1, saved_in + 2]
