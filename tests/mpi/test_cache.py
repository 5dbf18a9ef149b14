# SPDX-License-Identifier: Apache-2.0
"""cache="job": every epoch against the oracle, on pipelines that run once."""

import gc
import itertools
import time

import numpy as np
import pytest
import tensorflow as tf
from checkpoints import rest, restored, saved, take
from hypothesis import given
from hypothesis import strategies as st
from oracle import cached_epoch, deliver, rotate
from together import local, on_reader, on_trainers, outcomes, raises_everywhere, results, same_on_all_ranks

pytestmark = [pytest.mark.world(np=3), pytest.mark.limit(120)]

REMAINDERS = ["drop", "partial", "pad", "repeat"]
SEED = -7


class Numbers:
    """Batches of row numbers, from 1 on. It counts its epochs in this process. `fails`: the element before which the
    first epochs fail, and how many of them do."""

    def __init__(self, sizes, first=1, fails=(-1, 0)):
        starts = itertools.accumulate(sizes, initial=first)
        self.batches = [np.arange(start, start + size, dtype=np.int64) for start, size in zip(starts, sizes)]
        self.starts = 0
        self.at, self.failures = fails

    def __call__(self):
        self.starts += 1
        for i, batch in enumerate(self.batches):
            if i == self.at and self.starts <= self.failures:
                raise ValueError("disk full of cats")
            yield batch

    def dataset(self):
        return tf.data.Dataset.from_generator(self, output_signature=tf.TensorSpec([None], tf.int64))


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


def check_kinds(share):
    """The rows of kinds() belong to their numbers."""
    ids = share["id"]
    assert share["text"].tolist() == [b"%d" % i if i else b"" for i in ids]
    assert share["x"][0].tolist() == np.repeat(ids[:, None].astype(np.float32), 64, axis=1).tolist()
    assert share["ragged"] == [[i] * (i % 4) for i in ids]
    dense = np.zeros(share["sparse"].dense_shape, np.int64)
    dense[tuple(share["sparse"].indices.T)] = share["sparse"].values
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


def epoch_of(hvdata, comm, ds, remainder="drop", check=True):
    """What each trainer gets in an epoch: the numbers and weights of each share."""
    return on_trainers(hvdata, comm, lambda: [numbers_of(share, remainder, check) for share in local(ds)])


def wanted(batches, n, epoch, batch="global", remainder="drop", shuffle=True, seed=SEED):
    """What each of n trainers gets in this epoch, in the form of epoch_of()."""
    elements = cached_epoch(batches, batch, epoch, seed if shuffle else None)
    return [
        [(s[0].tolist(), s[1].tolist()) if isinstance(s, tuple) else (s.tolist(), None) for s in mine]
        for mine in deliver(elements, n, batch, remainder=remainder)
    ]


def cached(hvdata, source, kind=plain, shuffle=True, **options):
    """A cached channel on this source."""
    options = {"batch": "global", "cache": "job", "shuffle": shuffle, "seed": SEED, **options}
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


sizes_of_batches = st.lists(st.integers(0, 11) | st.integers(100, 300), max_size=9)


@pytest.mark.readers(0, 1)
@pytest.mark.parametrize("batch", ["global", "per_rank"])
@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.usefixtures("either_way")
@same_on_all_ranks(3)
@given(
    sizes=sizes_of_batches,
    prefetch=st.sampled_from(["auto", 1, 3]),
    kind=st.sampled_from([plain, kinds]),
    shuffle=st.booleans(),
)
def test_four_epochs(hvdata, comm, batch, remainder, sizes, prefetch, kind, shuffle):
    source = Numbers(sizes)
    ds = cached(hvdata, source, kind, shuffle, batch=batch, remainder=remainder, prefetch=prefetch)
    delivers(hvdata, comm, ds, source, [1, 2, 3, 4], batch, remainder, shuffle)
    assert starts(comm, source) == 1


@pytest.mark.readers(0, 1)
@pytest.mark.parametrize("sizes", [[], [0], [1], [1, 1], [2, 0, 1]], ids=str)
@pytest.mark.parametrize("batch, remainder", [("global", "drop"), ("global", "pad"), ("per_rank", "repeat")])
def test_little_data(hvdata, comm, sizes, batch, remainder):
    """No elements, one row, and fewer rows than ranks."""
    source = Numbers(sizes)
    ds = cached(hvdata, source, kinds, batch=batch, remainder=remainder)
    delivers(hvdata, comm, ds, source, [1, 2, 3, 4], batch, remainder)
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


@pytest.mark.readers(0, 1)
@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("batch", ["global", "per_rank"])
def test_a_loader(hvdata, comm, batch):
    """Arrays from a Python iterable, without TensorFlow's dataset."""
    source = Numbers([7, 3, 12, 1, 9, 4])

    class Stream:
        def __iter__(self):
            return source()

    loader = hvdata.loader(
        on_reader(hvdata, Stream), batch=batch, remainder="partial", cache="job", shuffle=True, seed=SEED
    )
    for epoch in 1, 2, 3, 4:
        got = on_trainers(hvdata, comm, lambda: [(share.tolist(), None) for share in loader])
        assert got == wanted(source.batches, len(got), epoch, batch, "partial")
    assert starts(comm, source) == 1


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


