# SPDX-License-Identifier: Apache-2.0
"""cache="job": every epoch against the oracle, on pipelines that run once."""

import functools
import gc
import itertools

import numpy as np
import pytest
import tensorflow as tf
from checkpoints import rest, restored, saved, take
from hypothesis import example, given
from hypothesis import strategies as st
from numbered_rows import REMAINDERS
from oracle import cached_epoch, deliver, rotate
from together import generated, local, on_reader, on_trainers, raises_everywhere, results, same_on_all_ranks, until

pytestmark = [pytest.mark.world(np=3), pytest.mark.limit(120)]

SEED = -7


class Numbers:
    """Batches of row numbers, from 1 on. It counts its epochs in this process. `fails`: the element before which the
    first epochs fail, and how many of them do."""

    def __init__(self, sizes, first=1, fails=(-1, 0)):
        starts = itertools.accumulate(sizes, initial=first)
        self.batches = [np.arange(start, start + size, dtype=np.int64) for start, size in zip(starts, sizes)]
        self.starts, self.element = 0, plain
        self.at, self.failures = fails

    def __call__(self):
        self.starts += 1
        for i, batch in enumerate(self.batches):
            if i == self.at and self.starts <= self.failures:
                raise ValueError("disk full of cats")
            yield batch

    def __iter__(self):
        return map(self.element, self())

    def dataset(self):
        return generated(self, tf.TensorSpec([None], tf.int64))


def plain(ids):
    return ids


def kinds(ids):
    """Rows of every kind, made of their numbers. Row 0 is what padding looks like."""
    text = tf.where(
        ids == 0, "", tf.strings.format("row {}\0", ids) if ids.shape.rank == 0 else tf.strings.as_string(ids)
    )
    dense = tf.stack([ids, tf.zeros_like(ids), -ids], 1)
    return {
        "id": ids,
        "text": text,
        "x": (tf.repeat(tf.cast(ids[:, None], tf.float32), 64, axis=1),),
        "ragged": tf.RaggedTensor.from_row_lengths(tf.repeat(ids, ids % 4), ids % 4),
        "sparse": tf.sparse.from_dense(dense),
    }


def arrays(hvdata, ids):
    """kinds(), without TensorFlow."""
    filled = np.flatnonzero(ids)
    return {
        "id": ids,
        "text": [b"%d" % i if i else b"" for i in ids],
        "x": (np.repeat(ids[:, None].astype(np.float32), 64, axis=1),),
        "ragged": hvdata.Ragged(np.repeat(ids, ids % 4), [np.cumsum([0, *(ids % 4)])]),
        "sparse": hvdata.Sparse(
            np.stack([np.repeat(filled, 2), np.tile([0, 2], len(filled))], 1),
            np.stack([ids[filled], -ids[filled]], 1).ravel(),
            np.array([len(ids), 3]),
        ),
    }


def check_kinds(share):
    """The rows of kinds() or arrays() belong to their numbers."""
    ids, ragged, sparse = share["id"], share["ragged"], share["sparse"]
    assert share["text"].tolist() == [b"%d" % i if i else b"" for i in ids]
    assert share["x"][0].tolist() == np.repeat(ids[:, None].astype(np.float32), 64, axis=1).tolist()
    rows = ragged if isinstance(ragged, list) else [row.tolist() for row in ragged.rows()]
    assert rows == [[i] * (i % 4) for i in ids]
    dense = np.zeros(sparse.dense_shape, np.int64)
    dense[tuple(sparse.indices.T)] = sparse.values
    assert dense.tolist() == [[i, 0, -i] for i in ids]


def numbers_of(share, remainder, check):
    """(numbers, weights) of a share. Weights are None if it has none."""
    weighs = remainder in ("pad", "repeat")
    element, weight = share if weighs else (share, None)
    if not isinstance(element, dict):
        return element.tolist(), weight if weight is None else weight.tolist()
    if weight is None or weight.all() or check:  # a filler share of batch="per_rank" may look otherwise
        check_kinds(element)
    return element["id"].tolist(), weight if weight is None else weight.tolist()


def local_epoch(channel, remainder="drop", check=True):
    """What this rank gets in an epoch: the numbers and weights of each share."""
    shares = local(channel) if isinstance(channel, tf.data.Dataset) else channel
    return [numbers_of(share, remainder, check) for share in shares]


def epoch_of(hvdata, comm, channel, remainder="drop", check=True):
    """local_epoch() of each trainer."""
    return on_trainers(hvdata, comm, lambda: local_epoch(channel, remainder, check))


def wanted(batches, n, epoch, batch="global", remainder="drop", shuffle=True, seed=SEED):
    """What each of n trainers gets in this epoch, in the form of epoch_of()."""
    elements = cached_epoch(batches, batch, epoch, seed if shuffle else None)
    return [
        [(s[0].tolist(), s[1].tolist()) if isinstance(s, tuple) else (s.tolist(), None) for s in mine]
        for mine in deliver(elements, n, batch, remainder=remainder)
    ]


