# SPDX-License-Identifier: Apache-2.0
"""Scalars for TensorBoard, read back from the files."""

import os
import time
import types
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from together import attempt, outcomes, results

pytestmark = pytest.mark.world(np=2)


def scalars(log_dir, rank):
    """Returns (step, value) by tag, as TensorBoard reads them."""
    found = {}
    for file in sorted(Path(log_dir, f"delivery-rank{rank}").glob("events.*")):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                assert (value.metadata.plugin_data.plugin_name, value.metadata.data_class) == ("scalars", 1)
                found.setdefault(value.tag, []).append((event.step, float(tf.make_ndarray(value.tensor))))
    return found


def rows_of_two(hvdata, comm, name):
    """8 steps of two rows for each rank."""
    numbers = tf.data.Dataset.range(16 * comm.size).map(lambda i: tf.cast(i, tf.float32))
    source = numbers.map(lambda i: (tf.fill([3], i), i)).batch(2 * comm.size)
    return hvdata.distribute_dataset(source, batch="global", name=name)


def fit(hvdata, ds, folder, name, often, epochs=2, steps_per_execution=1, **arguments):
    """Writes the scalars of fit()."""
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(loss="mse", optimizer="sgd", jit_compile=False, steps_per_execution=steps_per_execution)
    callback = hvdata.callbacks.DeliveryCallback(str(folder), channel=name, update_freq=often)
    model.fit(ds, epochs=epochs, verbose=0, callbacks=[callback], **arguments)
    return scalars(folder, hvdata.rank())


@pytest.mark.parametrize("often, written", [("epoch", [0, 1]), (3, [3, 6, 9, 12, 15])])
def test_in_fit(hvdata, comm, tmp_path, often, written):
    """The steps are those of epochs or of batches; the scalars are those of the named channel."""
    name = f"fit-{often}"
    ds = rows_of_two(hvdata, comm, name)
    found = results(comm, lambda: fit(hvdata, ds, tmp_path, name, often))
    kinds = {f"delivery/{name}/{kind}" for kind in ("wait_share", "steps_per_second", "rows_per_second", "queue")}
    readers = results(comm, hvdata.is_reader)
    for of_rank, reads in zip(found, readers):
        assert set(of_rank) == (kinds | {f"delivery/{name}/untaken"} if reads else kinds)
        assert [step for step, _ in of_rank[f"delivery/{name}/queue"]] == written
        assert all(0 <= value <= 1 for _, value in of_rank[f"delivery/{name}/wait_share"])
        rates = zip(of_rank[f"delivery/{name}/steps_per_second"], of_rank[f"delivery/{name}/rows_per_second"])
        assert all(rows[1] == pytest.approx(2 * steps[1], rel=1e-3) for steps, rows in rates)


def test_batches_that_keras_executes_together(hvdata, comm, tmp_path):
    """Keras calls back once for several batches."""
    ds = rows_of_two(hvdata, comm, "together").repeat()
    how = dict(steps_per_execution=4, steps_per_epoch=8)
    for of_rank in results(comm, lambda: fit(hvdata, ds, tmp_path, "together", 4, **how)):
        assert [step for step, _ in of_rank["delivery/together/queue"]] == [4, 8, 12, 16]


@pytest.mark.parametrize("said", [(3, 7, 9), (0, 4, 8)])  # as Keras 2 has it, and as some versions of Keras 3
def test_which_of_the_batches_keras_names(hvdata, comm, tmp_path, said):
    steps = []

    def calls():
        callback = hvdata.callbacks.DeliveryCallback(str(tmp_path), update_freq=4)
        callback.set_model(types.SimpleNamespace(steps_per_execution=4))
        callback.on_train_begin()
        callback._scalars.write = steps.append
        for epoch in range(2):
            callback.on_epoch_begin(epoch)
            for batch in said:
                callback.on_train_batch_end(batch)

    results(comm, calls)
    assert steps == ([4, 8, 14, 18, 20] if said[0] else [4, 8, 12, 16, 20, 24])


