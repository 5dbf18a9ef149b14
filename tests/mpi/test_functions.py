# SPDX-License-Identifier: Apache-2.0
"""Dataset functions. test_readers.py has several readers.

A function may take a tf.distribute.InputContext, as functions of tf.distribute do. A function with a parameter `epoch`
is called on the reader for every epoch, with its number.
"""

import functools
import os
import re

import pytest
import tensorflow as tf
from checkpoints import rest, restored, saved, take
from together import dealt_to_all, elements, raises_everywhere, results

pytestmark = pytest.mark.world(np=1)

v1 = tf.compat.v1


@pytest.fixture(params=["distribute_dataset", "distribute_datasets_from_function"])
def distribute(hvdata, request):
    return getattr(hvdata, request.param)


def test_the_context(hvdata, comm, distribute):
    seen = []

    def function(context):
        each = context.get_per_replica_batch_size(12)
        seen.append(
            (type(context), context.input_pipeline_id, context.num_input_pipelines, context.num_replicas_in_sync)
        )
        return tf.data.Dataset.range(24).shard(context.num_input_pipelines, context.input_pipeline_id).batch(each)

    got = elements(comm, distribute(function, batch="per_rank"))
    assert comm.allgather(seen) == [[(tf.distribute.InputContext, 0, 1, comm.size)]] + [[]] * (comm.size - 1)
    assert [len(step) for steps in got for step in steps] == [12 // comm.size] * (2 * comm.size)


class Callable:
    def __call__(self):
        return tf.data.Dataset.range(4)

    def method(self, context):
        assert context.num_input_pipelines == 1
        return tf.data.Dataset.range(4)


@pytest.mark.parametrize("function", [
    lambda: tf.data.Dataset.range(4),
    lambda context: tf.data.Dataset.range(4),
    lambda n=4: tf.data.Dataset.range(n),  # a default is left alone
    lambda *, context: tf.data.Dataset.range(4 * context.num_input_pipelines),
    functools.partial(lambda n, context: tf.data.Dataset.range(n), 4),
    functools.partial(lambda n: tf.data.Dataset.range(n), 4),
    Callable(), Callable().method,
], ids=["none", "context", "by_name", "default", "partial", "partial_none", "object", "method"])  # fmt: skip
def test_callables(hvdata, comm, function, distribute):
    got = elements(comm, distribute(function, batch="per_rank", remainder="drop", schedule="dynamic"))
    assert len(sum(got, [])) == 4


# ---- Functions of the epoch.


class Numbered:
    """Epoch e yields `n` numbers for each epoch so far, from 1000 * e on. Counts its calls."""

    def __init__(self, n):
        self.n = n
        self.calls = []

    def make(self, epoch):
        self.calls.append(epoch)
        return tf.data.Dataset.range(1000 * epoch, 1000 * epoch + epoch * self.n)

    def want(self, comm, epochs):
        """For each rank the shares of these epochs."""
        shares = [dealt_to_all(comm, range(1000 * e, 1000 * e + e * self.n)) for e in epochs]
        return [[epoch[rank] for epoch in shares] for rank in range(comm.size)]


def values(dataset):
    return [int(x) for x in dataset]


def calls_of(comm, source):
    """The calls on the reader. Asserts that other ranks have none."""
    calls = comm.allgather(source.calls)
    assert not any(calls[1:]), calls
    return calls[0]


def a_whole_epoch(comm, dataset):
    """Asserts that one of comm.size elements comes."""
    assert results(comm, lambda: values(dataset)) == [[rank] for rank in range(comm.size)]


def test_every_epoch_is_made_anew(hvdata, comm):
    """The first call is for the spec. Epoch 1 uses the same dataset."""
    source = Numbered(4 * comm.size)
    dataset = hvdata.distribute_dataset(source.make, batch="per_rank")
    assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
    assert calls_of(comm, source) == [1]
    assert results(comm, lambda: [values(dataset)]) == source.want(comm, [1])
    assert calls_of(comm, source) == [1]
    other = Numbered(2 * comm.size)  # each channel counts its own epochs
    others = hvdata.distribute_dataset(other.make, batch="per_rank")
    assert results(comm, lambda: [values(others)]) == other.want(comm, [1])
    assert results(comm, lambda: [values(dataset) for _ in range(2)]) == source.want(comm, [2, 3])
    assert calls_of(comm, source) == [1, 2, 3] and calls_of(comm, other) == [1]


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
    says = ("parameter `epoch` can be passed by its position only", "Leave out the `/` behind it")
    raises_everywhere(comm, lambda: hvdata.distribute_dataset(make, batch="per_rank"), Exception, *says)


def test_an_epoch_that_is_bound_already(hvdata, comm):
    source = Numbered(comm.size)
    dataset = hvdata.distribute_dataset(functools.partial(source.make, epoch=5), batch="per_rank")
    assert results(comm, lambda: [values(dataset) for _ in range(2)]) == source.want(comm, [5, 5])
    assert calls_of(comm, source) == [5]


def test_global_batches_of_ragged_rows(hvdata, comm):
    """A stage of ours takes composite tensors apart. Every epoch's dataset needs it."""

    def rows(epoch):
        return [[epoch] * (row % 3) for row in range(2 * comm.size)]

    dataset = hvdata.distribute_dataset(
        lambda epoch: tf.data.Dataset.from_tensors(tf.ragged.constant(rows(epoch), dtype=tf.int64)), batch="global"
    )
    got = results(comm, lambda: [[batch.to_list() for batch in dataset] for _ in range(2)])
    assert got == [[[rows(epoch)[2 * rank : 2 * rank + 2]] for epoch in (1, 2)] for rank in range(comm.size)]


def test_a_seeded_shuffle_starts_from_its_seed(hvdata, comm):
    """Each epoch has a new dataset. Its seed decides the order of the shuffle; the number of earlier epochs doesn't."""

    def make(epoch):
        return tf.data.Dataset.range(6 * comm.size).shuffle(6 * comm.size, seed=epoch)

    tf.random.set_seed(5)  # on all ranks: the other half of the shuffle's seed
    dataset = hvdata.distribute_dataset(make, batch="per_rank")
    for epoch in (1, 2, 3):
        assert results(comm, lambda: values(dataset)) == dealt_to_all(comm, values(make(epoch)))


# ---- Errors of later epochs. The epoch after them works.


class Interrupted(BaseException):
    pass


class Silent(ValueError):
    def __str__(self):
        raise RuntimeError("no text")


def raising(error):
    def make():
        raise error

    return make


@pytest.mark.parametrize("second, says", [
    (lambda: tf.data.Dataset.range(8).map(lambda i: tf.cast(i, tf.float32)), "float32"),
    (lambda: tf.data.Dataset.range(8).map(lambda i: (i, i)), "same structure"),
    (lambda: tf.data.Dataset.range(8).batch(2), re.escape("shape=(None,)")),
    (lambda: [1, 2], "list"),
    (raising(FileNotFoundError("shard-2 is not there")), "FileNotFoundError: shard-2 is not there"),
    # TensorFlow takes such an error for the end of an iterator, and calls it an implementation error.
    (raising(tf.errors.OutOfRangeError(None, None, "no more shards")), "no more shards"),
    (raising(ValueError("bad " + os.fsdecode(b"caf\xe9.jpg"))), r"ValueError: bad caf\\udce9.jpg"),
    (raising(Silent()), r"Silent: \(its text can't be had: RuntimeError\)"),
    (raising(Interrupted("no Exception")), "Interrupted: no Exception"),
    (raising(tf.errors.OpError(None, None, "no code", "x")), "no code"),
    (raising(tf.errors.OpError(None, None, "all is well", 0)), "all is well"),
], ids=["dtype", "structure", "shape", "no dataset", "error", "end", "no text", "silent", "no Exception", "no code", "ok"])  # fmt: skip
def test_an_error_of_the_second_epoch(hvdata, comm, second, says):
    def make(epoch):
        return second() if epoch == 2 else tf.data.Dataset.range(comm.size)

    dataset = hvdata.distribute_dataset(make, batch="per_rank", name="second")
    a_whole_epoch(comm, dataset)
    says = ("reader 0 on .*channel second, epoch 2", says)
    raises_everywhere(comm, lambda: values(dataset), tf.errors.OpError, *says)
    a_whole_epoch(comm, dataset)


# ---- What counts epochs.


@pytest.mark.parametrize("graphs", [1, 3])
def test_in_graphs(hvdata, comm, graphs):
    """The channel goes on counting, in one graph or where several graphs take it up again."""
    source = Numbered(3 * comm.size)
    epochs = iter(range(1, 4))

    def run():
        got = []
        with tf.Graph().as_default(), v1.Session() as session:
            dataset = hvdata.distribute_dataset(source.make, batch="per_rank", name=f"epochs of {graphs} graphs")
            iterator = v1.data.make_initializable_iterator(dataset)
            fetch = iterator.get_next()
            for _ in range(3 // graphs):
                session.run(iterator.initializer)
                got.append([int(session.run(fetch)) for _ in range(3 * next(epochs))])
        return got

    got = results(comm, lambda: sum((run() for _ in range(graphs)), []))
    assert got == source.want(comm, [1, 2, 3])
    assert calls_of(comm, source) == [1, 2, 3]


@pytest.mark.parametrize("saved_in", [1, 2])
def test_a_restore_continues_the_count(hvdata, comm, path, saved_in):
    """Into another channel, as a restarted job does."""
    source, again = Numbered(6 * comm.size), Numbered(6 * comm.size)
    dataset = hvdata.distribute_dataset(source.make, batch="per_rank")
    results(comm, lambda: [values(dataset) for _ in range(saved_in - 1)])
    want = source.want(comm, [saved_in, saved_in + 1, saved_in + 2])
    it = iter(dataset)
    assert results(comm, lambda: take(it, 2)) == [one[0][:2] for one in want]
    saved(comm, it, path)
    resumed = hvdata.distribute_dataset(again.make, batch="per_rank")
    it = restored(comm, resumed, path)
    got = results(comm, lambda: [rest(it), values(resumed), values(resumed)])
    assert got == [[one[0][2:], *one[1:]] for one in want]
    # The call for the spec has made epoch 1, which is used where that is the epoch that goes on.
    assert calls_of(comm, again) == ([1] if saved_in == 1 else [1, 2]) + [saved_in + 1, saved_in + 2]
