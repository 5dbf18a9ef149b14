# SPDX-License-Identifier: Apache-2.0
"""loader(): Python sources and tf.data on the reader, arrays on all ranks, against the oracle."""

import collections
import gc
import re

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from loaders import Stream
from numbered_rows import (
    PREFETCHES,
    REMAINDERS,
    ROWS,
    batch_of,
    batches_of,
    check,
    dataset_of,
    delivers,
    delivers_dynamically,
)
from oracle import deliver, deliver_from_readers
from together import merged, on_reader, on_trainers, outcomes, raises_everywhere, results, same_on_all_ranks, written

pytestmark = [pytest.mark.world(np=3), pytest.mark.ranks(1, 2, 3, 4)]

SOURCES = {"list": list, "stream": Stream, "tf.data": dataset_of}


def epoch(hvdata, comm, loader):
    """The shares of all trainers."""
    return on_trainers(hvdata, comm, lambda: list(loader))


rows_of_batches = st.lists(ROWS, min_size=1, max_size=9)


@pytest.mark.readers(0, 1)
@pytest.mark.parametrize("batch", ["global", "per_rank"])
@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.usefixtures("either_way")
@same_on_all_ranks(5)
@given(rows=rows_of_batches, prefetch=PREFETCHES, kind=st.sampled_from([*SOURCES]))
def test_static(hvdata, comm, batch, remainder, rows, prefetch, kind):
    batches = batches_of(rows)
    loader = hvdata.loader(
        on_reader(hvdata, lambda: SOURCES[kind](batches)), batch=batch, remainder=remainder, prefetch=prefetch
    )
    delivers(hvdata, comm, lambda: list(loader), batches, batch, remainder)


@pytest.mark.world(np=2, readers=1)
@pytest.mark.readers(0, 1)
@pytest.mark.usefixtures("either_way")
@same_on_all_ranks(5)
@given(rows=rows_of_batches, prefetch=PREFETCHES, remainder=st.sampled_from(REMAINDERS))
def test_dynamic(hvdata, comm, rows, prefetch, remainder):
    batches = batches_of(rows)
    loader = hvdata.loader(on_reader(hvdata, lambda: batches), batch="per_rank", schedule="dynamic", prefetch=prefetch,
                           remainder=remainder)  # fmt: skip
    delivers_dynamically(hvdata, comm, lambda: list(loader), batches, remainder)


def test_what_drop_drops_is_logged(hvdata, comm, several, capfd):
    n = comm.size
    loader = hvdata.loader(batches_of([n + 1, 2 * n + 1]), batch="global", name="leaving")
    results(comm, lambda: len(list(loader)))
    said = written(comm, capfd, 'remainder="drop" left out')
    assert re.search(r'channel leaving, epoch 1.*remainder="drop" left out 2 row\(s\) of this epoch', said), said


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("remainder", REMAINDERS[1:])
def test_more_ranks_than_rows(hvdata, comm, rows, remainder):
    """Some ranks get empty shares of the right types."""
    batches = batches_of([rows, 0, rows])
    loader = hvdata.loader(batches, batch="global", remainder=remainder)
    delivers(hvdata, comm, lambda: list(loader), batches, "global", remainder, epochs=1)


Pair = collections.namedtuple("Pair", "x y")


