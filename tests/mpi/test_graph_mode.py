# SPDX-License-Identifier: Apache-2.0
"""tf.compat.v1 graph mode: every kind of iterator, re-initialised every epoch."""

import gc
import threading
import time
import weakref

import pytest
import tensorflow as tf
from together import Counted, Raised, dealt, outcomes, raises_everywhere, results

pytestmark = pytest.mark.world(np=2)

v1 = tf.compat.v1


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def numbers(hvdata, start, n, **arguments):
    return hvdata.distribute_dataset(lambda: tf.data.Dataset.range(start, start + n), batch="per_rank", **arguments)


def part(start, n, comm, change=lambda values: values):
    return [change(dealt(range(start, start + n), rank, comm.size)) for rank in range(comm.size)]


def drain(session, fetch):
    got = []
    while True:
        try:
            got.append(int(session.run(fetch)))
        except tf.errors.OutOfRangeError:
            return got


def test_initialisable_iterator(hvdata, comm):
    source = Counted(5 * comm.size)
    iterator = v1.data.make_initializable_iterator(hvdata.distribute_dataset(source.dataset, batch="per_rank"))
    fetch = iterator.get_next()

    def run():
        got = []
        with v1.Session() as session:
            for _ in range(3):
                session.run(iterator.initializer)
                got.append(drain(session, fetch))
        return got

    assert results(comm, run) == part(0, source.n, comm, lambda values: [values] * 3)
    assert comm.allgather(source.starts) == [3] + [0] * (comm.size - 1)


def test_a_dataset_object_made_in_the_graph(hvdata, comm):
    """On the reader a v1 dataset and its functions live in the user's graph."""
    source = None
    if hvdata.is_reader():
        source = v1.data.Dataset.range(4 * comm.size).map(lambda i: i * tf.constant(10, tf.int64)).shuffle(1)
    iterator = v1.data.make_initializable_iterator(hvdata.distribute_dataset(source, batch="per_rank"))
    fetch = iterator.get_next()

    def run():
        with v1.Session() as session:
            got = []
            for _ in range(2):
                session.run(iterator.initializer)
                got.append(drain(session, fetch))
        return got

    assert results(comm, run) == part(0, 4 * comm.size, comm, lambda values: [[10 * x for x in values]] * 2)


def test_re_initialised_in_mid_epoch(hvdata, comm):
    iterator = v1.data.make_initializable_iterator(numbers(hvdata, 0, 20 * comm.size))
    fetch = iterator.get_next()

    def run():
        with v1.Session() as session:
            got = []
            for steps in 1, 3, 0, 5:
                session.run(iterator.initializer)
                got.append([int(session.run(fetch)) for _ in range(steps)])
        return got

    want = part(0, 20 * comm.size, comm, lambda values: [values[:steps] for steps in (1, 3, 0, 5)])
    assert results(comm, run) == want


def test_one_structure_shared_by_several_datasets(hvdata, comm):
    """Re-initialisable: one iterator for training and validation, as Saver-era training loops have it."""
    train, valid = numbers(hvdata, 0, 4 * comm.size), numbers(hvdata, 100, 2 * comm.size)
    iterator = v1.data.Iterator.from_structure(v1.data.get_output_types(train), v1.data.get_output_shapes(train))
    start = {"train": iterator.make_initializer(train), "valid": iterator.make_initializer(valid)}
    fetch = iterator.get_next()

    def run():
        with v1.Session() as session:
            got = []
            for which in ["train", "valid"] * 3:
                session.run(start[which])
                got.append(drain(session, fetch))
        return got

    a, b = part(0, 4 * comm.size, comm), part(100, 2 * comm.size, comm)
    assert results(comm, run) == [[one, other] * 3 for one, other in zip(a, b)]


def test_feedable_iterator(hvdata, comm):
    train, valid = numbers(hvdata, 0, 6 * comm.size), numbers(hvdata, 100, 2 * comm.size)
    handle = v1.placeholder(tf.string, [])
    fetch = v1.data.Iterator.from_string_handle(
        handle, v1.data.get_output_types(train), v1.data.get_output_shapes(train)
    ).get_next()
    iterators = [v1.data.make_initializable_iterator(ds) for ds in (train, valid)]
    handles = [iterator.string_handle() for iterator in iterators]

    def run():
        got = []
        with v1.Session() as session:
            for_train, for_valid = session.run(handles)
            for _ in range(2):
                session.run(iterators[0].initializer)
                for _ in range(3):  # validation in mid-epoch, three times
                    got += [int(session.run(fetch, {handle: for_train})) for _ in range(2)]
                    session.run(iterators[1].initializer)
                    got += [int(session.run(fetch, {handle: for_valid})) for _ in range(2)]
        return got

    want = [
        sum((a[at : at + 2] + b for at in (0, 2, 4)), []) * 2
        for a, b in zip(part(0, 6 * comm.size, comm), part(100, 2 * comm.size, comm))
    ]
    assert results(comm, run) == want


