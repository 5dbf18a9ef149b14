# SPDX-License-Identifier: Apache-2.0
"""shard="auto" by elements: if readers' pipelines yield different elements or orders, the epoch ends with an error.

What a reader's process did with its dataset before does not matter.
"""

import re

import numpy as np
import pytest
import tensorflow as tf
from checkpoints import take
from readers import divided as distribute
from readers import saved_and_restored
from together import generated, merged, on_trainers, raises_everywhere, results

pytestmark = [pytest.mark.world(np=2, readers=2), pytest.mark.readers(2), pytest.mark.limit(120)]
Data = tf.data.Dataset


@pytest.fixture(autouse=True)
def one_seed():
    tf.random.set_seed(5)


@pytest.fixture
def second(hvdata, comm):
    """Says whether this process is the last reader."""
    readers = [rank for rank, reads in enumerate(comm.allgather(hvdata.is_reader())) if reads]
    return comm.rank == readers[-1]


def epoch(hvdata, ds):
    return [row for batch in ds for row in tf.nest.flatten(batch)[-1].numpy().tolist()] if hvdata.is_trainer() else []


def rows(hvdata, comm, ds):
    return sorted(sum(results(comm, lambda: epoch(hvdata, ds)), []))


def fails(hvdata, comm, ds, *says):
    """The next epoch ends with this error on every trainer."""
    both = r'shard="auto" divides one pipeline between the readers, but its elements differ on reader \d on \S+ and reader \d on'

    def one_epoch():
        if not hvdata.is_trainer():
            raise tf.errors.DataLossError(None, None, "no trainer")
        return epoch(hvdata, ds)

    for one in raises_everywhere(comm, one_epoch, tf.errors.DataLossError):
        if one.text != "no trainer":
            for what in (both, *says):
                assert re.search(what, one.text), one.text


def swapped(second):
    """0 to 99. The second reader has 41 and 57 in exchanged places."""
    order = np.arange(100)
    if second:
        order[[41, 57]] = order[[57, 41]]
    return order


def python_code(order):
    return Data.range(100).map(lambda i: tf.ensure_shape(tf.numpy_function(lambda k: order[k], [i], tf.int64), []))


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("options", [
    {}, {"schedule": "dynamic"}, {"batch": "global"}, {"on_reader_error": "continue"}],
    ids=["static", "dynamic", "global", "continue"])  # fmt: skip
@pytest.mark.parametrize(
    "make", [lambda order: generated(lambda: iter(order)), python_code], ids=["generator", "function"]
)
def test_another_order_of_python_code(hvdata, comm, second, make, options):
    order = swapped(second)
    ds = distribute(hvdata, lambda: make(order).batch(5), **options)
    fails(hvdata, comm, ds, "element 8 is not the same", "Rows would come twice or not at all")
    order[:] = np.arange(100)
    comm.barrier()  # before the readers begin it
    assert rows(hvdata, comm, ds) == list(range(100)), "the next epoch is right"


@pytest.mark.slow
@pytest.mark.world(np=2, per_node="embedded")
@pytest.mark.per_node("embedded")
@pytest.mark.ranks(2, 4)  # two hosts with as many trainers
@pytest.mark.parametrize("schedule", ["static", "dynamic"])
@pytest.mark.parametrize("remainder", ["drop", "partial"])
def test_readers_of_hosts(hvdata, comm, second, schedule, remainder):
    order = swapped(second)
    ds = distribute(hvdata, lambda: generated(lambda: iter(order)).batch(5), schedule=schedule, remainder=remainder)
    fails(hvdata, comm, ds, "element 8 is not the same")
    data = Data.range(60).shuffle(60, seed=4)
    if second:
        next(iter(data))  # a look at it changes nothing
    ds = distribute(hvdata, lambda: data.batch(5), schedule=schedule, remainder=remainder)
    for _ in range(2):
        assert rows(hvdata, comm, ds) == list(range(60))


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("longer", [True, False])
def test_another_number_of_elements(hvdata, comm, second, longer):
    """Their first elements are equal."""
    count = 41 if second == longer else 29
    ds = distribute(hvdata, lambda: generated(lambda: iter(range(count))).batch(1))
    fails(hvdata, comm, ds, "element 29 is missing on the first, whose data end before it")