def cached(hvdata, source, kind=plain, shuffle=True, door="dataset", **options):
    """A cached channel on this source, by one of the two doors."""
    options = {"batch": "global", "cache": "job", "shuffle": shuffle, "seed": SEED, **options}
    if door == "loader":
        source.element = plain if kind is plain else functools.partial(arrays, hvdata)
        return hvdata.loader(on_reader(hvdata, lambda: source), **options)
    make = lambda: source.dataset() if kind is plain else source.dataset().map(kind)
    return hvdata.distribute_dataset(on_reader(hvdata, make), **options)


def starts(comm, source):
    """The epochs that the pipelines of all processes have begun."""
    return sum(comm.allgather(source.starts))


def delivers(hvdata, comm, ds, source, epochs, batch="global", remainder="drop", shuffle=True):
    """Asserts that these epochs, which come next, are the oracle's."""
    for epoch in epochs:
        got = epoch_of(hvdata, comm, ds, remainder, batch == "global")
        want = wanted(source.batches, len(got), epoch, batch, remainder, shuffle)
        assert got == want, f"epoch {epoch}: got {got}, not {want}"


@pytest.mark.readers(0, 1)
@pytest.mark.parametrize("batch", ["global", "per_rank"])
@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.usefixtures("either_way")
@same_on_all_ranks(3)
@given(
    sizes=st.lists(st.integers(0, 11) | st.integers(100, 300), max_size=9),
    prefetch=st.sampled_from(["auto", 1, 3]),
    kind=st.sampled_from([plain, kinds]),
    shuffle=st.booleans(),
    door=st.sampled_from(["dataset", "loader"]),
)
@example(sizes=[], prefetch=1, kind=kinds, shuffle=True, door="dataset")
@example(sizes=[1], prefetch=1, kind=kinds, shuffle=True, door="dataset")
@example(sizes=[2, 0, 1], prefetch=1, kind=kinds, shuffle=True, door="dataset")
@example(sizes=[7, 3, 12, 1, 9, 4], prefetch="auto", kind=plain, shuffle=True, door="loader")
def test_four_epochs(hvdata, comm, batch, remainder, sizes, prefetch, kind, shuffle, door):
    source = Numbers(sizes or [0] if door == "loader" else sizes)  # a loader needs an element
    options = {"batch": batch, "remainder": remainder}
    channel = cached(hvdata, source, kind, shuffle, door, prefetch=prefetch, **options)
    delivers(hvdata, comm, channel, source, [1, 2, 3, 4], shuffle=shuffle, **options)
    assert starts(comm, source) == 1


@pytest.mark.ranks(2, 3)
@pytest.mark.readers(2)
@pytest.mark.world(np=2, readers=2)
@pytest.mark.parametrize("shard", [None, "auto"])
@pytest.mark.parametrize("batch, remainder", [("global", "partial"), ("global", "drop"), ("per_rank", "pad")])
def test_several_readers(hvdata, comm, shard, batch, remainder):
    """Their elements come in turns. With shard="auto" that is the order of the pipeline."""
    of_readers = [Numbers([5, 1, 30, 8]), Numbers([3, 12, 4, 4, 7, 9], first=1000)]
    whole = Numbers([3, 8, 1, 12, 7, 5, 4])
    opened = []

    def make(context):
        opened.append(of_readers[context.input_pipeline_id] if shard is None else whole)
        return opened[-1].dataset()

    ds = hvdata.distribute_dataset(
        (lambda: make(tf.distribute.InputContext(2, 0, 1)) and whole.dataset()) if shard else make,
        batch=batch, remainder=remainder, cache="job", shuffle=True, seed=SEED, shard=shard,
    )  # fmt: skip
    batches = whole.batches if shard else rotate([one.batches for one in of_readers])
    for epoch in 1, 2, 3:
        got = epoch_of(hvdata, comm, ds, remainder)
        assert got == wanted(batches, len(got), epoch, batch, remainder)
    assert all(one.starts <= 1 for one in (*of_readers, whole))