def test_switched_by_tf_cond(hvdata, comm):
    """Training and validation behind one get_next, chosen step by step by a placeholder."""
    iterators = [
        v1.data.make_initializable_iterator(numbers(hvdata, 0, 6 * comm.size)),
        v1.data.make_initializable_iterator(numbers(hvdata, 100, 6 * comm.size)),
    ]
    is_validating = v1.placeholder_with_default(False, [])
    fetch = tf.cond(is_validating, iterators[1].get_next, iterators[0].get_next)
    order = [False, False, True, False, True, True, False, True, False, False]

    def run():
        got = []
        with v1.Session() as session:
            for _ in range(2):
                session.run([iterator.initializer for iterator in iterators])
                got += [int(session.run(fetch, {is_validating: which})) for which in order]
        return got

    want = []
    for a, b in zip(part(0, 6 * comm.size, comm), part(100, 6 * comm.size, comm)):
        lanes = {False: iter(a), True: iter(b)}
        want.append([next(lanes[which]) for which in order] * 2)
    assert results(comm, run) == want


def test_monitored_training_session(hvdata, comm):
    """The loop that ends with the data: OutOfRange ends MonitoredTrainingSession on every rank at the same step."""
    ds = numbers(hvdata, 1, 5 * comm.size)
    iterator = v1.data.make_initializable_iterator(ds)
    v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    fetch = iterator.get_next()
    step = v1.train.get_or_create_global_step()
    train = v1.assign_add(step, 1)

    def epoch():
        got = []
        with v1.train.MonitoredTrainingSession() as session:
            while not session.should_stop():
                got.append(tuple(int(x) for x in session.run([fetch, train])))
        return got

    want = part(1, 5 * comm.size, comm, lambda values: [(x, at) for at, x in enumerate(values, 1)])
    for _ in range(2):
        assert [[x for x, _ in steps] for steps in results(comm, epoch)] == [[x for x, _ in w] for w in want]


def test_tf_data_after_it(hvdata, comm):
    ds = numbers(hvdata, 0, 6 * comm.size).map(lambda x: x * 2).prefetch(2).take(4)
    iterator = v1.data.make_initializable_iterator(ds)
    fetch = iterator.get_next()

    def run():
        with v1.Session() as session:
            session.run(iterator.initializer)
            return drain(session, fetch)

    for _ in range(2):
        assert results(comm, run) == part(0, 6 * comm.size, comm, lambda values: [2 * x for x in values[:4]])


def test_a_session_that_is_closed_while_it_waits(hvdata, comm):
    """The step's time limit cancels the wait; the next epoch works."""
    go_on = threading.Event()

    def slow():
        yield 0
        go_on.wait()
        yield from range(1, 3 * comm.size)

    def source():
        return tf.data.Dataset.from_generator(slow, output_signature=tf.TensorSpec([], tf.int64))

    iterator = v1.data.make_initializable_iterator(hvdata.distribute_dataset(source, batch="per_rank", prefetch=1))
    fetch = iterator.get_next()

    def wait_in_vain():
        with v1.Session() as session:
            session.run(iterator.initializer)
            for _ in range(2):  # the one rank of a job has its first step
                session.run([fetch], options=v1.RunOptions(timeout_in_ms=2000))

    def run():
        with v1.Session() as session:
            session.run(iterator.initializer)
            return drain(session, fetch)

    raised = outcomes(comm, wait_in_vain)
    go_on.set()
    assert all(isinstance(one, Raised) and issubclass(one.kind, tf.errors.DeadlineExceededError) for one in raised), (
        raised
    )
    assert results(comm, run) == part(0, 3 * comm.size, comm)


def test_a_named_channel_is_taken_up_again_by_another_graph(hvdata, comm):
    source = Counted(3 * comm.size)
    calls = []

    def function():
        calls.append(1)
        return source.dataset()

    for epoch in range(1, 4):
        with tf.Graph().as_default():
            ds = hvdata.distribute_dataset(function, batch="per_rank", name="taken-up-again")
            iterator = v1.data.make_initializable_iterator(ds)
            fetch = iterator.get_next()

            def run():
                with v1.Session() as session:
                    session.run(iterator.initializer)
                    return drain(session, fetch)

            assert results(comm, run) == part(0, source.n, comm)
        assert comm.allgather(source.starts) == [epoch] + [0] * (comm.size - 1)
    assert comm.bcast(calls)[:1] == [1]


def test_a_name_that_a_graph_uses_twice(hvdata, comm):
    """The k-th dataset of a name in a graph has the same channel as the k-th in every other graph."""
    for _ in range(2):
        with tf.Graph().as_default(), v1.Session() as session:
            fetches = []
            for n in (1, 2):
                ds = hvdata.distribute_dataset(
                    lambda n=n: tf.data.Dataset.range(n * comm.size), batch="per_rank", name="twice"
                )
                iterator = v1.data.make_initializable_iterator(ds)
                session.run(iterator.initializer)
                fetches.append(iterator.get_next())
            got = results(comm, lambda: [drain(session, fetch) for fetch in fetches])
            assert got == [[[rank], [rank, rank + comm.size]] for rank in range(comm.size)]


