# SPDX-License-Identifier: Apache-2.0
"""tf.data allows a None in an element. It is part of the structure, so every rank has it in the same place."""

import numpy as np
import pytest
import tensorflow as tf
from together import elements, results

pytestmark = pytest.mark.world(np=4)


def with_none(rows, batch):
    return tf.data.Dataset.range(rows).batch(batch).map(lambda x: (x, None, {"a": None, "b": tf.strings.as_string(x)}))


def of_ragged(rows, batch):
    return (
        tf.data.Dataset.range(rows)
        .batch(batch)
        .map(lambda x: (None, tf.RaggedTensor.from_row_lengths(tf.repeat(x, x), x), x))
    )


@pytest.mark.parametrize("batch", ["global", "per_rank"])
@pytest.mark.parametrize("remainder", ["drop", "partial", "pad"])
def test_a_none_is_where_it_was(hvdata, comm, batch, remainder):
    ds = hvdata.distribute_dataset(with_none(12 * comm.size, 2 * comm.size), batch=batch, remainder=remainder)
    spec = ds.element_spec[0] if remainder == "pad" else ds.element_spec
    assert type(spec[1]).__name__ == type(spec[2]["a"]).__name__ == "NoneTensorSpec"
    kept = []
    for steps in elements(comm, ds):
        for step in steps:
            x, none, rest = step[0] if remainder == "pad" else step
            assert none is None and rest["a"] is None
            real = step[1] > 0 if remainder == "pad" else np.full(len(x), True)
            assert rest["b"][real].tolist() == [str(i).encode() for i in x[real]]
            kept += x[real].tolist()
    assert (
        sorted(kept) == list(range(len(kept)))
        and len(kept) >= (12 if remainder != "drop" or batch == "global" else 6) * comm.size
    )


@pytest.mark.parametrize("batch", ["global", "per_rank"])
def test_beside_a_ragged_tensor(hvdata, comm, batch):
    ds = hvdata.distribute_dataset(of_ragged(6 * comm.size, 2 * comm.size), batch=batch, remainder="partial")
    rows = results(comm, lambda: [(none, ragged.to_list(), x.numpy().tolist()) for none, ragged, x in ds])
    seen = []
    for mine in rows:
        for none, ragged, x in mine:
            assert none is None and ragged == [[i] * i for i in x]
            seen += x
    assert sorted(seen) == list(range(6 * comm.size))


def test_the_weight_of_keras(hvdata, comm):
    """(x, None) becomes (x, None, weight), as (x, y) does."""
    source = tf.data.Dataset.range(5).batch(5).map(lambda x: (x, None))
    ds = hvdata.distribute_dataset(source, batch="global", remainder="pad")
    for x, none, weight in [step for steps in elements(comm, ds) for step in steps]:
        assert none is None and x.shape == weight.shape


def test_first_come_first_served(hvdata, comm):
    ds = hvdata.distribute_dataset(with_none(12, 2), batch="per_rank", schedule="dynamic")
    got = results(comm, lambda: [(x.numpy().tolist(), none, rest["a"]) for x, none, rest in ds])
    assert sorted(i for mine in got for x, none, a in mine for i in x if none is None and a is None) == list(range(12))


def test_in_a_tf1_iterator(hvdata, comm):
    def graph():
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            ds = hvdata.distribute_dataset(lambda: with_none(4 * comm.size, comm.size), batch="global")
            iterator = tf.compat.v1.data.make_initializable_iterator(ds)
            x, none, rest = iterator.get_next()
            assert none is None and rest["a"] is None
            session.run(iterator.initializer)
            got = []
            while True:
                try:
                    got.append(session.run((x, rest["b"])))
                except tf.errors.OutOfRangeError:
                    return [(x.tolist(), b.tolist()) for x, b in got]

    for rank, mine in enumerate(results(comm, graph)):
        assert mine == [([i], [str(i).encode()]) for i in range(rank, 4 * comm.size, comm.size)]


def test_saved_and_restored(hvdata, comm, tmp_path):
    ds = hvdata.distribute_dataset(with_none(8 * comm.size, comm.size), batch="global")
    iterator = iter(ds)
    first = results(comm, lambda: [next(iterator)[0].numpy().tolist() for _ in range(2)])
    checkpoint = tf.train.Checkpoint(iterator=iterator)
    path = results(comm, lambda: checkpoint.save(str(tmp_path / "state")))[comm.rank]
    again = iter(ds)
    results(comm, lambda: tf.train.Checkpoint(iterator=again).restore(path).assert_consumed() and None)
    rest = results(comm, lambda: [(x.numpy().tolist(), none, a["a"]) for x, none, a in again])
    for rank in range(comm.size):
        assert all(none is None and a is None for _, none, a in rest[rank])
        assert [x for x, *_ in rest[rank]] == [[comm.size * step + rank] for step in range(len(first[rank]), 8)]


def test_an_audit_passes_it_on(hvdata, comm):
    audited = hvdata.audit(with_none(6, 2).shard(comm.size, comm.rank))
    got = results(comm, lambda: [(x.numpy().tolist(), none, rest["a"]) for x, none, rest in audited])
    assert sorted(i for mine in got for x, none, a in mine for i in x if none is None and a is None) == list(range(6))
