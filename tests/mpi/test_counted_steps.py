# SPDX-License-Identifier: Apache-2.0
"""Programs that count their steps, as Keras' `fit` does, take the last one and leave: nobody asks for the epoch's end. It is whole all the
same, and what it dropped is known."""

import time

import pytest
import tensorflow as tf
from together import results

from horovod_data.certificate import last

pytestmark = pytest.mark.world(np=2)

SLOW = 0.02  # s an element: slower than the program, so that the end is still to be pulled when all have left


def numbers(count, seconds=0.0):
    """A generator, whose length is unknown."""

    def generate():
        for i in range(count):
            time.sleep(seconds)
            yield i

    return tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([], tf.int64))


def known(count, seconds=0.0):
    return numbers(count, seconds).apply(tf.data.experimental.assert_cardinality(count))


def take(comm, ds, steps):
    """The first `steps` steps of an epoch on every rank, which don't ask for more."""

    def local():
        iterator = iter(ds)
        return [next(iterator).numpy() for _ in range(steps)]

    return results(comm, local)


def until(comm, condition):
    """Waits some seconds until the condition is true on every rank, because the reader's message may be on its way."""

    def local():
        end = time.monotonic() + 10
        while not condition() and time.monotonic() < end:
            time.sleep(0.01)
        return condition()

    return results(comm, local) == [True] * comm.size


def certificate(hvdata, comm, name, epoch):
    """Waits until reader 0 has the record of this epoch or a later one, and returns it."""
    reader = comm.allgather(hvdata.is_reader()).index(True)
    assert until(comm, lambda: comm.rank != reader or last().get(name, {}).get("epoch", 0) >= epoch)
    return comm.bcast(last().get(name), reader)


@pytest.mark.parametrize("seconds", [0, SLOW], ids=["quick", "slow"])
@pytest.mark.parametrize("batch", ["per_rank", "global"])
def test_of_a_length_that_tf_data_knows(hvdata, comm, batch, seconds):
    n, name = comm.size, f"known-{batch}-{seconds}"
    each = n + 1  # rows of a global batch
    steps, count, dropped = (4, 5 * n - 1, n - 1) if batch == "per_rank" else (3, 3 * each, 3 * (each % n))

    def make():
        ds = known(count, seconds)
        return ds.batch(each) if batch == "global" else ds

    ds = hvdata.distribute_dataset(make, batch=batch, verify=True, name=name)
    for epoch in 1, 2:
        take(comm, ds, steps)
        assert until(comm, lambda: hvdata.stats()[f"{name}/dropped"] == dropped)
        record = certificate(hvdata, comm, name, epoch)
        assert (record["verdict"], record["epoch"], record["dropped"]) == ("complete", epoch, dropped)


@pytest.mark.parametrize("seconds", [0, SLOW], ids=["quick", "slow"])
def test_of_a_length_that_the_first_epoch_told(hvdata, comm, seconds):
    """Keras' fit asks for the end of the first epoch, and counts steps in later epochs."""
    n = comm.size
    name = f"told-{seconds}"
    ds = hvdata.distribute_dataset(lambda: numbers(4 * n + n - 1, seconds), batch="per_rank", verify=True, name=name)
    results(comm, lambda: [None for _ in ds])
    for epoch in 2, 3:
        take(comm, ds, 4)
        assert until(comm, lambda: hvdata.stats()[f"{name}/dropped"] == n - 1)
        record = certificate(hvdata, comm, name, epoch)
        assert (record["verdict"], record["epoch"], record["dropped"]) == ("complete", epoch, n - 1)


@pytest.mark.parametrize("seconds", [0, SLOW], ids=["quick", "slow"])
def test_of_batches_of_which_the_last_makes_no_step(hvdata, comm, seconds):
    """tf.data knows the number of batches, but not how many rows a map makes of them, and so not how many steps."""
    n = comm.size
    if n == 1:  # then every row makes one
        return
    name = f"stepless-{seconds}"
    ds = hvdata.distribute_dataset(
        lambda: known(3 * n + n - 1, seconds).batch(n).map(lambda x: x), batch="global", verify=True, name=name
    )
    assert int(ds.cardinality()) == tf.data.UNKNOWN_CARDINALITY
    results(comm, lambda: [None for _ in ds])
    take(comm, ds, 3)
    assert until(comm, lambda: hvdata.stats()[f"{name}/dropped"] == n - 1)
    record = certificate(hvdata, comm, name, 2)
    assert (record["verdict"], record["epoch"], record["dropped"]) == ("complete", 2, n - 1)


def test_of_a_dataset_that_is_gone_with_its_last_step(hvdata, comm):
    """The dataset is freed as when a training function returns."""
    n = comm.size

    def train():
        take(
            comm,
            hvdata.distribute_dataset(lambda: known(5 * n - 1, SLOW), batch="per_rank", verify=True, name="gone"),
            4,
        )

    train()
    record = certificate(hvdata, comm, "gone", 1)
    assert (record["verdict"], record["dropped"]) == ("complete", n - 1)


def test_of_a_length_that_changes(hvdata, comm):
    """A longer epoch is left at the length of the epoch before. The next epoch is whole."""
    n, epochs = comm.size, []

    def make():
        def generate():
            epochs.append(None)
            for i in range(n * (3 if len(epochs) == 1 else 6)):
                yield i
                time.sleep(SLOW)

        return tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([], tf.int64))

    ds = hvdata.distribute_dataset(make, batch="per_rank", verify=True, name="changes", prefetch=1)
    assert [len(its) for its in results(comm, lambda: [None for _ in ds])] == [3] * n
    take(comm, ds, 3)
    record = certificate(hvdata, comm, "changes", 2)
    assert (record["verdict"], record["why"]) == ("not complete", "it was broken off")
    assert [len(its) for its in results(comm, lambda: [None for _ in ds])] == [6] * n
    assert certificate(hvdata, comm, "changes", 3)["verdict"] == "complete"


@pytest.mark.world(np=1, readers=2)
@pytest.mark.readers(2)
def test_of_several_readers(hvdata, comm):
    """The readers read ahead and reach their ends before the last step of the program. The program learns the ends
    without asking."""
    n = comm.size - hvdata.num_readers()
    each = 2 * n + (1 if n > 2 else 0)  # left together: fewer than a step has
    ds = hvdata.distribute_dataset(
        lambda context: tf.data.Dataset.range(each), batch="per_rank", verify=True, name="readers"
    )
    for epoch in 1, 2:
        if hvdata.is_trainer():
            iterator = iter(ds)
            for step in range(4):
                next(iterator)
        comm.Barrier()
        if hvdata.is_trainer():
            time.sleep(4)  # a step ahead the readers are at their ends by now, and have said so
            del iterator
            got = hvdata.stats()["readers/dropped"]
        heard = results(comm, lambda: got if hvdata.is_trainer() else None)
        assert [one for one in heard if one is not None] == [2 * (each - 2 * n)] * n
        record = certificate(hvdata, comm, "readers", epoch)
        assert (record["verdict"], record["epoch"], record["dropped"]) == ("complete", epoch, 2 * (each - 2 * n))
