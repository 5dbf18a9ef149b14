# SPDX-License-Identifier: Apache-2.0
"""loader(): Python sources and tf.data on the reader, arrays on all ranks, against the oracle."""

import collections
import gc
import itertools
import time

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from oracle import deliver, deliver_from_readers, equal, is_dynamic_delivery
from together import merged, on_trainers, outcomes, prefix, raises_everywhere, results, same_on_all_ranks, written

pytestmark = [pytest.mark.world(np=3), pytest.mark.ranks(1, 2, 3, 4)]

REMAINDERS = ["drop", "partial", "pad", "repeat"]


def batch_of(first: int, rows: int):
    """Rows with their numbers, in components of several kinds. Batches of 100 rows and more travel as messages."""
    ids = np.arange(first, first + rows, dtype=np.int64)
    return {
        "id": ids,
        "text": np.array([b"row %d\0" % i for i in ids], object),
        "x": (np.repeat(ids[:, None], 64, axis=1).astype(np.float32),),
    }


def batches_of(rows_of_batches):
    starts = itertools.accumulate(rows_of_batches, initial=0)
    return [batch_of(first, rows) for first, rows in zip(starts, rows_of_batches)]


SPEC = {
    "id": tf.TensorSpec([None], tf.int64),
    "text": tf.TensorSpec([None], tf.string),
    "x": (tf.TensorSpec([None, 64], tf.float32),),
}


def dataset_of(batches):
    return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=SPEC)


class Stream:
    """An iterable without a length."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


SOURCES = {"list": list, "stream": Stream, "tf.data": dataset_of}


def on_reader(hvdata, make):
    """`make` for the reader. It fails on other ranks."""

    def function():
        assert hvdata.is_reader(), "the function was called on a rank that does not read"
        return make()

    return function


def made(hvdata, comm, source, **arguments):
    """A loader, made on all ranks."""
    return results(comm, lambda: bool(hvdata)) and hvdata.loader(source, **arguments)


def epoch(hvdata, comm, loader):
    """The shares of all trainers."""
    return on_trainers(hvdata, comm, lambda: list(loader))


def check(got, want):
    assert len(set(map(len, got))) == 1, "contract 3: every rank has the same number of steps"
    for rank, (mine, right) in enumerate(zip(got, want)):
        same = [equal(a, b) for a, b in itertools.zip_longest(mine, right)]
        assert all(same), f"rank {rank}: got {mine}, not {right}"


def delivers(hvdata, comm, kind, batches, epochs=2, **arguments):
    """Asserts that each rank gets the oracle's rows in every epoch, and the job all rows that are delivered in order."""
    loader = hvdata.loader(on_reader(hvdata, lambda: SOURCES[kind](batches)), **arguments)
    oracle_arguments = {key: value for key, value in arguments.items() if key in ("batch", "remainder")}
    for _ in range(epochs):
        got = epoch(hvdata, comm, loader)
        check(got, deliver(batches, len(got), **oracle_arguments))
        if arguments["remainder"] == "partial":
            order = [row for share in merged(got) for row in share["id"]]
            assert order == list(range(sum(len(batch["id"]) for batch in batches))), "contract 4: the reader's order"


rows_of_batches = st.lists(st.integers(0, 11) | st.integers(400, 900), min_size=1, max_size=9)
prefetches = st.sampled_from(["auto", 1, 2, 3, 5, 16])


@pytest.mark.readers(0, 1)
@pytest.mark.parametrize("batch", ["global", "per_rank"])
@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.usefixtures("either_way")
@same_on_all_ranks(5)
@given(rows=rows_of_batches, prefetch=prefetches, kind=st.sampled_from([*SOURCES]))
def test_static(hvdata, comm, batch, remainder, rows, prefetch, kind):
    delivers(hvdata, comm, kind, batches_of(rows), batch=batch, remainder=remainder, prefetch=prefetch)