@pytest.mark.readers(0, 1)
def test_a_loader_whose_source_fails(hvdata, comm):
    """The second run of the source works. A break in its load loses nothing."""
    source = Numbers([12] * 8, fails=(5, 1))

    class Stream:
        def __iter__(self):
            return (arrays(hvdata, ids) for ids in source())

    loader = hvdata.loader(on_reader(hvdata, Stream), batch="global", cache="job", shuffle=True, seed=SEED)

    def epoch(most=None):
        got = []
        try:
            for share in itertools.islice(loader, most):
                check_kinds({**share, "ragged": [row.tolist() for row in share["ragged"].rows()]})
                got.append((share["id"].tolist(), None))
        except Exception as error:
            assert "disk full of cats" in str(error), error
            got.append("failed")
        return got

    for number, most, ending in (1, None, ["failed"]), (2, 3, []), (3, None, []):
        got = on_trainers(hvdata, comm, lambda: epoch(most))
        want = wanted(source.batches, len(got), number)
        assert got == [mine[: 5 if ending else most] + ending for mine in want], number
    assert starts(comm, source) == 2


@pytest.mark.parametrize("epoch", [1, 3])
def test_the_state_of_a_loader(hvdata, comm, epoch):
    """Another loader stands for another run."""

    def made(source):
        return hvdata.loader(lambda: [*source()], batch="global", cache="job", shuffle=True, seed=SEED)

    source = Numbers([12] * 9)
    loader = made(source)
    for _ in range(1, epoch):
        on_trainers(hvdata, comm, lambda: list(loader))
    it = iter(loader)
    got = results(comm, lambda: [next(it).tolist() for _ in range(4)])
    states = [loader.state_dict()]  # each rank keeps its own
    other = made(source)
    other.load_state_dict(states[0])
    after = results(comm, lambda: [share.tolist() for share in other])
    want = [[ids for ids, _ in mine] for mine in wanted(source.batches, comm.size, epoch)]
    assert [a + b for a, b in zip(got, after)] == want
    got = results(comm, lambda: [share.tolist() for share in other])
    assert got == [[ids for ids, _ in mine] for mine in wanted(source.batches, comm.size, epoch + 1)]


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


# ---- Epochs that end early.


@pytest.mark.readers(0, 1)
@pytest.mark.parametrize("who", ["first", "last", "all"])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_break_in_epoch_1(hvdata, comm, who, steps):
    """The load goes on, and the next epoch has all rows."""
    source = Numbers([12] * 8)
    ds = cached(hvdata, source, kinds)

    def break_off():
        breaks = who == "all" or hvdata.rank() == (0 if who == "first" else hvdata.size() - 1)
        it = iter(ds)
        got = [next(it)["id"].numpy().tolist() for _ in range(steps)]
        return got if breaks else got + [share["id"].numpy().tolist() for share in it]

    got = on_trainers(hvdata, comm, break_off)
    want = wanted(source.batches, len(got), 1)
    for mine, its in zip(got, want):
        assert mine == [ids for ids, _ in its][: len(mine)]
    assert {len(mine) for mine in got} == {steps, *([] if who == "all" or len(got) == 1 else [8])}
    delivers(hvdata, comm, ds, source, [2, 3])
    assert starts(comm, source) == 1


@pytest.mark.readers(0, 1)
@pytest.mark.parametrize("batch", ["global", "per_rank"])
@pytest.mark.parametrize("at", [0, 5])
def test_the_pipeline_fails(hvdata, comm, batch, at):
    """The steps before the error come, and then every rank raises it. The next epoch runs the pipeline again."""
    source = Numbers([12] * 12, fails=(at, 1))
    ds = cached(hvdata, source, batch=batch, name="failing")

    def until_it_fails():
        got = []
        try:
            for share in ds:
                got.append((share.numpy().tolist(), None))
        except tf.errors.InvalidArgumentError as error:
            return got, str(error)
        return got, "nothing was raised"

    got = on_trainers(hvdata, comm, until_it_fails)
    want = wanted(source.batches[:at], len(got), 1, batch)
    assert [mine for mine, _ in got] == want
    for _, text in got:
        assert "disk full of cats" in text and "reader 0 on " in text and "failing" in text, text
    delivers(hvdata, comm, ds, source, [2, 3], batch)
    assert starts(comm, source) == 2


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
    says = r"would keep 0\.\d\d GiB on host \w+, which may keep 0.00 GiB", "or use more hosts"
    raises_everywhere(comm, call, tf.errors.ResourceExhaustedError, *says)


