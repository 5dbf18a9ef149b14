# SPDX-License-Identifier: Apache-2.0
"""Programs that count their steps, as Keras' `fit` does. They take the last step and don't ask for the epoch's end. The
epoch is whole nevertheless, and what it dropped is known."""

import time

import pytest
import tensorflow as tf
from together import generated, on_trainers, results, until

from horovod_data.certificate import last

pytestmark = pytest.mark.world(np=2)

SLOW = 0.02  # seconds an element: slower than the program, so all ranks leave before the reader pulls the end


def numbers(count, seconds=0.0):
    """A generator, whose length is unknown."""

    def generate():
        for i in range(count):
            time.sleep(seconds)
            yield i

    return generated(generate)


def known(count, seconds=0.0):
    return numbers(count, seconds).apply(tf.data.experimental.assert_cardinality(count))


def channel(hvdata, make, name, batch="per_rank", **arguments):
    return hvdata.distribute_dataset(make, batch=batch, verify=True, name=name, **arguments)


def whole(comm, ds):
    """The steps of a whole epoch on each rank."""
    return results(comm, lambda: sum(1 for _ in ds))


def take(comm, ds, steps):
    """The first `steps` steps of an epoch on every rank, which don't ask for more."""

    def local():
        iterator = iter(ds)
        return [next(iterator).numpy() for _ in range(steps)]

    return results(comm, local)


def certificate(hvdata, comm, name, epoch):
    """Waits until reader 0 has the record of this epoch or a later one, and returns it."""
    reader = comm.allgather(hvdata.is_reader()).index(True)
    until(comm, lambda: comm.rank != reader or last().get(name, {}).get("epoch", 0) >= epoch)
    return comm.bcast(last().get(name), reader)


def is_whole(hvdata, comm, name, epoch, dropped):
    record = certificate(hvdata, comm, name, epoch)
    assert (record["verdict"], record["epoch"], record["dropped"]) == ("complete", epoch, dropped)


def per_rank(n, seconds):
    """tf.data knows the length."""
    return lambda: known(5 * n - 1, seconds)


def as_the_first_epoch(n, seconds):
    """Keras' fit asks for the end of the first epoch, and counts steps in later epochs."""
    return lambda: numbers(5 * n - 1, seconds)


def global_batches(n, seconds):
    return lambda: known(3 * (n + 1), seconds).batch(n + 1)


def a_last_batch_without_a_step(n, seconds):
    """tf.data knows the number of batches, but not how many rows a map makes of them, and so not how many steps."""
    return lambda: known(4 * n - 1, seconds).batch(n).map(lambda x: x)


@pytest.mark.parametrize("seconds", [0, SLOW], ids=["quick", "slow"])
@pytest.mark.parametrize("source", [per_rank, as_the_first_epoch, global_batches, a_last_batch_without_a_step])
def test_the_last_step_is_the_end(hvdata, comm, source, seconds):
    n, name = comm.size, f"{source.__name__}-{seconds}"
    batch = "global" if source in (global_batches, a_last_batch_without_a_step) else "per_rank"
    steps = {per_rank: 4, as_the_first_epoch: 4}.get(source, 3)
    dropped = 3 * (1 % n) if source is global_batches else n - 1
    if n == 1 and source is a_last_batch_without_a_step:
        pytest.skip("every row makes a step")
    ds = channel(hvdata, source(n, seconds), name, batch)
    first = 1
    if source in (as_the_first_epoch, a_last_batch_without_a_step):
        assert int(ds.cardinality()) == tf.data.UNKNOWN_CARDINALITY
        whole(comm, ds)
        first = 2
    for epoch in first, first + 1:
        take(comm, ds, steps)
        until(comm, lambda: hvdata.stats()[f"{name}/dropped"] == dropped)
        is_whole(hvdata, comm, name, epoch, dropped)


@pytest.mark.world(np=2, readers=2)
@pytest.mark.readers(2)
def test_of_several_readers(hvdata, comm):
    """The readers read ahead and reach their ends before the last step of the program. The program learns the ends
    without asking."""
    n = comm.size - hvdata.num_readers()
    each = 2 * n + (1 if n > 2 else 0)  # the leftovers together make no step
    ds = channel(hvdata, lambda context: tf.data.Dataset.range(each), "readers")
    for epoch in 1, 2:
        if hvdata.is_trainer():
            iterator = iter(ds)
            for step in range(4):
                next(iterator)
        comm.Barrier()
        if hvdata.is_trainer():
            time.sleep(1)  # the readers read a step ahead, so they are at their ends by now and have sent that
            del iterator
        assert on_trainers(hvdata, comm, lambda: hvdata.stats()["readers/dropped"]) == [2 * (each - 2 * n)] * n
        is_whole(hvdata, comm, "readers", epoch, 2 * (each - 2 * n))