@pytest.mark.parametrize("weigh", ["rows", "costs"])
@pytest.mark.parametrize("remainder", ["partial", "pad", "repeat"])
@pytest.mark.parametrize("batch", ["global", "per_rank"])
def test_weights(hvdata, comm, weigh, remainder, batch):
    """The weights are those of the rows that a step has in this epoch. A filler row costs 0."""
    source = Numbers([7, 3, 12, 5, 9, 4, 6])
    cost = "rows" if weigh == "rows" else (lambda ids: ids % 3 + 1)
    ds = cached(hvdata, source, batch=batch, remainder=remainder, weigh=cost)
    for epoch in 1, 2, 3:
        got = on_trainers(hvdata, comm, lambda: [(ids.tolist(), weight.tolist()) for ids, weight in local(ds)])
        want = wanted(source.batches, len(got), epoch, batch, remainder)
        assert [[ids for ids, _ in mine] for mine in got] == [[ids for ids, _ in mine] for mine in want]
        for step, its_rows in zip(zip(*got), zip(*want)):
            costs = [
                [is_data * (1 if weigh == "rows" else i % 3 + 1) for i, is_data in zip(ids, data or [1] * len(ids))]
                for ids, data in its_rows
            ]
            whole = sum(map(sum, costs))
            for (ids, weights), mine in zip(step, costs):
                assert np.allclose(weights, [len(step) * len(ids) * one / whole for one in mine], rtol=1e-5)
    assert starts(comm, source) == 1


@pytest.mark.readers(0, 1)
def test_a_break_in_epoch_1(hvdata, comm):
    """All ranks may break off the epoch that loads, and lose nothing."""
    source = Numbers([12] * 8)
    channel = cached(hvdata, source)
    on_trainers(hvdata, comm, lambda: len(list(itertools.islice(channel, 1))))
    delivers(hvdata, comm, channel, source, [2, 3], "global")
    assert starts(comm, source) == 1


@pytest.mark.readers(0, 1)
@pytest.mark.parametrize("batch", ["global", "per_rank"])
@pytest.mark.parametrize("at, door, kind", [(0, "dataset", plain), (5, "dataset", plain), (5, "loader", kinds)])
def test_the_pipeline_fails(hvdata, comm, batch, at, door, kind):
    """The steps before the error come, and then every rank raises it. Later epochs raise it, too."""
    source = Numbers([12] * 12, fails=(at, 1))
    channel = cached(hvdata, source, kind, door=door, batch=batch, name="failing")

    def until_it_fails():
        got = []
        try:
            for share in channel:
                got.append(numbers_of(share, "drop", True) if door == "loader" else (share.numpy().tolist(), None))
        except (tf.errors.InvalidArgumentError, ValueError) as error:
            return got, str(error)
        return got, "nothing was raised"

    got = on_trainers(hvdata, comm, until_it_fails)
    want = wanted(source.batches[:at], len(got), 1, batch)
    assert [mine for mine, _ in got] == want
    for _, text in got:
        assert "disk full of cats" in text and "reader 0 on " in text and "failing" in text, text
    for _, text in on_trainers(hvdata, comm, until_it_fails):
        assert "disk full of cats" in text, text
    assert starts(comm, source) == 1


# ---- Memory.