@pytest.mark.world(np=2)
@pytest.mark.usefixtures("either_way")
@same_on_all_ranks(5)
@given(rows=rows_of_batches, prefetch=prefetches, remainder=st.sampled_from(REMAINDERS))
def test_dynamic(hvdata, comm, rows, prefetch, remainder):
    batches = batches_of(rows)
    loader = hvdata.loader(on_reader(hvdata, lambda: batches), batch="per_rank", schedule="dynamic", prefetch=prefetch,
                           remainder=remainder)  # fmt: skip
    for _ in range(2):
        got = epoch(hvdata, comm, loader)
        if remainder in ("pad", "repeat"):  # nothing is ever missing
            assert all(weight.tolist() == [1.0] * len(batch["id"]) for mine in got for batch, weight in mine), got
            got = [[batch for batch, _ in mine] for mine in got]
        assert is_dynamic_delivery(batches, got), got


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
    failed = [
        one for one in outcomes(comm, lambda: len(list(loader)) if hvdata.is_trainer() else None) if one is not None
    ]
    assert all(one.kind is TypeError and text in one.text for one in failed), failed


# ---- Epochs.


def numbers(hvdata, n, make=list, **arguments):
    return hvdata.loader(on_reader(hvdata, lambda: make(range(n))), **{"batch": "per_rank", **arguments})


def of_epoch(hvdata, comm, loader):
    return sorted(x for mine in on_trainers(hvdata, comm, lambda: [x.item() for x in loader]) for x in mine)


@pytest.mark.world(np=2)
def test_a_source_for_every_epoch(hvdata, comm):
    asked = []

    def source(epoch):
        asked.append(epoch)
        return (epoch * 100 + i for i in range(8))

    loader = hvdata.loader(source, batch="per_rank", remainder="partial" if comm.size < 3 else "drop")
    whole = 8 - 8 % len(on_trainers(hvdata, comm, lambda: None))
    for number in (1, 2, 3):
        assert of_epoch(hvdata, comm, loader) == [number * 100 + i for i in range(whole)]
    assert asked == ([1, 2, 3] if hvdata.is_reader() else [])
    with pytest.raises(TypeError, match="is not known before its end"):
        len(loader)


@pytest.mark.world(np=2)
def test_an_iterator_is_read_once(hvdata, comm):
    loader = numbers(hvdata, 12, iter)
    assert of_epoch(hvdata, comm, loader) == list(range(12 - 12 % len(epochs_ranks(hvdata, comm))))
    raises_everywhere_on_trainers(
        hvdata, comm, lambda: list(loader), ValueError, "the source is an iterator .*read once.*Pass a function"
    )


class Twelve:
    def __iter__(self):
        return iter(np.arange(12).reshape(1, 12))


@pytest.mark.world(np=2)
def test_a_class_is_a_function_that_makes_the_source(hvdata, comm):
    loader = hvdata.loader(Twelve, batch="global", remainder="partial")
    shares = on_trainers(hvdata, comm, lambda: next(iter(loader)).tolist())
    assert sum(shares, []) == list(range(12))


def epochs_ranks(hvdata, comm):
    return on_trainers(hvdata, comm, lambda: None)


def raises_everywhere_on_trainers(hvdata, comm, call, kind, *patterns):
    if all(results(comm, hvdata.is_trainer)):
        raises_everywhere(comm, call, kind, *patterns)


@pytest.mark.world(np=2)
def test_break_and_go_on(hvdata, comm):
    loader = numbers(hvdata, 40)

    def first_two():
        return [x.item() for x, _ in zip(loader, range(2))]

    n = len(epochs_ranks(hvdata, comm))
    for _ in range(3):
        assert merged(on_trainers(hvdata, comm, first_two)) == list(range(2 * n))
    it = iter(loader)
    results(comm, lambda: next(it).item())
    newer = iter(loader)
    raises_everywhere(
        comm, lambda: [next(newer), next(it)], RuntimeError, "superseded: a newer one of the same channel"
    )