@pytest.mark.parametrize("source", [7, [1, 2], "data"], ids=str)
def test_no_dataset_for_a_name_that_is_taken_up_again(hvdata, comm, source):
    """The error is that of a new channel. Only that rank raises, because taking up a channel is not collective."""
    name = f"taken-up-with-{source}"
    new = raises_everywhere(comm, lambda: hvdata.distribute_dataset(source, batch="per_rank"), TypeError)
    numbers(hvdata, 0, comm.size, name=name)
    with tf.Graph().as_default():
        again = outcomes(comm, lambda: hvdata.distribute_dataset(
            source if comm.rank == comm.size - 1 else None, batch="per_rank", name=name) and None)  # fmt: skip
        assert [isinstance(one, Raised) for one in again] == [rank in (0, comm.size - 1) for rank in range(comm.size)]
        assert again[-1][:2] == new[-1][:2]
        if comm.size > 1:
            assert again[0].kind is TypeError and "dataset_or_fn is None on a reader" in again[0].text
        if isinstance(again[comm.rank], Raised):  # an error takes nothing up: the right argument does
            hvdata.distribute_dataset(tf.data.Dataset.range, batch="per_rank", name=name)


def gone(graph, dealers):
    """Waits until `graph` has been freed, and the dealer of its channel has ended."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        gc.collect()
        if graph() is None and dealers_now() <= dealers:
            return True
        time.sleep(0.05)
    return graph() is None, dealers_now(), dealers


def dealers_now():
    return {thread.name for thread in threading.enumerate() if "dealer" in thread.name}


def count_to_4():
    yield from range(4)


SOURCES = {
    "object": lambda: v1.data.Dataset.range(4).map(lambda i: i * tf.constant(10, tf.int64)).shuffle(1),
    "generator": lambda: v1.data.Dataset.from_generator(count_to_4, tf.int64, []).map(lambda i: i * 10),
    "py_function": lambda: v1.data.Dataset.range(4).map(lambda i: tf.py_function(lambda x: x * 10, [i], tf.int64)),
    "function": lambda: lambda: tf.data.Dataset.from_generator(
        count_to_4, output_signature=tf.TensorSpec([], tf.int64)).map(lambda i: i * 10),
}  # fmt: skip


@pytest.mark.parametrize("source", SOURCES)
def test_a_graph_that_is_dropped(hvdata, comm, source):
    """When every rank has dropped its graph, the reader's channel keeps neither the graph nor a thread."""
    before = dealers_now()

    def one_graph():
        with tf.Graph().as_default() as graph:
            made = SOURCES[source]() if hvdata.is_reader() else None
            ds = hvdata.distribute_dataset(made, batch="per_rank", remainder="drop")
            del made
            iterator = v1.data.make_initializable_iterator(ds)
            fetch = iterator.get_next()
            names = [op.type for op in graph.get_operations()]
            assert not any("Deal" in name for name in names)
            with v1.Session() as session:
                for _ in range(2):
                    session.run(iterator.initializer)
                    assert drain(session, fetch) == dealt([0, 10, 20, 30], comm.rank, comm.size)
            return weakref.ref(graph)

    graphs = []
    results(comm, lambda: graphs.append(one_graph()))
    assert results(comm, lambda: gone(graphs[0], before)) == [True] * comm.size


def test_a_v1_dataset_that_needs_a_placeholder_is_an_error(hvdata, comm):
    """The reader runs the dataset in a session of its own, where a placeholder can't be fed."""
    limit = v1.placeholder(tf.int64, [])
    source = v1.data.Dataset.range(limit)

    def run():
        iterator = v1.data.make_initializable_iterator(hvdata.distribute_dataset(source, batch="per_rank"))
        fetch = iterator.get_next()
        with v1.Session() as session:
            session.run(iterator.initializer, {limit: 10})
            session.run(fetch)

    raises_everywhere(comm, run, (ValueError, RuntimeError, tf.errors.OpError), "laceholder")


def test_another_dataset_for_a_channel_that_exists_is_ignored_aloud(hvdata, comm, capfd):
    """The reader logs one line, once. For the same function it logs none."""

    def first():
        return tf.data.Dataset.range(2 * comm.size)

    def other():
        return tf.data.Dataset.range(100, 100 + 2 * comm.size)

    def said(source):
        capfd.readouterr()
        with tf.Graph().as_default(), v1.Session() as session:
            iterator = v1.data.make_initializable_iterator(
                hvdata.distribute_dataset(source if hvdata.is_reader() else None, batch="per_rank", name="ignores")
            )
            fetch = iterator.get_next()
            session.run(iterator.initializer)
            got = drain(session, fetch)
        return got, capfd.readouterr().err.count("channel 'ignores' exists already")

    got = results(comm, lambda: [said(source) for source in (first, first, other, other)])
    want = part(0, 2 * comm.size, comm)
    for rank, mine in enumerate(got):
        assert mine == [(want[rank], 0), (want[rank], 0), (want[rank], int(rank == 0)), (want[rank], 0)]