def test_rows_in_files(hvdata, comm, monkeypatch, tmp_path):
    """The files have no names, so they need no cleaning."""
    folder = comm.bcast(str(tmp_path))
    monkeypatch.setenv("HOROVOD_DATA_CACHE_GB", "0.001")
    monkeypatch.setenv("HOROVOD_DATA_CACHE_DIR", folder)
    source, kind = big(960)
    ds = cached(hvdata, source, kind, name="overflowing")

    def epoch():
        got = []
        for share in ds:
            assert (share["x"].numpy() == share["id"].numpy()[:, None]).all()
            got.append((share["id"].numpy().tolist(), None))
        return got

    for number in 1, 2, 3:
        got = on_trainers(hvdata, comm, epoch)
        assert got == wanted(source.batches, len(got), number)
    comm.barrier()
    assert not list(tmp_path.iterdir())
    assert starts(comm, source) == 1


@pytest.mark.world(np=2)
def test_a_folder_that_does_not_exist(hvdata, comm, monkeypatch):
    monkeypatch.setenv("HOROVOD_DATA_CACHE_DIR", "/no/such/folder")
    says = "HOROVOD_DATA_CACHE_DIR='/no/such/folder' is no folder in which this process can make files"
    raises_everywhere(comm, lambda: cached(hvdata, Numbers([3])), ValueError, says)


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
    for _ in range(200):
        if not (kept := sum(comm.allgather(hvdata.stats().get("freed/cache_bytes", 0)))):
            break
        time.sleep(0.05)
    assert kept == 0


# ---- Checkpoints.


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("epoch", [1, 3])
@pytest.mark.parametrize("batch", ["global", "per_rank"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_another_run_goes_on(hvdata, comm, path, epoch, batch, shuffle):
    """Another channel stands for another run. It loads once, and goes on with the row behind the last one."""
    source = Numbers([12] * 9)
    ds = cached(hvdata, source, batch=batch, shuffle=shuffle)
    delivers(hvdata, comm, ds, source, range(1, epoch), batch, shuffle=shuffle)
    it = iter(ds)
    whole = [[ids for ids, _ in mine] for mine in wanted(source.batches, comm.size, epoch, batch, shuffle=shuffle)]
    half = len(whole[0]) // 2
    assert results(comm, lambda: take(it, half)) == [mine[:half] for mine in whole]
    saved(comm, it, path)
    assert results(comm, lambda: rest(it)) == [mine[half:] for mine in whole]

    again = Numbers([12] * 9)
    ds = cached(hvdata, again, batch=batch, shuffle=shuffle)
    it = restored(comm, ds, path)
    assert results(comm, lambda: rest(it)) == [mine[half:] for mine in whole]
    delivers(hvdata, comm, ds, again, [epoch + 1, epoch + 2], batch, shuffle=shuffle)
    assert starts(comm, again) == 1


def test_a_checkpoint_of_a_second_load(hvdata, comm, path):
    """The first load has failed. The second one has another order, and so has the load of the restored run."""

    def shuffled(source):
        make = lambda: source.dataset().shuffle(4, seed=3)
        return hvdata.distribute_dataset(on_reader(hvdata, make), batch="global", cache="job", shuffle=True, seed=SEED)

    ds = shuffled(Numbers([12] * 9, fails=(8, 1)))
    raises_everywhere(comm, lambda: local(ds), tf.errors.InvalidArgumentError, "disk full of cats")
    it = iter(ds)
    results(comm, lambda: take(it, 4))
    saved(comm, it, path)
    want = [results(comm, lambda: rest(it)), results(comm, lambda: rest(ds))]
    ds = shuffled(Numbers([12] * 9))
    it = restored(comm, ds, path)
    assert [results(comm, lambda: rest(it)), results(comm, lambda: rest(ds))] == want


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


# ---- What is refused.


@pytest.mark.parametrize("wrong, what, to_do", [
    (lambda: tf.data.Dataset.range(9).repeat(), "which is infinite", "Leave out .repeat()"),
    (lambda epoch: tf.data.Dataset.range(9), "takes the number of the epoch", "Leave out the parameter"),
])  # fmt: skip
def test_what_a_reader_refuses(hvdata, comm, wrong, what, to_do):
    call = lambda: hvdata.distribute_dataset(wrong, batch="per_rank", cache="job")
    raises_everywhere(comm, call, ValueError, what, to_do)
    assert all(not isinstance(one, Exception) for one in outcomes(comm, lambda: None))


@pytest.mark.ranks(2, 3)
@pytest.mark.per_node("dedicated", "embedded")
@pytest.mark.world(np=3, per_node="embedded")
def test_readers_of_hosts_are_refused(hvdata, comm):
    call = lambda: hvdata.distribute_dataset(lambda: tf.data.Dataset.range(9), batch="per_rank", cache="job")
    raises_everywhere(
        comm, call, ValueError, "each host has a reader of its own", "Use readers=R", r"Dataset\.cache\(\)"
    )
