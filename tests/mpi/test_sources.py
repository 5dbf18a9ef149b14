# SPDX-License-Identifier: Apache-2.0
"""Any tf.data pipeline may be the source. The job reads it once."""

import pytest
import tensorflow as tf
from together import Counted, dealt, elements, merged, on_reader, on_trainers, raises_everywhere

pytestmark = pytest.mark.world(np=4)


@pytest.mark.world(np=3)
@pytest.mark.readers(0, 1)
@pytest.mark.parametrize("door", ["distribute_dataset", "loader"])
def test_the_reader_alone_reads_and_once_in_each_epoch(hvdata, comm, world, door):
    n = world.np
    source = Counted(5 * n + 1)
    make = on_reader(hvdata, lambda: source if door == "loader" else source.dataset())
    channel = getattr(hvdata, door)(make, batch="per_rank")
    for epoch in 1, 2:
        got = on_trainers(hvdata, comm, lambda: [int(x) for x in channel])
        assert got == [dealt(range(source.n), rank, n) for rank in range(n)]
        runs = comm.allgather((hvdata.is_reader(), source.starts, source.yields))
        assert runs == [(reads, epoch * reads, epoch * source.n * reads) for reads, *_ in runs]


def test_a_function_that_calls_what_all_ranks_call(hvdata, comm):
    """The function runs on readers only. So a collective call in it would hang or match another call."""
    says = r"\(\) was called in a dataset function, which runs on readers only"
    for call in (
        lambda: hvdata.distribute_dataset(tf.data.Dataset.range(3), batch="per_rank"),
        lambda: hvdata.gather(tf.zeros([1])),
        lambda: hvdata.audit([1]),
        lambda: hvdata.predict(lambda x: x, tf.data.Dataset.range(3).batch(1)),
    ):
        within = lambda call=call: hvdata.distribute_dataset(lambda: call(), batch="per_rank")
        raises_everywhere(comm, within, RuntimeError, says)

    def late(epoch):
        if epoch == 2:
            hvdata.scatter(tf.zeros([comm.size]))
        hvdata.init()  # a second call is allowed
        return tf.data.Dataset.range(hvdata.size())

    ds = hvdata.distribute_dataset(late, batch="per_rank")
    assert merged(elements(comm, ds)) == list(range(comm.size))
    raises_everywhere(comm, lambda: list(ds), tf.errors.OpError, r"scatter\(\) was called in a dataset function")


@pytest.mark.parametrize("what", ["None", "a dataset"])
def test_what_other_ranks_pass_is_not_iterated(hvdata, comm, what):
    """Ranks may build a pipeline over data that only the reader has."""
    mine = range(2 * comm.size) if hvdata.is_reader() else range(-100, 0)
    source = tf.data.Dataset.from_tensor_slices(tf.constant(list(mine), tf.int64))
    given = source if hvdata.is_reader() or what == "a dataset" else None
    assert merged(elements(comm, hvdata.distribute_dataset(given, batch="per_rank"))) == list(range(2 * comm.size))


STAGES = {
    "none": lambda ds: ds,
    "repeat": lambda ds: ds.repeat(3),
    "shuffle": lambda ds: ds.shuffle(4, seed=5),
    "shuffle and repeat": lambda ds: ds.shuffle(4, seed=5).repeat(2),
    "choice": lambda ds: ds.skip(1).shard(2, 1).concatenate(ds.take(3)),
    "zip": lambda ds: tf.data.Dataset.zip((ds, ds.skip(1))),
    "options": lambda ds: ds.with_options(tf.data.Options()).repeat(2),
    "filter": lambda ds: ds.filter(lambda i: i % 3 != 1),
    "cache": lambda ds: ds.cache().repeat(2),
    "prefetch": lambda ds: ds.prefetch(2),
}


@pytest.mark.parametrize("stages", STAGES)
def test_ready_made_tensors(hvdata, comm, stages):
    """The reader leaves out TensorFlow's rewriting of such pipelines, which changes only a shuffle's order."""
    tf.random.set_seed(1)  # a global seed changes the order of a seeded shuffle, and earlier tests may have set one

    def make():
        return STAGES[stages](tf.data.Dataset.from_tensor_slices(tf.range(6 * comm.size, dtype=tf.int64)))

    ds = hvdata.distribute_dataset(make, batch="per_rank", prefetch=3)
    local = make()
    for _ in range(2):  # a seeded shuffle has another order in the second epoch
        want = list(local.as_numpy_iterator())
        assert merged(elements(comm, ds)) == want[: len(want) // comm.size * comm.size]


def test_stateful_source(hvdata, comm):
    """Variables and random generators of the reader's process work as in a local dataset."""
    start = tf.Variable(10, dtype=tf.int64)
    rng = tf.random.Generator.from_seed(3)
    source = tf.data.Dataset.range(2 * comm.size).map(lambda i: (i + start, rng.uniform([])))
    ds = hvdata.distribute_dataset(source, batch="per_rank")
    first = merged(elements(comm, ds))
    start.assign(20)
    second = merged(elements(comm, ds))
    assert [i for i, _ in first] == list(range(10, 10 + 2 * comm.size))
    assert [i for i, _ in second] == list(range(20, 20 + 2 * comm.size))
    assert len({float(u) for _, u in first + second}) == 4 * comm.size
