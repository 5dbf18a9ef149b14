# SPDX-License-Identifier: Apache-2.0
"""A reader on each of two hosts, dedicated or embedded. It serves the trainers of its host, and all trainers end on the
same step."""

import os
import re

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from numbered_rows import check
from oracle import deliver_per_host
from readers import (
    batches_of,
    from_readers,
    saved_and_restored,
    shares,
    until_it_fails,
)
from tensorflow.python.data.experimental.ops.testing import assert_next
from together import host_of, on_trainers, raises_everywhere, results, same_on_all_ranks

pytestmark = [
    pytest.mark.world(np=3, per_node="embedded"),
    pytest.mark.per_node("dedicated", "embedded"),
    pytest.mark.ranks(2, 3, 4, 5),
    pytest.mark.limit(120),
]
REMAINDERS = ["drop", "partial", "pad"]
prefetches = st.sampled_from(["auto", 1, 2, 3, 8])


class Hosts:
    """The trainers of each host, in the order of the hosts' readers."""

    def __init__(self, hvdata, comm):
        everybody = comm.allgather((host_of(comm.rank), hvdata.rank(), hvdata.is_reader()))
        self.names = [host for host, _, reads in everybody if reads]  # as readers count: input_pipeline_id
        self.ranks = [[rank for host, rank, _ in everybody if host == name and rank is not None] for name in self.names]
        self.sizes = [len(ranks) for ranks in self.ranks]

    def by_rank(self, by_host):
        """Sorts the shares of each host's trainers by rank."""
        flat = {rank: its for ranks, of_host in zip(self.ranks, by_host) for rank, its in zip(ranks, of_host)}
        return [flat[rank] for rank in sorted(flat)]

    def steps(self, steps, fn=tf.data.Dataset.range):
        """A dataset function. Host h yields elements for steps[h] steps."""
        return lambda context: fn(steps[context.input_pipeline_id] * self.sizes[context.input_pipeline_id])


@pytest.fixture(scope="module")
def hosts(hvdata, comm):
    return Hosts(hvdata, comm)


def test_roles(hvdata, comm, hosts):
    embedded = os.environ.get("HOROVOD_DATA_EMBEDDED") == "1"
    assert hvdata.num_readers() == 2
    roles = comm.allgather((hvdata.is_reader(), hvdata.is_trainer()))
    for name in hosts.names:
        here = [comm_rank for comm_rank in range(comm.size) if host_of(comm_rank) == name]
        reader = here[0] if embedded else here[-1]
        assert [roles[rank] for rank in here] == [(rank == reader, embedded or rank != reader) for rank in here]
    assert sum(hosts.sizes) == (hvdata.size() or sum(hosts.sizes))


@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.usefixtures("either_way")
@same_on_all_ranks(4)
@given(rows=st.lists(st.lists(st.integers(2, 9), min_size=1, max_size=5), min_size=2, max_size=2), prefetch=prefetches)
def test_global(hvdata, comm, hosts, remainder, rows, prefetch):
    """An element is a host's part of the global batch, and is cut for the trainers of that host."""
    batches = [batches_of(host, mine) for host, mine in enumerate(rows)]
    ds = hvdata.distribute_dataset(from_readers(batches), batch="global", remainder=remainder, prefetch=prefetch)
    want = hosts.by_rank(deliver_per_host(batches, hosts.sizes, "global", remainder))
    for _ in range(2):
        check(shares(hvdata, comm, ds), want)


def every_kind(table):
    """Dense; sparse; ragged, with rows that are all as long; ragged, with such rows in between."""
    pairs = tf.RaggedTensor.from_row_lengths(tf.ones([36]), tf.repeat([1, 2], 12))
    return (
        table,
        tf.sparse.from_dense(table),
        tf.RaggedTensor.from_tensor(table),
        tf.RaggedTensor.from_uniform_row_length(pairs, 2),
    )


def described(part):
    """Describes a tensor, and checks that it is valid for TensorFlow."""
    if isinstance(part, tf.SparseTensor):
        tf.sparse.to_dense(part)
        return "sparse", part.dense_shape.numpy().tolist(), int(part.values.shape[0])
    if isinstance(part, tf.RaggedTensor):
        sizes = [len(splits) - 1 for splits in part.nested_row_splits] + [int(part.flat_values.shape[0])]
        assert [int(splits[-1]) for splits in part.nested_row_splits] == sizes[1:], part
        return "ragged", sizes[0], sizes[-1]
    return "dense", part.shape.as_list(), part.numpy().any().item()


