# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments raise an error on every rank that names the argument, its value and the choices. The next call
works."""

import dataclasses
import re
import socket
import sys

import numpy as np
import pytest
import tensorflow as tf
from together import elements, numbers, on_reader, raises_everywhere, results

pytestmark = pytest.mark.world(np=2)


@pytest.fixture(autouse=True)
def goes_on(hvdata, comm):
    """After the error the next call works, and every rank still counts the same calls."""
    yield
    assert elements(comm, numbers(hvdata, comm.size)) == [[rank] for rank in range(comm.size)]


@pytest.mark.parametrize("function", ["distribute_dataset", "distribute_datasets_from_function", "loader"])
@pytest.mark.parametrize("schedule, says", [
    ("round_robin", "schedule='round_robin' is not known. Use 'static' or 'dynamic'."),
    ("dynamic", 'schedule="dynamic" gives a whole element to the rank that asks first, but batch="global" cuts each element for '
     'all ranks. Use batch="per_rank" with it.'),
], ids=["unknown", "contradiction"])  # fmt: skip
def test_values(hvdata, comm, function, schedule, says):
    """tests/single/test_options.py has all values."""
    call = lambda: getattr(hvdata, function)(lambda: tf.data.Dataset.range(8), batch="global", schedule=schedule)
    got = raises_everywhere(comm, call, ValueError)
    hosts = comm.allgather(socket.gethostname())
    assert [one.text for one in got] == [f"[rank {rank} on {host}] {says}" for rank, host in enumerate(hosts)]


def test_a_dataset_where_a_function_belongs(hvdata, comm):
    raises_everywhere(
        comm, lambda: hvdata.distribute_datasets_from_function(tf.data.Dataset.range(8), batch="per_rank"), TypeError,
        r"distribute_datasets_from_function\(\) was given a dataset\. Pass a function that returns one, or call "
        r"distribute_dataset\(\)\.")  # fmt: skip


def test_what_has_been_distributed_already(hvdata, comm):
    once = numbers(hvdata, 8)
    for source in (
        once,
        once.map(lambda x: x + 1).batch(2),
        tf.data.Dataset.zip((tf.data.Dataset.range(8), once)),
        lambda: once,
        hvdata.audit(once).prefetch(1),
    ):
        raises_everywhere(comm, lambda source=source: hvdata.distribute_dataset(source, batch="per_rank"), ValueError,
                          r"the dataset is what distribute_dataset\(\) returned, or is made of it")  # fmt: skip


def test_the_least_bound_of_the_environment(hvdata, comm):
    job = sys.modules["horovod_data.job.state"].current("test")
    before, least = job.settings, dataclasses.replace(job.settings, prefetch_bytes=int(0.01 * (1 << 20)))
    job.settings = least
    try:
        got = elements(comm, numbers(hvdata, comm.size))
    finally:
        job.settings = before
    assert got == [[rank] for rank in range(comm.size)]


@pytest.mark.slow
def test_a_pipeline_of_many_stages(hvdata, comm):
    """More stages than Python's stack has room for, if each stage were a call."""

    def long(ds):
        for _ in range(600):
            ds = ds.concatenate(tf.data.Dataset.range(comm.size))
        return ds

    def make():
        return long(tf.data.Dataset.range(comm.size))

    got = elements(comm, hvdata.distribute_dataset(on_reader(hvdata, make), batch="per_rank"))
    assert got == [[rank] * 601 for rank in range(comm.size)]
    once = hvdata.distribute_dataset(tf.data.Dataset.range(8), batch="per_rank")
    raises_everywhere(comm, lambda: hvdata.distribute_dataset(lambda: long(once), batch="per_rank"), ValueError,
                      r"the dataset is what distribute_dataset\(\) returned, or is made of it")  # fmt: skip


def of_a_strategy():
    return tf.distribute.OneDeviceStrategy("/cpu:0").experimental_distribute_dataset(tf.data.Dataset.range(4))


NO_DATASETS = {
    "list": (lambda: [1, 2, 3], ("dataset_or_fn", "list")),
    "number": (lambda: 7, ("dataset_or_fn", "int")),
    "text": (lambda: "data", ("dataset_or_fn", "str")),
    "iterator": (lambda: iter([1]), ("dataset_or_fn", "list_iterator")),
    "array": (lambda: np.zeros(3), ("dataset_or_fn", "ndarray")),
    "iterator of a dataset": (lambda: iter(tf.data.Dataset.range(3)), ("Iterator",)),
    "None on the reader": (lambda: None, ("None", "read")),
    "of a strategy": (of_a_strategy, ()),
    "function that returns none": (lambda: lambda: [1, 2], ("list",)),
    "function with two arguments": (lambda: lambda a, b: None, ("argument",)),
}


@pytest.mark.parametrize("source", NO_DATASETS)
def test_not_a_dataset(hvdata, comm, source):
    make, says = NO_DATASETS[source]
    given = make()
    says = says if source == "function with two arguments" else (*says, "tf.data.Dataset")
    raises_everywhere(comm, lambda: hvdata.distribute_dataset(given, batch="per_rank"), TypeError, *says)


class OwnError(Exception):
    pass