@pytest.mark.parametrize("rows", [1, 2])
def test_more_ranks_than_rows(hvdata, comm, rows):
    """Some ranks get empty shares of the right types."""
    for remainder in REMAINDERS[1:]:
        delivers(hvdata, comm, "list", batches_of([rows, 0, rows]), epochs=1, batch="global", remainder=remainder)


def test_an_epoch_without_elements(hvdata, comm):
    loader = hvdata.loader(lambda epoch: batches_of([12, 4] * (epoch % 2)), batch="global", remainder="partial")
    counts = [[len(mine) for mine in epoch(hvdata, comm, loader)] for _ in range(3)]
    assert [set(one) for one in counts] == [{2}, {0}, {2}]


@pytest.mark.parametrize("who", range(4))
def test_a_rank_breaks_off(hvdata, comm, who):
    """The other ranks get all their steps, and the next epoch is whole."""
    n = len(epochs_ranks(hvdata, comm))
    who %= n
    loader = numbers(hvdata, 8 * n)
    for _ in range(2):
        got = on_trainers(
            hvdata, comm, lambda: [x.item() for x, _ in zip(loader, range(3 if hvdata.rank() == who else 99))]
        )
        assert got == [list(range(rank, (3 if rank == who else 8) * n, n)) for rank in range(n)]
    assert of_epoch(hvdata, comm, loader) == list(range(8 * n))


@pytest.mark.world(np=2)
def test_a_source_without_an_end(hvdata, comm):
    loader = hvdata.loader(on_reader(hvdata, lambda: Stream(range(10**9))), batch="per_rank")
    n = len(epochs_ranks(hvdata, comm))
    for _ in range(2):
        first = on_trainers(hvdata, comm, lambda: [x.item() for x, _ in zip(loader, range(50))])
        assert merged(first) == list(range(50 * n))


# ---- Errors.


class FailsInStep:
    """Fails once, in the epoch after the first."""

    def __init__(self, step, total):
        self.step, self.total, self.epoch = step, total, 0

    def __iter__(self):
        self.epoch += 1
        for i in range(self.total):
            if (self.epoch, i) == (2, self.step):
                raise OSError(f"element {i} is gone")
            yield i