@pytest.mark.parametrize("batch", ["per_rank", "global"])
@pytest.mark.parametrize("remainder", REMAINDERS)
def test_a_host_without_data(hvdata, comm, hosts, batch, remainder):
    """Without an element, the shares are valid and empty. They have the shapes that the spec knows."""
    n = 4 * max(hosts.sizes)

    def function(context):
        numbers = tf.data.Dataset.range(0 if context.input_pipeline_id == 1 else n)
        return numbers.map(lambda i: every_kind(tf.fill([12, 5], tf.cast(i, tf.float32))))

    ds = hvdata.distribute_dataset(function, batch=batch, remainder=remainder)
    got = on_trainers(hvdata, comm, lambda: [[described(part) for part in tf.nest.flatten(one)] for one in ds])
    steps = 0 if remainder == "drop" else n // (hosts.sizes[0] if batch == "per_rank" else 1)
    assert [len(mine) for mine in got] == [steps] * len(got)
    rows = 0 if remainder == "partial" else 12 if batch == "per_rank" else 12 // hosts.sizes[1]
    want = [("dense", [rows, 5], False), ("sparse", [rows, 5], 0), ("ragged", rows, 5 * rows), ("ragged", rows, 0)]
    want += [("dense", [rows], False)] * (remainder == "pad")
    for rank in hosts.ranks[1]:
        assert got[rank] == [want] * steps


@pytest.mark.parametrize("lengths", [(4, 4), (4, 6), (0, 0)])
def test_scalars_end_where_no_host_has_more(hvdata, comm, hosts, lengths):
    """Scalars have no empty share. It is needed only if hosts end on different steps."""
    ds = hvdata.distribute_dataset(hosts.steps(lengths), batch="per_rank", remainder="partial", name="scalars")
    for epoch in (1, 2):
        for got, text in until_it_fails(hvdata, comm, ds):
            if lengths[0] == lengths[1]:
                assert len(got) == lengths[0] and text is None
                continue
            assert re.search(
                rf"\[reader 0 on {hosts.names[0]}, channel scalars, epoch {epoch}, step 4\] the last step has no "
                "element for some ranks.*the element is a scalar",
                text,
            ), text


def test_payload_stays_on_its_host(hvdata, comm, hosts):
    """The batches are large. Only headers travel by MPI."""

    def function(context):
        return tf.data.Dataset.range(12).map(lambda i: tf.fill([50_000], tf.cast(i, tf.float32))).batch(1)

    before = hvdata.stats()
    ds = hvdata.distribute_dataset(function, batch="per_rank")
    assert len(set(map(len, shares(hvdata, comm, ds)))) == 1
    after = hvdata.stats()
    assert all(results(comm, lambda: after["payload_bytes_message"] == before["payload_bytes_message"]))
    assert all(results(comm, lambda: after["mpi_bytes_sent"] - before["mpi_bytes_sent"] < 50_000))


@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.parametrize("lengths", [(8, 3), (0, 5), (6, 6)])
def test_cardinality(hvdata, comm, hosts, lengths, remainder):
    ds = hvdata.distribute_dataset(
        lambda context: tf.data.Dataset.range(lengths[context.input_pipeline_id]).batch(1),
        batch="per_rank",
        remainder=remainder,
    )
    steps = [length // n if remainder == "drop" else -(-length // n) for length, n in zip(lengths, hosts.sizes)]
    assert set(comm.allgather(int(ds.cardinality()))) == {(min if remainder == "drop" else max)(steps)}


def test_on_reader_error_continue_when_an_iterator_cannot_be_made(hvdata, comm, hosts):
    """The host has no data, and its ranks get as many shares without rows as the others get shares."""

    def function(context):
        ds = tf.data.Dataset.range(3 * hosts.sizes[context.input_pipeline_id]).batch(1)
        return ds.apply(assert_next(["Nonsense"])) if context.input_pipeline_id else ds  # fails in Initialize

    for remainder, steps in (("drop", 0), ("partial", 3), ("pad", 3)):
        ds = hvdata.distribute_dataset(function, batch="per_rank", remainder=remainder, on_reader_error="continue")
        assert {len(mine) for mine in shares(hvdata, comm, ds)} == {steps}


def test_shares_without_rows_after_a_restore(hvdata, comm, hosts, path):
    """A host's data had ended before the checkpoint. Its shares have the same shapes as without a restore."""
    source = hosts.steps((1, 4), lambda batches: tf.data.Dataset.range(5 * batches).batch(5))
    ds = hvdata.distribute_dataset(source, batch="per_rank", remainder="pad")
    whole = shares(hvdata, comm, ds)
    assert all(len(mine) == 4 and all(len(x) == len(weight) == 5 for x, weight in mine) for mine in whole), whole
    _, again = saved_and_restored(hvdata, comm, ds, path, 2)
    check(shares(hvdata, comm, again), [mine[2:] for mine in whole])


def test_a_static_global_batch_that_its_host_does_not_divide(hvdata, comm, hosts):
    if hosts.sizes[0] == 1:
        pytest.skip("one rank divides everything")
    rows = 2 * hosts.sizes[0] + 1
    raises_everywhere(
        comm,
        lambda: hvdata.distribute_dataset(
            lambda context: tf.data.Dataset.range(99).batch(rows, drop_remainder=True), batch="global"
        ),
        ValueError,
        rf"every global batch has {rows} rows, which ({'|'.join(map(str, hosts.sizes))}) ranks can't share evenly",
    )


def test_predictions(hvdata, comm):
    """The outputs of each row come once, in the order of the steps. The hosts' readers divide a common dataset."""
    got = results(comm, lambda: hvdata.predict(lambda x: 2 * x, lambda: tf.data.Dataset.range(45).batch(4)))
    assert sorted(got[0].tolist()) == [2 * i for i in range(45)]
    assert got[1:] == [None] * (comm.size - 1)
