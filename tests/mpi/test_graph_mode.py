# SPDX-License-Identifier: Apache-2.0
"""tf.compat.v1 graph mode: every kind of iterator, re-initialised every epoch."""

import gc
import re
import threading
import weakref

import pytest
import tensorflow as tf
from together import (
    Counted,
    Raised,
    dealt,
    dealt_to_all,
    generated,
    numbers,
    outcomes,
    raises_everywhere,
    results,
    until,
)

pytestmark = pytest.mark.world(np=2)

v1 = tf.compat.v1


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def part(comm, n, start=0):
    return dealt_to_all(comm, range(start, start + n))


def iterate(dataset):
    """An iterator and its get_next()."""
    iterator = v1.data.make_initializable_iterator(dataset)
    return iterator, iterator.get_next()


def drain(session, fetch):
    got = []
    while True:
        try:
            got.append(int(session.run(fetch)))
        except tf.errors.OutOfRangeError:
            return got


def epochs(iterator, fetch, count):
    """Whole epochs of one session."""
    got = []
    with v1.Session() as session:
        for _ in range(count):
            session.run(iterator.initializer)
            got.append(drain(session, fetch))
    return got


def test_initialisable_iterator(hvdata, comm):
    source = Counted(5 * comm.size)
    iterator, fetch = iterate(hvdata.distribute_dataset(source.dataset, batch="per_rank"))
    got = results(comm, lambda: epochs(iterator, fetch, 3))
    assert got == [[mine] * 3 for mine in part(comm, source.n)]
    assert comm.allgather(source.starts) == [3] + [0] * (comm.size - 1)


def test_re_initialised_in_mid_epoch(hvdata, comm):
    """The ranks' own stages come after the distributed dataset."""
    iterator, fetch = iterate(numbers(hvdata, 20 * comm.size).map(lambda x: x * 2).prefetch(2).take(7))

    def run():
        with v1.Session() as session:
            got = []
            for steps in 1, 3, 0, 5:
                session.run(iterator.initializer)
                got.append([int(session.run(fetch)) for _ in range(steps)])
        return got

    for mine, got in zip(part(comm, 20 * comm.size), results(comm, run)):
        assert got == [[2 * x for x in mine[:steps]] for steps in (1, 3, 0, 5)]


def test_one_structure_shared_by_several_datasets(hvdata, comm):
    """Re-initialisable: one iterator for training and validation, as Saver-era training loops have it."""
    train, valid = numbers(hvdata, 4 * comm.size), numbers(hvdata, 2 * comm.size, 100)
    iterator = v1.data.Iterator.from_structure(v1.data.get_output_types(train), v1.data.get_output_shapes(train))
    starts = [iterator.make_initializer(train), iterator.make_initializer(valid)]
    fetch = iterator.get_next()

    def run():
        with v1.Session() as session:
            got = []
            for start in starts * 3:
                session.run(start)
                got.append(drain(session, fetch))
        return got

    wanted = zip(part(comm, 4 * comm.size), part(comm, 2 * comm.size, 100))
    assert results(comm, run) == [[one, other] * 3 for one, other in wanted]


def by_handles(train, valid):
    handle = v1.placeholder(tf.string, [])
    types, shapes = v1.data.get_output_types(train), v1.data.get_output_shapes(train)
    fetch = v1.data.Iterator.from_string_handle(handle, types, shapes).get_next()
    iterators = [v1.data.make_initializable_iterator(ds) for ds in (train, valid)]
    handles = [iterator.string_handle() for iterator in iterators]
    return iterators, lambda session, which: session.run(fetch, {handle: session.run(handles[which])})


def by_cond(train, valid):
    iterators = [v1.data.make_initializable_iterator(ds) for ds in (train, valid)]
    is_validating = v1.placeholder_with_default(False, [])
    fetch = tf.cond(is_validating, iterators[1].get_next, iterators[0].get_next)
    return iterators, lambda session, which: session.run(fetch, {is_validating: bool(which)})