@pytest.mark.parametrize(("error", "elsewhere"), [
    (FileNotFoundError("no such shard: train-00007"), FileNotFoundError),
    (tf.errors.DataLossError(None, None, "no such shard: train-00007"), tf.errors.DataLossError),
    (UnicodeDecodeError("utf-8", b"", 0, 1, "no such shard: train-00007"), RuntimeError),
    (OwnError("no such shard: train-00007"), RuntimeError),
], ids=lambda one: getattr(one, "__name__", ""))  # fmt: skip
def test_a_function_that_raises(hvdata, comm, error, elsewhere):
    """Every rank raises the class that Python or TensorFlow has for the error."""

    def function():
        raise error

    got = raises_everywhere(
        comm, lambda: hvdata.distribute_dataset(function, batch="per_rank"), Exception, "no such shard: train-00007"
    )
    assert [one.kind.__name__ for one in got] == [type(error).__name__] + [elsewhere.__name__] * (comm.size - 1)
    for one in got[1:]:
        assert type(error).__name__ in one.text and "[rank 0 on " in one.text


@pytest.mark.parametrize("label, says", [
    (tf.zeros([24]), ("image", "label", r"\b12\b", r"\b24\b", "axis 0")), (1.0, ("label", "scalar|no axis 0", "per_rank|batch")),
], ids=["24 rows", "scalar"])  # fmt: skip
def test_components_with_different_static_rows(hvdata, comm, label, says):
    """test_pipeline_errors.py has rows that are known only at run time."""

    def make():
        return tf.data.Dataset.from_tensors({"image": tf.zeros([12, 2]), "label": label})

    call = lambda: hvdata.distribute_dataset(on_reader(hvdata, make), batch="global")
    raises_everywhere(comm, call, ValueError, *says)


def test_a_static_global_batch_that_ranks_do_not_divide(hvdata, comm):
    """The call raises, so no step loses rows."""
    rows = 12 * comm.size + 1

    def call(remainder="drop"):
        source = tf.data.Dataset.range(5 * rows).batch(rows, drop_remainder=True)
        return hvdata.distribute_dataset(source, batch="global", remainder=remainder)

    if comm.size > 1:
        place = r"^\[rank 0 on \w+\] (?!\[)"  # which is the reader, and stands there once
        raises_everywhere(comm, call, ValueError, place, rf"\b{rows}\b", rf"\b{comm.size}\b", "remainder|partial|pad")
    for remainder in "partial", "pad":
        assert [len(steps) for steps in elements(comm, call(remainder))] == [5] * comm.size


def test_an_element_of_datasets(hvdata, comm):
    """window() yields datasets as elements, which can't be sent."""
    source = tf.data.Dataset.range(8).window(2)
    says = "component the element of the dataset's elements is a DatasetSpec"
    raises_everywhere(comm, lambda: hvdata.distribute_dataset(source, batch="per_rank"), TypeError, says)


# ---- Ranks with different calls: every rank raises an error with the values of both sides.

BASE = {"batch": "per_rank", "schedule": "static", "remainder": "drop", "prefetch": 2, "name": "train"}


def distribute(hvdata, **arguments):
    return hvdata.distribute_dataset(lambda: tf.data.Dataset.range(12).batch(12), **arguments)


@pytest.fixture(params=["reader", "other"])
def odd_one(request, comm):
    return 0 if request.param == "reader" else comm.size - 1


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("other", [
    {"batch": "global"}, {"remainder": "partial"}, {"schedule": "dynamic"}, {"prefetch": 5}, {"name": "valid"}, {"name": None},
    {"prefetch": 7, "remainder": "pad"},
], ids=str)  # fmt: skip
def test_other_arguments(hvdata, comm, odd_one, other):
    mine = {**BASE, **other} if comm.rank == odd_one else BASE
    host = re.escape(comm.bcast(socket.gethostname(), odd_one))
    got = raises_everywhere(comm, lambda: distribute(hvdata, **mine), ValueError, rf"rank[s ]*\D*{odd_one}", host)
    for one in got:
        named = [argument for argument in other if argument in one.text]
        assert named, one.text
        for value in (str(arguments[named[0]]) for arguments in (BASE, other) if arguments[named[0]] is not None):
            assert value in one.text, one.text


@pytest.mark.ranks(2, 3, 4)
def test_other_order_of_calls(hvdata, comm):
    """Training and validation the other way round on the last rank."""
    names = ["train", "valid"] if comm.rank < comm.size - 1 else ["valid", "train"]
    for name in names:
        call = lambda name=name: distribute(hvdata, **{**BASE, "name": name})
        raises_everywhere(comm, call, ValueError, "train", "valid", "order|same")


@pytest.mark.ranks(2, 3, 4)
def test_an_argument_error_is_no_disagreement(hvdata, comm):
    """An error that each rank finds by itself takes no channel number. So a single rank may have it."""
    if comm.rank == 0:
        with pytest.raises(ValueError, match="prefetch"):
            distribute(hvdata, **{**BASE, "prefetch": 0})
    got = elements(comm, numbers(hvdata, 2 * comm.size))
    assert got == [[rank, rank + comm.size] for rank in range(comm.size)]


@pytest.mark.ranks(2, 3, 4)
def test_graph_on_one_rank_and_eager_on_the_others(hvdata, comm):
    """One rank may build a graph while the others run eagerly."""
    v1 = tf.compat.v1

    def graph():
        with tf.Graph().as_default(), v1.Session() as session:
            iterator = v1.data.make_initializable_iterator(distribute(hvdata, batch="global"))
            fetch = iterator.get_next()
            session.run(iterator.initializer)
            return session.run(fetch).tolist()

    def eager():
        return [x.numpy().tolist() for x in distribute(hvdata, batch="global")][0]

    assert sum(results(comm, graph if comm.rank == 0 else eager), []) == list(range(12))