@pytest.mark.parametrize("schedule", ["static", "dynamic"])
def test_the_source_fails_in_any_step(hvdata, comm, schedule):
    """Every rank gets the steps before it. The next epoch is whole."""
    n = len(epochs_ranks(hvdata, comm))
    total = 4 * n

    def until_the_error(loader):
        got = []
        try:
            for x in loader:
                got.append(x.item())
        except OSError as error:
            return got, str(error)
        return got, ""

    for failing in range(0, total, max(1, n - 1)):
        loader = hvdata.loader(on_reader(hvdata, lambda: FailsInStep(failing, total)), batch="per_rank", schedule=schedule,
                               name="fails")  # fmt: skip
        assert of_epoch(hvdata, comm, loader) == list(range(total))
        got = on_trainers(hvdata, comm, lambda: until_the_error(loader))
        assert all(f"element {failing} is gone" in text for _, text in got), got
        if schedule == "static":
            assert [numbers for numbers, _ in got] == [list(range(rank, failing // n * n, n)) for rank in range(n)]
        else:
            assert sorted(x for numbers, _ in got for x in numbers) == list(range(failing))
        assert of_epoch(hvdata, comm, loader) == list(range(total))


def test_the_first_element_fails_in_the_call(hvdata, comm):
    raises_everywhere(
        comm, lambda: hvdata.loader(failing(KeyError("no such row"), 0), batch="per_rank"), KeyError, "no such row"
    )


def failing(error, after):
    def batches():
        yield from range(after)
        raise error

    return batches


class Strange(Exception):
    pass


@pytest.mark.parametrize("error, kind, text", [
    (KeyError("no such row"), KeyError, "no such row"),
    (FileNotFoundError(2, "is gone", "a.txt"), FileNotFoundError, "is gone.*a.txt"),
    (Strange("text"), RuntimeError, "Strange: text"),
    (SystemExit(3), RuntimeError, "SystemExit: 3"),
])  # fmt: skip
def test_errors_of_the_source(hvdata, comm, error, kind, text):
    n = len(epochs_ranks(hvdata, comm))
    loader = hvdata.loader(on_reader(hvdata, failing(error, 2 * n)), batch="per_rank", name="fails")

    def steps():
        it = iter(loader)
        assert [next(it).item() // n for _ in range(2)] == [0, 1]
        next(it)

    raises_everywhere(comm, steps, kind, prefix("fails", 1, 2), text)


@pytest.mark.parametrize("elements, text", [
    ([{"x": 1}, {"x": 1}, {"x": 1}, {"x": 1}, {"x": 1.5}], r"component \['x'\] is float64 with 0 axes, but .* int64 with 0 axes"),
    ([{"x": 1}] * 4 + [{"y": 1}], r"the element is a dict of 'y', but in the first element it was a dict of 'x'"),
    ([(1, 2)] * 4 + [(1, 2, 3)], "the element is a tuple of 3, but in the first element it was a tuple of 2"),
    ([np.zeros(3)] * 4 + [np.zeros([3, 3])], "the element is float64 with 2 axes, but .* float64 with 1 axes"),
    ([np.zeros(3)] * 4 + [np.array([{}])], "the element is an array of objects, and one of them is a dict"),
    ([1, 2, 3, 4, object()], "the element is a object, which can't be sent"),
    ([1, 2, 3, 4, None], "the element is a NoneType"),
])  # fmt: skip
def test_elements_of_other_kinds(hvdata, comm, elements, text):
    loader = hvdata.loader(on_reader(hvdata, lambda: elements), batch="per_rank", remainder="drop")
    raises_everywhere(comm, lambda: list(loader), TypeError, text)


class LiesAboutItsLength(list):
    def __len__(self):
        return 9


@pytest.mark.parametrize("n, text", [(8, "yielded 8 elements"), (10, "yielded element 10")])
def test_a_wrong_length(hvdata, comm, n, text):
    loader = hvdata.loader(on_reader(hvdata, lambda: LiesAboutItsLength(range(n))), batch="per_rank", remainder="pad")
    raises_everywhere(comm, lambda: list(loader), ValueError, r"the source's len\(\) is 9, but it " + text)


@pytest.mark.parametrize("arguments, kind, text", [
    (dict(source=[np.zeros(3)], batch="rows"), ValueError, "batch='rows' is not known"),
    (dict(source=[np.zeros(3)], batch="global", to="jax"), ValueError, "to='jax' is not known"),
    (dict(source=[np.zeros(3)], batch="global", to="tf"), ValueError, "to='tf' .*distribute_dataset.* a tf.data.Dataset"),
    (dict(source=None, batch="global"), TypeError, "source is None on a reader.*Pass a source"),
    (dict(source=3, batch="global"), TypeError, "source is a int, not an iterable of batches"),
    (dict(source={"x": 1}, batch="global"), TypeError, "source is a dict, not an iterable of batches"),
    (dict(source=[3], batch="global"), ValueError, "cuts every component along axis 0, but the element is a scalar"),
    (dict(source=[], batch="global"), ValueError, r"the source in loader\(\) has no elements"),
    (dict(source=[{1, 2}], batch="per_rank"), TypeError, "a set, which can't be sent to another rank"),
    (dict(source=lambda: 3, batch="global"), TypeError, "source is a int, not an iterable of batches"),
    (dict(source=lambda a, b: [], batch="global"), TypeError, "needs the arguments a, b"),
])  # fmt: skip
def test_wrong_arguments(hvdata, comm, arguments, kind, text):
    raises_everywhere(comm, lambda: hvdata.loader(**arguments), kind, text)


def test_the_ranks_disagree(hvdata, comm):
    if comm.size == 1:
        pytest.skip("there is one rank")
    call = lambda: hvdata.loader([np.zeros(4)], batch="global" if hvdata.is_reader() else "per_rank", name="t")
    raises_everywhere(comm, call, ValueError, r"the ranks disagree in loader\(name='t'\)")


# ---- Memory.


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

    mine = kept() if hvdata.is_trainer() else None
    del loader
    gc.collect()
    assert results(comm, lambda: mine is None or (mine == 0).all())
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


# ---- States.


class Counter:
    """An iterable whose iterators have a state."""

    def __init__(self, n, where):
        self.n, self.where, self.at, self.made = n, where, 0, 0

    def __iter__(self):
        self.made += 1
        if self.where == "source":
            start, self.at = self.at, 0
            return self._from(start)
        return CounterIterator(self.n, self.where)

    def _from(self, start):
        for self.at in range(start + 1, self.n + 1):
            yield self.at - 1
        self.at = 0

    def __getattr__(self, name):
        if self.__dict__.get("where") == "source" and name in ("state_dict", "load_state_dict"):
            return (
                (lambda: {"at": self.at}) if name == "state_dict" else (lambda state: setattr(self, "at", state["at"]))
            )
        raise AttributeError(name)


class CounterIterator:
    def __init__(self, n, where):
        self.n, self.where, self.at = n, where, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == self.n:
            raise StopIteration
        self.at += 1
        return self.at - 1

    def __getattr__(self, name):
        get, load = (
            ("state_dict", "load_state_dict")
            if self.__dict__.get("where") == "iterator"
            else ("get_state", "set_state")
        )
        if self.__dict__.get("where") != "nowhere" and name in (get, load):
            return (lambda: {"at": self.at}) if name == get else (lambda state: setattr(self, "at", state["at"]))
        raise AttributeError(name)


@pytest.mark.parametrize("batch, schedule", [("global", "static"), ("per_rank", "static"), ("per_rank", "dynamic")])
@pytest.mark.parametrize("where", ["source", "iterator", "grain", "nowhere", "tf.data"])
@pytest.mark.usefixtures("either_way")
def test_states(hvdata, comm, where, batch, schedule):
    n = len(epochs_ranks(hvdata, comm))
    total = 12 * n

    def source():
        if where == "tf.data":
            numbers = tf.data.Dataset.range(total)
            return numbers.batch(n) if batch == "global" else numbers
        numbers = Counter(total if batch == "per_rank" else 12, where)
        return numbers if batch == "per_rank" else Batched(numbers, n)

    arguments = dict(batch=batch, schedule=schedule)
    loader = hvdata.loader(on_reader(hvdata, source), **arguments)
    flat = lambda it: [np.ravel(x).tolist() for x in it]

    def take_some():
        it = iter(loader)
        first = flat(next(it) for _ in range(3))
        return first, loader.state_dict(), it

    comm.barrier()
    if hvdata.is_trainer():
        first, saved, it = take_some()
    comm.barrier()
    after = on_trainers(hvdata, comm, lambda: flat(it))
    again = hvdata.loader(on_reader(hvdata, source), **arguments)
    if hvdata.is_trainer():
        again.load_state_dict(saved)
    resumed = on_trainers(hvdata, comm, lambda: flat(again))
    before = on_trainers(hvdata, comm, lambda: first)
    everything = sorted(x for mine in (*before, *resumed) for one in mine for x in one)
    assert everything == list(range(total)), (before, resumed)
    if schedule == "static":
        assert resumed == after
    whole = on_trainers(hvdata, comm, lambda: flat(again))
    assert sorted(x for mine in whole for one in mine for x in one) == list(range(total)), "the next epoch is whole"


@pytest.mark.parametrize("where", ["source", "iterator", "grain", "nowhere"])
@pytest.mark.parametrize("left", [0, 1, 2])
def test_states_near_the_end(hvdata, comm, where, left):
    """The reader has seen the end of its source when the state is saved. A source whose state is then that of the next epoch
    must not begin that epoch within this one."""
    n = len(epochs_ranks(hvdata, comm))
    loader = numbers(hvdata, 6 * n, lambda rows: Counter(len(rows), where), prefetch=4)
    again = numbers(hvdata, 6 * n, lambda rows: Counter(len(rows), where), prefetch=4)

    def some():
        it = iter(loader)
        first = [next(it).item() for _ in range(6 - left)]
        time.sleep(0.05)  # until the reader is at the end
        return first, loader.state_dict(), [x.item() for x in it]

    comm.barrier()
    got = some() if hvdata.is_trainer() else None
    if got:
        again.load_state_dict(got[1])
    rest = on_trainers(hvdata, comm, lambda: [x.item() for x in again])
    assert rest == on_trainers(hvdata, comm, lambda: got[2])
    assert all(len(mine) == left for mine in rest)
    for one in (again, loader):
        assert of_epoch(hvdata, comm, one) == list(range(6 * n))


class Batched:
    """Batches of n of a Counter's numbers, with its state."""

    def __init__(self, counter, n):
        self.counter, self.n = counter, n

    def __iter__(self):
        return BatchedIterator(iter(self.counter), self.n)

    def __getattr__(self, name):
        return getattr(self.__dict__["counter"], name)


class BatchedIterator(Batched):
    def __iter__(self):
        return self

    def __next__(self):
        at = next(self.counter)
        return np.arange(at * self.n, (at + 1) * self.n)


def test_a_source_in_another_order(hvdata, comm):
    """A source without a state is read again. The rows before the position must be those that it had."""
    n = len(epochs_ranks(hvdata, comm))
    orders = [list(range(8 * n)), list(range(8 * n))[::-1]]
    loader, again = [numbers(hvdata, 8 * n, lambda _: Stream(order), name="turned", prefetch=1) for order in orders]
    comm.barrier()
    it = iter(loader)
    state = [next(it) for _ in range(4)] and loader.state_dict() if hvdata.is_trainer() else None
    comm.barrier()
    if state:
        again.load_state_dict(state)
    if all(results(comm, hvdata.is_trainer)):
        raises_everywhere(comm, lambda: list(again), RuntimeError, "channel turned", "the input can't be restored",
                          "are not those that it yielded before the checkpoint was saved")  # fmt: skip


def test_a_wrong_length_after_a_restore(hvdata, comm):
    n = len(epochs_ranks(hvdata, comm))
    loader = numbers(hvdata, 6 * n, lambda rows: Counter(len(rows), "source"), prefetch=1)
    it = iter(loader)
    comm.barrier()
    state = [next(it) for _ in range(3)] and loader.state_dict() if hvdata.is_trainer() else None
    comm.barrier()

    class Longer(Counter):
        def __len__(self):
            return 6 * n

    again = numbers(hvdata, 6 * n, lambda rows: Longer(len(rows) + n, "source"))
    if state:
        again.load_state_dict(state)
    if all(results(comm, hvdata.is_trainer)):
        raises_everywhere(
            comm, lambda: list(again), ValueError, rf"len\(\) is {6 * n}, but it yielded element {6 * n + 1}"
        )


class KeepsItsState(Counter):
    """As a Hugging Face dataset: each iterator begins with the last state given, and then has the dataset's state."""

    _starting_state_dict = None

    def __init__(self, n):
        super().__init__(n, "nowhere")
        self.now = {"at": 0}

    def __iter__(self):
        self.now = dict(self._starting_state_dict or {"at": 0})
        for i in range(self.now["at"], self.n):
            self.now["at"] = i + 1
            yield i

    def state_dict(self):
        return dict(self.now)

    def load_state_dict(self, state):
        self._starting_state_dict = state


class BeginsAnewAtItsEnd(Counter):
    """As a StatefulDataLoader: a state of its end makes it begin anew."""

    def __init__(self, n):
        super().__init__(n, "nowhere")
        self.start = 0

    def __iter__(self):
        self.iterator = CounterIterator(self.n, "nowhere")
        self.iterator.at, self.start = self.start, 0
        return self.iterator

    def state_dict(self):
        return {"at": self.iterator.at}

    def load_state_dict(self, state):
        self.start = state["at"] % self.n


@pytest.mark.world(np=2)
@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("steps", [6, 12], ids=["the source has ended", "the source is in its middle"])
@pytest.mark.parametrize("make", [lambda n: Counter(n, "source"), KeepsItsState, BeginsAnewAtItsEnd],
                         ids=["keeps its place", "keeps its state", "begins anew at its end"])  # fmt: skip
def test_states_of_states(hvdata, comm, make, steps):
    """A state is saved, restored, saved before the source is asked, and restored again. Each number comes once."""
    total = steps * len(epochs_ranks(hvdata, comm))

    def part(loader, number):
        it = iter(loader)
        return [next(it).item() for _ in range(number)], loader.state_dict()

    before, state = [], None
    for number, prefetch in ((3, 16 if steps == 6 else 3), (1, 1), (0, 1)):
        loader = hvdata.loader(on_reader(hvdata, lambda: make(total)), batch="per_rank", prefetch=prefetch)
        if state is not None:
            loader.load_state_dict(state)
        if number > 0:
            parts = results(comm, lambda: part(loader, number) if hvdata.is_trainer() else ([], None))
            before += [x for numbers, _ in parts for x in numbers]
            state = parts[comm.rank][1]
    rest = of_epoch(hvdata, comm, loader)
    assert sorted(before + rest) == list(range(total)), (before, rest)
    for _ in range(2):
        assert of_epoch(hvdata, comm, loader) == list(range(total)), "later epochs are whole"


@pytest.mark.parametrize("make", [list, lambda all: Counter(len(all), "source")], ids=["list", "keeps its place"])
def test_states_outside_of_an_epoch(hvdata, comm, make):
    loader = numbers(hvdata, 12 * comm.size, make)
    n = len(epochs_ranks(hvdata, comm))
    saved = results(comm, lambda: loader.state_dict() if hvdata.is_trainer() else None)[comm.rank]
    whole = of_epoch(hvdata, comm, loader)
    over = results(comm, lambda: loader.state_dict() if hvdata.is_trainer() else None)[comm.rank]
    for state in (saved, over):
        again = numbers(hvdata, 12 * comm.size, make)
        if hvdata.is_trainer():
            again.load_state_dict(state)
        assert of_epoch(hvdata, comm, again) == whole, "a state before an epoch, or behind it, begins a whole one"
    results(comm, lambda: [next(iter(loader)) for _ in range(1)] and 1 if hvdata.is_trainer() else None)
    broken = outcomes(comm, lambda: loader.state_dict() if hvdata.is_trainer() else None)
    assert all("had broken the epoch off" in one.text for one in broken[:n]), broken
    for state, kind, text in (({}, TypeError, "no state of a Loader"), ({"state": b"x"}, RuntimeError, "is damaged")):
        if hvdata.is_trainer():
            with pytest.raises(kind, match=text):
                loader.load_state_dict(state)


# ---- Reports.


def test_a_certificate_a_report_and_progress(hvdata, comm, capfd):
    loader = hvdata.loader(on_reader(hvdata, lambda: batches_of([12] * 5)), batch="global", verify=True, name="proved")
    for _ in range(2):
        epoch(hvdata, comm, loader)
    said = written(comm, capfd, "channel proved, epoch 2")
    assert "channel proved, epoch 2: 60 rows that the reader yielded, each delivered once" in said, said
    text = results(comm, lambda: str(hvdata.report()) if hvdata.is_trainer() else None)[0]
    assert text is None or "proved" in text
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


# ---- PyTorch.


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
