# SPDX-License-Identifier: Apache-2.0
"""loader(): Python sources and tf.data on the reader, arrays on all ranks, against the oracle."""

import collections

import numpy as np
import pytest
import tensorflow as tf
from loaders import loads, of_epoch
from numbered_rows import (
    batches_of,
    check,
)
from oracle import deliver
from together import merged, on_reader, on_trainers, outcomes, raises_everywhere, results, written

pytestmark = [pytest.mark.world(np=3), pytest.mark.ranks(1, 2, 3, 4)]


def epoch(hvdata, comm, loader):
    """The shares of all trainers."""
    return on_trainers(hvdata, comm, lambda: list(loader))


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


# ---- Epochs.


@pytest.mark.world(np=2)
def test_a_source_for_every_epoch(hvdata, comm):
    asked = []

    def source(epoch):
        asked.append(epoch)
        return (epoch * 100 + i for i in range(8))

    loader = hvdata.loader(source, batch="per_rank", remainder="partial" if comm.size < 3 else "drop")
    whole = 8 - 8 % comm.size
    for number in (1, 2, 3):
        assert of_epoch(hvdata, comm, loader) == [number * 100 + i for i in range(whole)]
    assert asked == ([1, 2, 3] if hvdata.is_reader() else [])
    with pytest.raises(TypeError, match="is not known before its end"):
        len(loader)


@pytest.mark.world(np=2)
def test_an_iterator_is_read_once(hvdata, comm):
    loader = loads(hvdata, lambda: iter(range(12)))
    assert of_epoch(hvdata, comm, loader) == list(range(12 - 12 % comm.size))
    text = "the source is an iterator .*read once.*Pass a function with a parameter `epoch`"
    raises_everywhere(comm, lambda: list(loader), ValueError, text)


class Twelve:
    def __iter__(self):
        return iter(np.arange(12).reshape(1, 12))


@pytest.mark.world(np=2)
def test_a_class_is_a_function_that_makes_the_source(hvdata, comm):
    loader = hvdata.loader(Twelve, batch="global", remainder="partial")
    shares = results(comm, lambda: next(iter(loader)).tolist())
    assert sum(shares, []) == list(range(12))


def test_an_epoch_without_elements(hvdata, comm):
    loader = hvdata.loader(lambda epoch: batches_of([12, 4] * (epoch % 2)), batch="global", remainder="partial")
    counts = [results(comm, lambda: len(list(loader))) for _ in range(3)]
    assert [set(one) for one in counts] == [{2}, {0}, {2}]


@pytest.mark.readers(0, 1)
@pytest.mark.parametrize("who", range(4))
def test_a_rank_breaks_off(hvdata, comm, world, who):
    """The other ranks get all their steps, and the next epoch is whole."""
    n = world.np
    who %= n
    loader = loads(hvdata, lambda: range(8 * n))
    for _ in range(2):
        got = on_trainers(
            hvdata, comm, lambda: [x.item() for x, _ in zip(loader, range(3 if hvdata.rank() == who else 99))]
        )
        assert got == [list(range(rank, (3 if rank == who else 8) * n, n)) for rank in range(n)]
    assert of_epoch(hvdata, comm, loader) == list(range(8 * n))