@pytest.mark.parametrize("choose", [by_handles, by_cond])
def test_training_and_validation_behind_one_get_next(hvdata, comm, choose):
    """The step chooses: by a string handle, or by tf.cond. Validation comes in mid-epoch, and begins anew each time."""
    iterators, step = choose(numbers(hvdata, 6 * comm.size), numbers(hvdata, 6 * comm.size, 100))

    def run():
        got = []
        with v1.Session() as session:
            for _ in range(2):
                session.run(iterators[0].initializer)
                for _ in range(3):
                    got += [int(step(session, 0)) for _ in range(2)]
                    session.run(iterators[1].initializer)
                    got += [int(step(session, 1)) for _ in range(2)]
        return got

    train, valid = part(comm, 6 * comm.size), part(comm, 6 * comm.size, 100)
    want = [sum((a[at : at + 2] + b[:2] for at in (0, 2, 4)), []) * 2 for a, b in zip(train, valid)]
    assert results(comm, run) == want


def test_monitored_training_session(hvdata, comm):
    """The loop that ends with the data: OutOfRange ends MonitoredTrainingSession on every rank at the same step."""
    iterator, fetch = iterate(numbers(hvdata, 5 * comm.size, 1))
    v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    train = v1.assign_add(v1.train.get_or_create_global_step(), 1)

    def epoch():
        got = []
        with v1.train.MonitoredTrainingSession() as session:
            while not session.should_stop():
                got.append(int(session.run([fetch, train])[0]))
        return got

    for _ in range(2):
        assert results(comm, epoch) == part(comm, 5 * comm.size, 1)


def test_a_session_that_is_closed_while_it_waits(hvdata, comm):
    """The step's time limit cancels the wait; the next epoch works."""
    go_on = threading.Event()

    def slow():
        yield 0
        go_on.wait()
        yield from range(1, 3 * comm.size)

    def source():
        return generated(slow)

    iterator, fetch = iterate(hvdata.distribute_dataset(source, batch="per_rank", prefetch=1))

    def wait_in_vain():
        with v1.Session() as session:
            session.run(iterator.initializer)
            for _ in range(2):  # the one rank of a job has its first step
                session.run([fetch], options=v1.RunOptions(timeout_in_ms=2000))

    raised = outcomes(comm, wait_in_vain)
    go_on.set()
    assert all(isinstance(one, Raised) and issubclass(one.kind, tf.errors.DeadlineExceededError) for one in raised), (
        raised
    )
    assert results(comm, lambda: epochs(iterator, fetch, 1)) == [[mine] for mine in part(comm, 3 * comm.size)]


# ---- Names: a channel that exists is taken up again.


def test_a_named_channel_is_taken_up_again_by_another_graph(hvdata, comm, capfd):
    """The function is called once. If another graph passes another function, the reader ignores it and logs that,
    once."""
    source, calls = Counted(3 * comm.size), []

    def function():
        calls.append(1)
        return source.dataset()

    def other():
        return tf.data.Dataset.range(100, 100 + 2 * comm.size)

    capfd.readouterr()
    for epoch, given in enumerate((function, function, other, other), 1):
        with tf.Graph().as_default():
            made = given if hvdata.is_reader() else None
            iterator, fetch = iterate(hvdata.distribute_dataset(made, batch="per_rank", name="taken-up-again"))
            assert results(comm, lambda: epochs(iterator, fetch, 1)) == [[mine] for mine in part(comm, source.n)]
        assert comm.allgather(source.starts) == [epoch] + [0] * (comm.size - 1)
        lines = comm.allgather(capfd.readouterr().err.count("channel 'taken-up-again' exists already"))
        assert lines == [int(epoch == 3)] + [0] * (comm.size - 1)
    assert comm.allgather(len(calls)) == [1] + [0] * (comm.size - 1)


def test_a_name_that_a_graph_uses_twice(hvdata, comm):
    """The k-th dataset of a name in a graph has the same channel as the k-th in every other graph."""
    for _ in range(2):
        with tf.Graph().as_default(), v1.Session() as session:
            fetches = []
            for n in (1, 2):
                function = lambda n=n: tf.data.Dataset.range(n * comm.size)
                iterator, fetch = iterate(hvdata.distribute_dataset(function, batch="per_rank", name="twice"))
                session.run(iterator.initializer)
                fetches.append(fetch)
            got = results(comm, lambda: [drain(session, fetch) for fetch in fetches])
            assert got == [[[rank], [rank, rank + comm.size]] for rank in range(comm.size)]