def test_a_name_that_is_distributed_again(hvdata, comm, tmp_path):
    """Each of its channels counts from the beginning, with any number of steps."""
    log = hvdata.callbacks.DeliveryScalars(str(tmp_path), channel="again")

    def epoch(number, steps):
        ds = rows_of_two(hvdata, comm, "again")
        began = time.monotonic()
        for _ in ds.take(steps):
            time.sleep(0.02)
        return log.write(number), time.monotonic() - began

    for number, steps in enumerate((8, 8, 6, 7)):
        for written, took in results(comm, lambda: epoch(number, steps)):
            # `took` has the beginning of the iteration, too; and a step takes 0.02 s at least.
            assert 0.99 * steps / took <= written["delivery/again/steps_per_second"] <= 50, (number, written, took)
    log.close()


@pytest.mark.parametrize("pause", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_in_a_loop_of_ones_own(hvdata, comm, tmp_path, pause):
    """A write covers the time since the write before. Nothing counts from before the object was made, or from before
    stats(reset=True). A pause between epochs doesn't count as slow."""
    name = f"loop-{pause}"
    ds = rows_of_two(hvdata, comm, name)

    def epoch(seconds):
        """Sleeps after each step. Two spans: one that lies within the epoch, and one in which the epoch lies."""
        began, first, last = time.monotonic(), 0.0, 0.0
        for _ in ds:
            first = first or time.monotonic()
            time.sleep(seconds)
            last = time.monotonic()
        return last - first, time.monotonic() - began

    def loop():
        epoch(0.05)
        log = hvdata.callbacks.DeliveryScalars(str(tmp_path), channel=name)
        told = []
        for number in range(3):
            inside, around = epoch(0.02)
            time.sleep(pause)
            told.append((7.9 / around, log.write(number)[f"delivery/{name}/steps_per_second"], 8.1 / inside))
            if number:
                hvdata.stats(reset=True)
        nothing = log.write(9)
        log.close()
        return told, nothing

    for told, nothing in results(comm, loop):
        assert nothing == {} and all(low <= rate <= high for low, rate, high in told), told


def test_what_makes_no_sense(hvdata, comm, tmp_path):
    for freq in ("often", True, 0, np.int64(-1), 2.0, None):
        got = outcomes(comm, lambda: hvdata.callbacks.DeliveryCallback(str(tmp_path), update_freq=freq))
        assert all(one.kind is ValueError and f"a number of batches, not {freq!r}" in one.text for one in got), got
    hvdata.callbacks.DeliveryCallback(str(tmp_path), update_freq=np.int64(2))


def test_in_a_forked_child(hvdata, comm, tmp_path):
    log = hvdata.callbacks.DeliveryScalars(str(tmp_path))
    receiving, sending = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(sending, str(attempt(lambda: log.write(1))).encode())
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving) as said:
        text = said.read()
    os.waitpid(pid, 0)
    assert "RuntimeError" in text and "DeliveryScalars.write() was called in a forked child" in text, text


def test_in_a_graph_of_tf1(hvdata, comm, tmp_path):
    """The scalars are written, and the graph does not grow."""
    with tf.Graph().as_default() as graph:
        ds = rows_of_two(hvdata, comm, "in-graph")
        element = tf.compat.v1.data.make_one_shot_iterator(ds).get_next()

        def write():
            log = hvdata.callbacks.DeliveryScalars(str(tmp_path), channel="in-graph")
            before = len(graph.get_operations())
            with tf.compat.v1.Session() as session:
                for step in range(4):
                    session.run(element)
                    log.write(step)
            log.close()
            return len(graph.get_operations()) - before

        assert set(results(comm, write)) == {0}
    for of_rank in results(comm, lambda: scalars(tmp_path, hvdata.rank())):
        assert [step for step, _ in of_rank["delivery/in-graph/queue"]][-1] == 3