@pytest.mark.usefixtures("either_way")
def test_kinds_of_components(hvdata, comm):
    """Text, bfloat16, None, numbers, nests, lists, ragged and sparse tensors."""
    import ml_dtypes

    def element(k):
        return collections.OrderedDict(
            z=Pair(k, ["Grüße", "", f"{k}"]),
            a=[np.full([2, 3], k, ml_dtypes.bfloat16), None, (np.uint16(k), 2.5, k % 2 == 0, b"\xff")],
            m=[[1, k], [2, k]],
            r=hvdata.Ragged(np.arange(k), [np.array([0, k // 2, k])]),
            s=hvdata.Sparse(np.array([[0, k]]), np.array([1.5]), np.array([2, k + 1])),
        )

    ours = [element(k) for k in range(9)]
    loader = hvdata.loader(on_reader(hvdata, lambda: ours), batch="per_rank", remainder="drop")

    def seen():
        got = []
        for one in loader:
            assert (
                list(one) == ["z", "a", "m", "r", "s"]
                and one["a"][1] is None
                and one["a"][0].dtype == ml_dtypes.bfloat16
            )
            assert type(one["z"]).__name__ == "Pair" and one["z"]._fields == ("x", "y") and type(one["a"][2]) is tuple
            assert one["z"].y.dtype == object and not one["m"].flags.writeable
            got.append([
                one["z"].x.item(), one["z"].y.tolist(), one["a"][0].astype(float).tolist(), *[x.item() for x in one["a"][2]],
                one["m"].tolist(), [row.tolist() for row in one["r"].rows()], one["s"].indices.tolist(),
                one["s"].values.tolist(), one["s"].dense_shape.tolist()])  # fmt: skip
        return got

    got = on_trainers(hvdata, comm, seen)
    order = merged(got)
    assert len(order) == 9 // len(got) * len(got)
    for k, one in enumerate(order):
        assert one == [k, ["Grüße", "", str(k)], [[k] * 3] * 2, k, 2.5, k % 2 == 0, b"\xff", [[1, k], [2, k]],
                       [list(range(k // 2)), list(range(k // 2, k))], [[0, k]], [1.5], [2, k + 1]]  # fmt: skip


@pytest.mark.world(np=4)
def test_ragged_tensors_of_tf_data_and_weights(hvdata, comm):
    """A tf.data pipeline feeds arrays: ragged rows are cut, and weights come with them."""

    def source():
        rows = tf.ragged.constant([[1], [], [2, 3], [4], [5, 6, 7]], dtype=tf.int32)
        return tf.data.Dataset.from_tensors({"r": rows, "k": tf.range(5)}).repeat(3)

    loader = hvdata.loader(on_reader(hvdata, source), batch="global", remainder="pad")
    assert loader.spec[1].dtype == "float32" and loader.spec[0]["r"].rank == 2
    want = [[1], [], [2, 3], [4], [5, 6, 7]]
    for shares in zip(*on_trainers(hvdata, comm, lambda: [([r.tolist() for r in x["r"].rows()], x["k"].tolist(), w.tolist())
                                                          for x, w in loader])):  # fmt: skip
        rows = [(row, k) for rows, ks, ws in shares for row, k, w in zip(rows, ks, ws) if w]
        assert rows == list(zip(want, range(5)))
    assert len(loader) == 3


@pytest.mark.parametrize("weighs", ["rows", "costs"])
@pytest.mark.parametrize("kind", ["list", "list of lists", "tf.data"])
def test_weigh(hvdata, comm, weighs, kind):
    """The mean over ranks of the mean of weight * loss is the mean of one process."""
    x, y, own = np.arange(1, 8, dtype=np.float32), np.arange(7) % 3 + 1.0, np.ones(7, np.float32)
    cost = "rows" if weighs == "rows" else (lambda x, y, own: y)
    pairs = tf.data.Dataset.from_tensors((x, y, own)) if kind == "tf.data" else None
    source = lambda: pairs.repeat(3) if pairs is not None else [[x, y, own] if "lists" in kind else (x, y, own)] * 3
    loader = hvdata.loader(on_reader(hvdata, source), batch="global", remainder="partial", weigh=cost)
    costs = np.ones(7) if weighs == "rows" else y
    steps = list(zip(*on_trainers(hvdata, comm, lambda: list(loader))))
    assert len(steps) == 3
    for shares in steps:
        means = [np.mean(x * weight) if len(x) else 0.0 for x, _, weight in shares]
        assert abs(np.mean(means) - np.sum(costs * x) / np.sum(costs)) < 1e-4


@pytest.mark.world(np=2, readers=2)
@pytest.mark.ranks(2, 3)
@pytest.mark.readers(2, 3)
@pytest.mark.parametrize("batch, remainder", [("global", "partial"), ("per_rank", "pad"), ("per_rank", "drop")])
def test_several_readers(hvdata, comm, batch, remainder):
    """Each reader's function gets its context."""
    sizes = [[3, 30, 1, 7], [2, 9, 4, 4, 6], [5, 5]][: hvdata.num_readers()]
    everything = [
        [batch_of(1000 * reader + 50 * i, rows) for i, rows in enumerate(one)] for reader, one in enumerate(sizes)
    ]

    def source(context):
        assert context.num_input_pipelines == len(sizes)
        return everything[context.input_pipeline_id]

    loader = hvdata.loader(source, batch=batch, remainder=remainder, verify=True)
    for _ in range(2):
        got = epoch(hvdata, comm, loader)
        check(got, deliver_from_readers(everything, len(got), batch, remainder))


@pytest.mark.world(np=2, readers=2)
@pytest.mark.ranks(2, 3)
@pytest.mark.readers(2, 3)
def test_readers_divide_one_source(hvdata, comm):
    batches = batches_of([4, 2, 7, 1, 30, 5, 6])
    loader = hvdata.loader(lambda: batches, batch="global", remainder="partial", shard="auto", verify=True)
    assert results(comm, lambda: len(loader)) == [7] * comm.size
    for _ in range(2):
        got = epoch(hvdata, comm, loader)
        assert [row for share in merged(got) for row in share["id"]] == list(range(55))


@pytest.mark.world(np=2, readers=2)
@pytest.mark.ranks(2, 3)
@pytest.mark.readers(2)
def test_a_reader_without_elements_learns_what_they_are(hvdata, comm):
    """In epoch 2 the source of reader 1 has elements, which lack a component of those of reader 0."""

    def source(context, epoch):
        whole = [{"x": i, "y": i} for i in range(6)]
        return whole if context.input_pipeline_id == 0 else [[], whole, [{"x": 1}]][epoch - 1]

    loader = hvdata.loader(source, batch="per_rank", remainder="partial")
    for rows in (6, 12):
        got = epoch(hvdata, comm, loader)
        assert sum(map(len, got)) == rows
    text = "the element is a dict of 'x', but in the first element it was a dict of 'x', 'y'"
    failed = list(filter(None, outcomes(comm, lambda: len(list(loader)) if hvdata.is_trainer() else None)))
    assert all(one.kind is TypeError and text in one.text for one in failed), failed


def test_ranks_mix_arrays_and_datasets(hvdata, comm):
    """Reader 0 has a list. Odd ranks get a tf.data.Dataset of it."""
    batches = batches_of([12, 5, 8])
    arguments = dict(batch="global", remainder="partial", name="mixed")
    if comm.rank % 2:
        dataset = hvdata.distribute_dataset(lambda: None, **arguments)
        mine = lambda: [tf.nest.map_structure(lambda x: x.numpy(), one) for one in dataset]
    else:
        loader = hvdata.loader(batches, **arguments)
        mine = lambda: list(loader)
    for _ in range(2):
        got = on_trainers(hvdata, comm, mine)
        check(got, deliver(batches, len(got), "global", remainder="partial"))


def test_memory_is_held_by_its_arrays_alone(hvdata, comm):
    loader = hvdata.loader([{"x": np.full([comm.size * 5000], i, np.float32)} for i in range(12)], batch="global")

    def kept():
        it = iter(loader)
        first = next(it)["x"][10:20]
        for share in it:
            assert len(set(share["x"][:100].tolist())) == 1
        del share
        return first

    mine = kept()
    del loader
    gc.collect()
    assert results(comm, lambda: (mine == 0).all())
    mine = None
    gc.collect()


@pytest.mark.world(np=2)
def test_writable(hvdata, comm):
    loader = hvdata.loader([np.arange(4.0), np.arange(4.0)], batch="per_rank", writable=True, remainder="partial")

    def add():
        for x in loader:
            x += 1
        return True

    assert on_trainers(hvdata, comm, add)
    assert all(map(all, results(comm, lambda: [(np.arange(4.0) == x).all() for x in loader] or [True])))


def test_a_certificate_a_report_and_progress(hvdata, comm, capfd):
    loader = hvdata.loader(on_reader(hvdata, lambda: batches_of([12] * 5)), batch="global", verify=True, name="proved")
    for _ in range(2):
        epoch(hvdata, comm, loader)
    said = written(comm, capfd, "channel proved, epoch 2")
    assert "channel proved, epoch 2: 60 rows that the reader yielded, each delivered once" in said, said
    text = results(comm, lambda: str(hvdata.report()))[0]
    assert "proved" in text
    taken = on_trainers(hvdata, comm, lambda: hvdata.stats()["proved/step"] if "proved/step" in hvdata.stats() else 5)
    assert set(taken) == {5}
    assert "proved" in repr(loader)


@pytest.mark.world(np=2)
def test_an_audit_of_a_loader(hvdata, comm):
    """What the ranks get of it is each row once. The source can't be audited, because readers alone have it."""
    loader = hvdata.loader(on_reader(hvdata, lambda: batches_of([12, 7, 1])), batch="global", remainder="partial")
    audited = hvdata.audit(loader, key="id", reference=20)
    got = on_trainers(hvdata, comm, lambda: sum(len(batch["id"]) for batch in audited))
    assert sum(got) == 20
    assert on_trainers(hvdata, comm, lambda: [audited.report().never, audited.report().times])[0] == [0, {1: 20}]
    source = lambda: hvdata.audit(batches_of([12]), key="id")
    raises_everywhere(comm, lambda: hvdata.loader(source, batch="global"), RuntimeError,
                      r"audit\(\) was called in a dataset function, which runs on readers only")  # fmt: skip


def test_a_data_loader_and_tensors(hvdata, comm):
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.arange(24.0).reshape(12, 2), torch.arange(12))
    source = lambda: torch.utils.data.DataLoader(data, batch_size=4)
    loader = hvdata.loader(on_reader(hvdata, source), batch="global", remainder="partial", to="torch")
    assert len(loader) == 3
    for _ in range(2):
        got = on_trainers(hvdata, comm, lambda: [(type(x).__name__, x.tolist(), y.tolist()) for x, y in loader])
        rows = [(*x, y) for kind, xs, ys in merged(got) for x, y in zip(xs, ys) if kind == "Tensor"]
        assert rows == [(2.0 * i, 2.0 * i + 1, i) for i in range(12)]