def big(rows):
    """The bytes of a row are 8 KiB."""
    source = Numbers([rows // 8] * 8)
    return source, lambda ids: {"id": ids, "x": tf.repeat(tf.cast(ids[:, None], tf.float32), 2048, axis=1)}


def test_more_than_a_host_may_keep(hvdata, comm, monkeypatch):
    """Every rank raises an error, also in later epochs. It names the host and what to do."""
    monkeypatch.setenv("HOROVOD_DATA_CACHE_GB", "0.001")
    source, kind = big(960)
    ds = cached(hvdata, source, kind, name="big")
    says = (
        r"\[keeper \d on \S+, channel big",
        "Raise HOROVOD_DATA_CACHE_GB, set HOROVOD_DATA_CACHE_DIR to a folder on a local disk, or use more hosts",
    )
    for _ in 1, 2:
        raises_everywhere(comm, lambda: [share["id"] for share in ds], tf.errors.ResourceExhaustedError, *says)
    assert starts(comm, source) == 1


def test_what_is_known_not_to_fit_is_an_error_of_the_call(hvdata, comm, monkeypatch):
    monkeypatch.setenv("HOROVOD_DATA_CACHE_GB", "0.001")
    make = lambda: tf.data.Dataset.range(1000).map(lambda i: tf.fill([4096], i)).batch(12, drop_remainder=True)
    call = lambda: hvdata.distribute_dataset(on_reader(hvdata, make), batch="global", cache="job")
    says = r"would keep 0\.\d\d GiB, and all hosts together may keep 0.00 GiB", "or use more hosts"
    raises_everywhere(comm, call, tf.errors.ResourceExhaustedError, *says)


def test_rows_in_files(hvdata, comm, monkeypatch, tmp_path):
    """The files have no names, so they need no cleaning."""
    folder = comm.bcast(str(tmp_path))
    monkeypatch.setenv("HOROVOD_DATA_CACHE_GB", "0.001")
    monkeypatch.setenv("HOROVOD_DATA_CACHE_DIR", folder)
    source, kind = big(960)
    ds = cached(hvdata, source, kind, name="overflowing")

    def epoch():
        shares = local(ds)
        assert all((share["x"] == share["id"][:, None]).all() for share in shares)
        return [(share["id"].tolist(), None) for share in shares]

    for number in 1, 2, 3:
        got = on_trainers(hvdata, comm, epoch)
        assert got == wanted(source.batches, len(got), number)
    comm.barrier()
    assert not list(tmp_path.iterdir())
    assert starts(comm, source) == 1


def test_stats_and_the_report_know_the_memory(hvdata, comm):
    source = Numbers([12] * 8)
    ds = cached(hvdata, source, kinds, name="counted")
    before = hvdata.stats()
    assert before["counted/cache_loaded"] == before["counted/cache_bytes"] == 0
    for _ in 1, 2:
        epoch_of(hvdata, comm, ds)
    all_stats = comm.allgather(hvdata.stats())
    keepers = [one for one in all_stats if one["counted/cache_bytes"]]
    assert len({one["counted/cache_units"] for one in keepers}) == 1 and keepers[0]["counted/cache_units"] == 96
    assert all(one["counted/cache_loaded"] == 1 for one in keepers)
    assert 96 * 256 < sum(one["counted/cache_bytes"] for one in keepers) < 96 * 4096
    assert all(one["counted/cache_limit"] > 1 << 20 for one in keepers)
    comm.barrier()


@pytest.mark.readers(0, 1)
def test_the_memory_is_freed_with_the_channel(hvdata, comm):
    ds = cached(hvdata, Numbers([12] * 8), name="freed")
    epoch_of(hvdata, comm, ds)
    assert sum(comm.allgather(hvdata.stats()["freed/cache_bytes"])) > 0
    del ds
    gc.collect()
    until(comm, lambda: hvdata.stats().get("freed/cache_bytes", 0) == 0)


# ---- Checkpoints.


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("door", ["dataset", "loader"])
@pytest.mark.parametrize("epoch", [1, 3])
@pytest.mark.parametrize("batch", ["global", "per_rank"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_another_run_goes_on(hvdata, comm, path, door, epoch, batch, shuffle):
    """Another channel stands for another run. It loads once, and goes on with the row behind the last one."""
    source, again = Numbers([12] * 9), Numbers([12] * 9)
    channel, other = [cached(hvdata, one, shuffle=shuffle, door=door, batch=batch) for one in (source, again)]
    delivers(hvdata, comm, channel, source, range(1, epoch), batch, shuffle=shuffle)
    it = iter(channel)
    whole = [[ids for ids, _ in mine] for mine in wanted(source.batches, comm.size, epoch, batch, shuffle=shuffle)]
    half = len(whole[0]) // 2
    assert results(comm, lambda: take(it, half)) == [mine[:half] for mine in whole]
    if door == "loader":
        states = results(comm, channel.state_dict)  # each rank keeps its own
        other.load_state_dict(states[comm.rank])
    else:
        saved(comm, it, path)
    assert results(comm, lambda: rest(it)) == [mine[half:] for mine in whole]
    it = iter(other) if door == "loader" else restored(comm, other, path)
    assert results(comm, lambda: rest(it)) == [mine[half:] for mine in whole]
    delivers(hvdata, comm, other, again, [epoch + 1, epoch + 2], batch, shuffle=shuffle)
    assert starts(comm, again) == 1


@pytest.mark.parametrize("epoch", [1, 3])
def test_a_pipeline_that_yields_another_order_is_not_continued(hvdata, comm, path, epoch):
    """No row of another order comes out."""
    source = Numbers([12] * 9)
    ds = cached(hvdata, source)
    delivers(hvdata, comm, ds, source, range(1, epoch))
    it = iter(ds)
    results(comm, lambda: take(it, 4))
    saved(comm, it, path)
    other = Numbers([12] * 9)
    other.batches[1:3] = reversed(other.batches[1:3])
    it = restored(comm, cached(hvdata, other), path)
    raises_everywhere(comm, lambda: next(it), tf.errors.DataLossError, "Give every shuffle a seed")


# ---- What is refused. tests/single/test_options.py has the arguments.


def test_a_pipeline_without_an_end_is_refused(hvdata, comm):
    make = lambda: tf.data.Dataset.range(9).repeat()
    call = lambda: hvdata.distribute_dataset(make, batch="per_rank", cache="job")
    raises_everywhere(comm, call, ValueError, "which is infinite", r"Leave out .repeat\(\)")


@pytest.mark.ranks(2, 3)
@pytest.mark.per_node("dedicated", "embedded")
@pytest.mark.world(np=3, per_node="embedded")
def test_readers_of_hosts_are_refused(hvdata, comm):
    call = lambda: hvdata.distribute_dataset(lambda: tf.data.Dataset.range(9), batch="per_rank", cache="job")
    raises_everywhere(
        comm, call, ValueError, "each host has a reader of its own", "Use readers=R", r"Dataset\.cache\(\)"
    )