@pytest.mark.slow
def test_a_table_that_differs(hvdata, comm, second):
    """The table is too large for a fingerprint of the graph."""
    table = np.arange(3 << 20)
    table[1] += second
    ds = distribute(hvdata, lambda: Data.range(40).map(lambda i: tf.gather(table, i)).batch(1))
    fails(hvdata, comm, ds, "element 1 is not the same")


def test_a_function_of_the_epoch_that_differs(hvdata, comm, second):
    ds = distribute(hvdata, lambda epoch: Data.range(30 + (epoch == 2 and second)).batch(1))
    assert rows(hvdata, comm, ds) == list(range(30))
    fails(hvdata, comm, ds, "element 30 is missing on the first")
    assert rows(hvdata, comm, ds) == list(range(30))


def test_floating_point_numbers_count_without_others_alone(hvdata, comm, second, unverified):
    """Floating-point numbers may differ in their last bits between processors. Verified channels compare every byte."""
    small = 1e-7 if second else 0.0

    def numbers(i):
        return tf.cast(i, tf.float32) + tf.numpy_function(lambda: np.float32(small), [], tf.float32)

    def alone():
        return Data.range(20).map(lambda i: tf.ensure_shape(numbers(i), [])).batch(1)

    def with_number():
        return Data.range(20).map(lambda i: (tf.ensure_shape(numbers(i), []), i)).batch(1)

    ds = distribute(hvdata, with_number)
    got = on_trainers(hvdata, comm, lambda: [int(row) for _, i in ds for row in i.numpy()])
    assert sorted(sum(got, [])) == list(range(20))
    fails(hvdata, comm, distribute(hvdata, alone), "element 0 is not the same")
    fails(hvdata, comm, distribute(hvdata, with_number, verify=True), "element 0 is not the same")


# ---- What was done with the dataset before.

PEEKS = {"one element": lambda data: next(iter(data)), "all": list, "twice": lambda data: [list(data), list(data)]}


@pytest.mark.parametrize("peek", PEEKS)
@pytest.mark.parametrize("wants_epoch", [False, True])
@pytest.mark.usefixtures("either_way")
def test_a_look_at_a_shuffled_dataset(hvdata, comm, second, peek, wants_epoch):
    def make():
        data = Data.range(60).shuffle(60, seed=4)
        if second:
            PEEKS[peek](data)
        return data.batch(6)

    ds = distribute(hvdata, (lambda epoch: make()) if wants_epoch else make)
    for _ in range(3):
        assert rows(hvdata, comm, ds) == list(range(60))


def test_the_orders_are_those_of_tensorflow(hvdata, comm):
    """The iterators of a seeded shuffle give two epochs different orders, as in TensorFlow."""
    trainers = sum(comm.allgather(hvdata.is_trainer()))
    make = lambda: Data.range(24).shuffle(24, seed=4).batch(trainers)
    ds, plain = distribute(hvdata, make, batch="global"), make()
    for _ in range(3):
        got = merged(on_trainers(hvdata, comm, lambda: epoch(hvdata, ds)))
        assert got == [row for batch in plain for row in batch.numpy().tolist()]


def test_epochs_that_were_left(hvdata, comm):
    """The readers' iterators have then begun another number of rounds."""
    ds = distribute(hvdata, lambda: Data.range(9).shuffle(9, seed=4).repeat(3).batch(1), prefetch=1)
    trainers = sum(comm.allgather(hvdata.is_trainer()))
    for steps in 1, 3, 5, min(8, 27 // trainers):
        on_trainers(hvdata, comm, lambda steps=steps: take(iter(ds), steps))
        assert rows(hvdata, comm, ds) == sorted([*range(9)] * 3)


@pytest.mark.parametrize("twelfths", [0, 1, 4, 10, 12])
def test_saved_and_restored(hvdata, comm, path, twelfths):
    """`twelfths` is the part of the steps that ranks take before the save.

    After 12 they have not met the epoch's end.
    """
    steps = twelfths * (24 // sum(comm.allgather(hvdata.is_trainer()))) // 12
    ds = distribute(hvdata, lambda: Data.range(24).shuffle(24, seed=4).batch(1))
    got, again = saved_and_restored(hvdata, comm, ds, path, steps)
    assert sorted(sum(merged(got), []) + rows(hvdata, comm, again)) == list(range(24))
    assert rows(hvdata, comm, ds) == list(range(24))