@pytest.mark.parametrize("source", [7, [1, 2], "data"], ids=str)
def test_no_dataset_for_a_name_that_is_taken_up_again(hvdata, comm, source):
    """The error is that of a new channel. Only that rank raises, because taking up a channel is not collective."""
    name = f"taken-up-with-{source}"
    new = raises_everywhere(comm, lambda: hvdata.distribute_dataset(source, batch="per_rank"), TypeError)
    hvdata.distribute_dataset(lambda: tf.data.Dataset.range(comm.size), batch="per_rank", name=name)
    with tf.Graph().as_default():
        mine = source if comm.rank == comm.size - 1 else None
        again = outcomes(comm, lambda: hvdata.distribute_dataset(mine, batch="per_rank", name=name) and None)
        assert [isinstance(one, Raised) for one in again] == [rank in (0, comm.size - 1) for rank in range(comm.size)]
        assert again[-1][:2] == new[-1][:2]
        if comm.size > 1:
            assert again[0].kind is TypeError and "dataset_or_fn is None on a reader" in again[0].text
        if isinstance(again[comm.rank], Raised):  # an error takes nothing up: the right argument does
            hvdata.distribute_dataset(tf.data.Dataset.range, batch="per_rank", name=name)


# ---- What is left of a graph.


def dealers_now():
    return {thread.name for thread in threading.enumerate() if "dealer" in thread.name}


def count_to_4():
    yield from range(4)


SOURCES = {
    "object": lambda: v1.data.Dataset.range(4).map(lambda i: i * tf.constant(10, tf.int64)).shuffle(1),
    "generator": lambda: v1.data.Dataset.from_generator(count_to_4, tf.int64, []).map(lambda i: i * 10),
    "py_function": lambda: v1.data.Dataset.range(4).map(lambda i: tf.py_function(lambda x: x * 10, [i], tf.int64)),
    "function": lambda: lambda: generated(count_to_4).map(lambda i: i * 10),
}  # fmt: skip


@pytest.mark.parametrize("source", SOURCES)
def test_a_graph_that_is_dropped(hvdata, comm, source):
    """When every rank has dropped its graph, the reader's channel keeps neither the graph nor a thread."""
    before = dealers_now()

    def one_graph():
        with tf.Graph().as_default() as graph:
            made = SOURCES[source]() if hvdata.is_reader() else None
            iterator, fetch = iterate(hvdata.distribute_dataset(made, batch="per_rank", remainder="drop"))
            del made
            assert not any("Deal" in op.type for op in graph.get_operations())
            assert epochs(iterator, fetch, 2) == [dealt([0, 10, 20, 30], comm.rank, comm.size)] * 2
            return weakref.ref(graph)

    graphs = []
    results(comm, lambda: graphs.append(one_graph()))
    until(comm, lambda: gc.collect() >= 0 and graphs[0]() is None and dealers_now() <= before)


def test_a_v1_dataset_that_needs_a_placeholder_is_an_error(hvdata, comm):
    """The reader runs the dataset in a session of its own, where a placeholder can't be fed."""
    limit = v1.placeholder(tf.int64, [])

    def run():
        iterator, fetch = iterate(hvdata.distribute_dataset(v1.data.Dataset.range(limit), batch="per_rank"))
        with v1.Session() as session:
            session.run(iterator.initializer, {limit: 10})
            session.run(fetch)

    raises_everywhere(comm, run, (ValueError, RuntimeError, tf.errors.OpError), "laceholder")


def test_an_error_of_the_readers_session_names_its_rank_once(hvdata, comm):
    """A session raises errors anew, without the message beside the place. The session of the reader makes a call that
    fails."""
    values = tf.zeros([2])
    if hvdata.is_reader():
        values = hvdata.scatter(values, splits=tf.constant([7] * comm.size, tf.int64), name="wrong")
    dataset = tf.data.Dataset.from_tensor_slices(values)
    make = lambda: hvdata.distribute_dataset(dataset, batch="per_rank")  # noqa: E731
    for one in raises_everywhere(comm, make, tf.errors.InvalidArgumentError, r"splits=\[7, 7\] must be"):
        assert len(re.findall(r"\[rank 0 on ", one.text)) == 1, one.text
