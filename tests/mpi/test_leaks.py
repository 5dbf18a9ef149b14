# SPDX-License-Identifier: Apache-2.0
"""200 epochs, whole and broken off: no thread, file descriptor or memory is left behind."""

import gc
import weakref

import numpy as np
import psutil
import pytest
import tensorflow as tf
from heap import allocated
from together import results, until

pytestmark = [pytest.mark.world(np=2), pytest.mark.limit(180)]

EPOCHS = 200
ROW = 65_536  # bytes: more than travels with a header, so that messages and receive buffers take part
THREADS = 10  # TensorFlow's pools may still grow a little; a leaked thread per epoch would be 200
MEMORY = 24 << 20  # a leaked step per epoch would be 200 x 12 rows: 150 MiB


def usage():
    gc.collect()
    process = psutil.Process()
    return np.array([process.num_threads(), process.num_fds(), process.memory_info().rss])


def stays_level(comm, epoch):
    """Runs `epoch(i)` EPOCHS times after a warm-up and compares what the process holds before and after."""

    def run():
        for i in range(20):
            epoch(i)
        before = usage()
        for i in range(EPOCHS):
            epoch(i)
        return usage() - before

    for rank, (threads, descriptors, memory) in enumerate(results(comm, run)):
        assert threads <= THREADS, f"rank {rank}: {threads} more threads"
        assert descriptors <= 2, f"rank {rank}: {descriptors} more file descriptors"
        assert memory < MEMORY, f"rank {rank}: {memory / 2**20:.0f} MiB more"


def source(steps):
    element = np.zeros((12, ROW), np.uint8)
    return tf.data.Dataset.from_tensors(element).repeat(steps)


def drain(dataset):
    for _ in dataset:
        pass


def a_channel_per_epoch(hvdata, comm):
    """A new dataset each epoch: the old channel is freed on every rank."""
    return lambda i: drain(hvdata.distribute_dataset(source(2), batch="global"))


def failing(hvdata, comm):
    def generate():
        yield np.zeros((12, ROW), np.uint8)
        raise ValueError("again")

    spec = tf.TensorSpec([12, ROW], tf.uint8)
    ds = hvdata.distribute_dataset(tf.data.Dataset.from_generator(generate, output_signature=spec), batch="global")

    def epoch(i):
        with pytest.raises(tf.errors.InvalidArgumentError):
            drain(ds)

    return epoch


def scatters(hvdata, comm):
    x = np.zeros((12 * comm.size, ROW), np.uint8)
    arguments = {"x": x} if comm.rank == 0 else {"x": None, "dtype": tf.uint8}
    return lambda i: hvdata.scatter(**arguments)


def iterators_that_are_never_used(hvdata, comm):
    ds = hvdata.distribute_dataset(source(2), batch="global")
    return lambda i: iter(ds) and None


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("schedule", ["static", "dynamic"])
def test_whole_epochs(hvdata, comm, schedule):
    ds = hvdata.distribute_dataset(source(2 * comm.size), batch="per_rank", schedule=schedule)
    stays_level(comm, lambda i: drain(ds))


@pytest.mark.world(np=3)
@pytest.mark.ranks(1, 3)
def test_broken_off_epochs(hvdata, comm):
    """Every rank leaves after the first step. In every other epoch one rank stays."""
    ds = hvdata.distribute_dataset(source(4), batch="global", prefetch=3)
    stays_level(comm, lambda i: drain(ds if i % 2 and comm.rank == i % comm.size else ds.take(1)))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("make", [
    scatters, iterators_that_are_never_used, pytest.param(a_channel_per_epoch, marks=pytest.mark.slow),
    pytest.param(failing, marks=pytest.mark.slow),
])  # fmt: skip
def test_other_epochs(hvdata, comm, make):
    stays_level(comm, make(hvdata, comm))


@pytest.mark.slow
@pytest.mark.ranks(1, 2)
def test_a_channel_leaves_little(hvdata, comm):
    """TensorFlow keeps a kernel of 44 KiB for each set of attributes of an op. The number of a channel must not be an
    attribute."""

    def run(channels):
        for _ in range(channels):
            drain(hvdata.distribute_dataset(tf.data.Dataset.range(4).batch(2), batch="per_rank", prefetch=1))
        return allocated()

    before = results(comm, lambda: run(20))
    after = results(comm, lambda: run(100))
    kept = [(b - a) / 100 / 1024 for a, b in zip(before, after)]
    assert all(each < 20 for each in kept), f"KiB of each channel: {kept}"


def test_what_was_read_is_let_go_of_with_its_channel(hvdata, comm):
    """The dataset of the user is freed with its channel, not at the end of the job. It may hold all data."""
    made = []

    def function():
        held = tf.constant(np.arange(6.0 * comm.size))
        made.append(weakref.ref(held))
        dataset = tf.data.Dataset.from_tensor_slices(held)
        del held
        return dataset.batch(comm.size)

    hvdata.predict(lambda x: x, function)

    def gone():
        gc.collect()
        return all(ref() is None for ref in made)

    until(comm, gone)
    assert sum(comm.allgather(len(made))) == 1
