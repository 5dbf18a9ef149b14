# SPDX-License-Identifier: Apache-2.0
"""callbacks.BackupAndRestore: a fit() that was broken off resumes in a new job without a difference.

A new channel, model and callback stand for the new job. tests/faults/test_backup_jobs.py has real ones.
"""

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from together import on_trainers, outcomes, raises_everywhere, results, written

pytestmark = [pytest.mark.world(np=3), pytest.mark.ranks(1, 2, 3, 4)]

STEPS, ROWS = 10, 12  # of an epoch; of a step
KERAS_3 = not hasattr(tf.keras.Model, "_maybe_load_initial_counters_from_ckpt")


class Broken(Exception):
    """Ends a job."""


class Model(tf.keras.Model):
    """Notes the rows of each step."""

    def __init__(self):
        super().__init__()
        self.unit = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        self.rows = []

    def call(self, x):
        return self.unit(x)

    def train_step(self, data):
        self.rows.append(data[0].numpy()[:, 0].tolist())
        return super().train_step(data)


class Numbers(tf.keras.callbacks.Callback):
    """Keras' numbers of the steps. Breaks fit() off before a step, counted over epochs."""

    def __init__(self, model, stop):
        super().__init__()
        self.of_model, self.stop, self.all = model, stop, []

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if len(self.of_model.rows) == self.stop:
            raise Broken

    def on_train_batch_end(self, batch, logs=None):
        self.all.append((self.epoch, int(batch)))


def pipeline(kind):
    ds = tf.data.Dataset.range(STEPS * ROWS).shuffle(50, seed=5)
    if kind == "unknown":
        ds = ds.filter(lambda i: True)
    ds = ds.map(lambda i: (tf.cast([i], tf.float32), tf.cast([i], tf.float32))).batch(ROWS)
    return ds.repeat() if kind == "endless" else ds


def channel(hvdata, kind):
    return hvdata.distribute_dataset(lambda: pipeline(kind), batch="global", remainder="partial")


def fit(ds, callbacks, stop=None, epochs=3, together=1, built=KERAS_3, **arguments):
    """Runs fit() until its end, or until it is broken off: the numbers, the rows, and the final variables.

    `built`: before fit(). With Keras 3 the callback needs it.
    """
    model = Model()
    if built:
        model(np.zeros((1, 1), np.float32))
    model.compile(tf.keras.optimizers.Adam(0.01), "mse", run_eagerly=True, steps_per_execution=together)
    numbers = Numbers(model, stop)
    try:
        model.fit(ds, epochs=epochs, verbose=0, callbacks=[*callbacks, numbers], **arguments)
        assert stop is None
    except Broken:
        from horovod_data.backup.together import wait

        wait()  # as an exit of the program does
    variables = model.optimizer.variables
    values = [*model.weights, *(variables() if callable(variables) else variables)]
    return numbers.all, [list(step) for step in model.rows], [np.asarray(value) for value in values]


@pytest.fixture
def folder(comm, tmp_path):
    """One for all ranks."""
    return comm.bcast(str(tmp_path / "sets"))


KINDS = {
    "known": {},
    "unknown": {},
    "endless": {"steps_per_epoch": STEPS - 3},
    "long epochs": {"steps_per_epoch": STEPS // 2, "epochs": 2},
    "together": {"together": 2},
}


@pytest.mark.readers(0, 1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "often, stop",
    [(3, 17), ("epoch", 13), (5, 10), (1, 9)]
    + [pytest.param(*more, marks=pytest.mark.slow) for more in ((3, 7), (5, 6), (20, 13), ("epoch", 9))],
)
def test_every_row_is_trained_once(hvdata, comm, folder, kind, often, stop):
    if kind == "together":
        stop -= stop % 2
    elif kind == "long epochs":  # two epochs are all data
        stop = min(stop, 9)

    def job(backs_up=True, stop=None):
        ds = channel(hvdata, kind)  # also on a dedicated reader
        backup = lambda: [hvdata.callbacks.BackupAndRestore(folder, save_freq=often)] if backs_up else []
        return on_trainers(hvdata, comm, lambda: fit(ds, backup(), stop=stop, **KINDS[kind]))

    whole, one, two = job(backs_up=False), job(stop=stop), job()
    begun = len(whole[0][1]) - len(two[0][1])
    for rank in range(len(whole)):
        assert one[rank][1] == whole[rank][1][:stop]
        assert two[rank][1] == whole[rank][1][begun:], (rank, begun)
        assert two[rank][0] == whole[rank][0][-len(two[rank][0]) :]
    assert begun == expected(kind, often, stop)
    for ours, theirs in zip(two[0][2], whole[0][2]):  # of rank 0
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert not os.path.exists(folder)  # fit() has ended


def expected(kind, often, stop):
    """The step at which the second job begins."""
    epoch = {"endless": STEPS - 3, "long epochs": STEPS // 2}.get(kind, STEPS)
    if often == "epoch":
        return stop // epoch * epoch
    if kind == "together":  # the first even number of steps that is enough
        often += often % 2
    last = stop // often * often
    if kind == "unknown" and last == stop:
        return last - often  # the set waits for the next step
    return last


def test_sets_are_made_kept_and_removed(hvdata, comm, folder):
    """A second fit() in the same program begins anew, and one without the callback doesn't save."""
    backup = hvdata.callbacks.BackupAndRestore(folder, save_freq=2, delete_checkpoint=False, keep=np.int64(3))
    results(comm, lambda: fit(channel(hvdata, "known"), [backup], epochs=1))
    assert sorted(os.listdir(folder)) == [f"set-0000000{number}" for number in (3, 4, 5)]
    parts = [f"part-{rank}" for rank in range(comm.size)]
    assert sorted(os.listdir(f"{folder}/set-00000005")) == [*parts, "set.json"]
    comm.barrier()
    numbers = results(comm, lambda: fit(channel(hvdata, "known"), [backup], epochs=2))[0][0]
    assert numbers == [(1, batch) for batch in range(STEPS)]
    again = hvdata.callbacks.BackupAndRestore(folder)
    numbers = results(comm, lambda: fit(channel(hvdata, "known"), [again], epochs=2))[0][0]
    assert numbers == [] and not os.path.exists(folder)


def test_random_ops_behind_the_channel(hvdata, comm, folder):
    """Their state can't be saved. Rows are unchanged."""
    augmented = lambda: channel(hvdata, "known").map(lambda x, y: (x, y + tf.random.uniform(tf.shape(y))))
    backup = lambda: hvdata.callbacks.BackupAndRestore(folder, save_freq=2)
    one = results(comm, lambda: fit(augmented(), [backup()], stop=7, epochs=1))
    two = results(comm, lambda: fit(augmented(), [backup()], epochs=1))
    rows = sum((step for rank in range(comm.size) for step in one[rank][1][:6] + two[rank][1]), [])
    assert sorted(rows) == list(range(STEPS * ROWS))


@pytest.mark.parametrize("rank", ["first", "last"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"),
                                   tf.errors.ResourceExhaustedError(None, None, "No space left on device")])  # fmt: skip
def test_a_disk_that_is_full(hvdata, comm, folder, monkeypatch, capfd, rank, error):
    """The set is not used, and a log line says so. The job goes on, and a later set is saved."""
    from horovod_data.backup.sets import Sets

    real = Sets.sync

    def full(self, number, part):
        if number in (2, 3) and part == (0 if rank == "first" else comm.size - 1):
            raise error
        return real(self, number, part)

    monkeypatch.setattr(Sets, "sync", full)
    backup = hvdata.callbacks.BackupAndRestore(folder, save_freq=2)
    rows = results(comm, lambda: fit(channel(hvdata, "known"), [backup], stop=5)[1])
    assert all(len(of_rank) == 5 for of_rank in rows)
    assert os.listdir(folder) == ["set-00000001"]
    text = written(comm, capfd, "no set was saved, and the job goes on with the set before")
    assert text.count("BackupAndRestore: no set was saved") == 1 and "No space left on device" in text
    # Steps 3 to 6. A lost process of the first job may still write the set 2, so this job does not.
    results(comm, lambda: fit(channel(hvdata, "known"), [backup], stop=4))
    assert sorted(os.listdir(folder)) == ["set-00000001", "set-00000004"]


@pytest.mark.world(np=2)
def test_a_directory_that_can_only_be_read(hvdata, comm, folder, monkeypatch, capfd):
    """The job trains all the same."""
    from horovod_data.backup import together

    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(together, "open", refuse, raising=False)
    monkeypatch.setattr(together.Sets, "folder", refuse)
    backup = hvdata.callbacks.BackupAndRestore(folder, save_freq=5)
    rows = results(comm, lambda: fit(channel(hvdata, "known"), [backup], epochs=1)[1])
    assert all(len(of_rank) == STEPS for of_rank in rows)
    text = written(comm, capfd, "no set was saved")
    assert "no set can be saved in" in text and "Read-only file system" in text


@pytest.mark.world(np=2)
def test_training_goes_on_while_a_set_is_written(hvdata, comm, folder, monkeypatch):
    """The set has the values of its step."""
    from horovod_data.backup.sets import Sets

    real, go_on = Sets.folder, threading.Event()

    def slow(self, number, part):
        assert number > 1 or go_on.wait(60)
        return real(self, number, part)

    def step(steps):
        if steps == 5:
            assert not os.path.exists(f"{folder}/set-00000001")
            go_on.set()

    monkeypatch.setattr(Sets, "folder", slow)
    backup = lambda: hvdata.callbacks.BackupAndRestore(folder, save_freq=3)
    one = results(comm, lambda: fit(channel(hvdata, "known"), [Calls(step), backup()], stop=5, epochs=1))
    two = results(comm, lambda: fit(channel(hvdata, "known"), [backup()], epochs=1))
    whole = results(comm, lambda: fit(channel(hvdata, "known"), [], epochs=1))
    for rank in range(comm.size):
        assert one[rank][1][:3] + two[rank][1] == whole[rank][1]
        for ours, theirs in zip(two[0][2], whole[0][2]):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.world(np=1)
@pytest.mark.ranks(1)
def test_values_are_those_of_the_snapshot(hvdata, tmp_path):
    from horovod_data.native import tensorflow_private as private

    dense, table, number_of = tf.Variable([1.0, 2.0]), tf.Variable(tf.zeros([3, 2])), tf.Variable(7)
    table.scatter_add(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1])))
    before = [dense.numpy().tolist(), table.numpy().tolist()]
    checkpoint = tf.train.Checkpoint(dense=dense, table=table, number=number_of)
    write = private.snapshot(checkpoint)
    dense.assign_add([1.0, 1.0])
    table.scatter_add(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([2])))
    number_of.assign(8)
    write(str(tmp_path / "model"))
    checkpoint.read(str(tmp_path / "model")).assert_consumed()
    assert [dense.numpy().tolist(), table.numpy().tolist()] == before and int(number_of) == 7


class SavesItself(tf.Module):
    def __init__(self):
        super().__init__()
        self.number = tf.Variable(1)


def saves(trackables, file_prefix):
    (one,) = trackables.values()
    tf.raw_ops.SaveV2(prefix=file_prefix, tensor_names=["number"], shape_and_slices=[""], tensors=[one.number])
    return file_prefix


def restores(trackables, merged_prefix):
    (one,) = trackables.values()
    one.number.assign(
        tf.raw_ops.RestoreV2(prefix=merged_prefix, tensor_names=["number"], shape_and_slices=[""], dtypes=[tf.int32])[0]
    )


@pytest.mark.world(np=1)
@pytest.mark.ranks(1)
def test_an_object_with_a_saver_of_its_own(hvdata, tmp_path):
    """The object's own saver runs at the snapshot."""
    from tensorflow.python.saved_model.registration import register_checkpoint_saver

    from horovod_data.native import tensorflow_private as private

    register_checkpoint_saver(
        name="of_a_test", predicate=lambda one: isinstance(one, SavesItself), save_fn=saves, restore_fn=restores
    )
    one, other = SavesItself(), tf.Variable(2)
    checkpoint = tf.train.Checkpoint(one=one, other=other)
    write = private.snapshot(checkpoint)
    one.number.assign(0)
    other.assign(0)
    (tmp_path / "part").mkdir()
    write(str(tmp_path / "part" / "model"))
    checkpoint.read(str(tmp_path / "part" / "model"))
    assert (int(one.number), int(other)) == (1, 2)
    assert all(name.startswith("model") for name in os.listdir(tmp_path / "part"))


class Calls(tf.keras.callbacks.Callback):
    """Calls a function with the number of steps after each of them, and at the end of each epoch."""

    def __init__(self, step=lambda steps: None, epoch=lambda callback: None):
        super().__init__()
        self.step, self.epoch, self.steps = step, epoch, 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        self.step(self.steps)

    def on_epoch_end(self, epoch, logs=None):
        self.epoch(self)


@pytest.fixture
def usr1():
    """Sends SIGUSR1 to this process, whose handlers are restored at the end."""
    theirs = [(number, signal.getsignal(number)) for number in (signal.SIGUSR1, signal.SIGTERM)]
    yield lambda: os.kill(os.getpid(), signal.SIGUSR1)
    for number, handler in theirs:
        signal.signal(number, handler)


def left(call):
    """The status with which a call exits. Or its result."""
    try:
        return call()
    except SystemExit as error:
        return error.code


@pytest.mark.world(np=2)
@pytest.mark.parametrize("first, at", [(True, STEPS - 1), (False, STEPS - 2), (True, STEPS)])
def test_a_signal_and_an_early_end(hvdata, comm, folder, usr1, monkeypatch, first, at):
    """fit() ends as without the signal, whichever callback comes first. The next fit() of the program leaves.

    The ranks decide in the last step of the epoch, or have not decided when it ends.
    """
    monkeypatch.setattr("horovod_data.backup.leaving._EXCHANGE_SECONDS", 0.0)

    def step(steps):
        if steps == at:
            usr1()

    def ends(callback):
        callback.model.stop_training = True

    def two_fits():
        ds = channel(hvdata, "known")
        backup = hvdata.callbacks.BackupAndRestore(folder, save_freq=100)
        both = [Calls(step, ends), backup] if first else [backup, Calls(step, ends)]
        rows = left(lambda: len(fit(ds, both)[1]))
        again = hvdata.callbacks.BackupAndRestore(folder + "-2", save_freq=100)
        return rows, left(lambda: fit(ds, [again]))

    assert results(comm, two_fits) == [(STEPS, 75)] * comm.size


@pytest.mark.world(np=2)
def test_after_the_end_under_the_launcher(hvdata, comm, folder, monkeypatch):
    """The sets stay. The next attempt makes no step. A second fit() in the directory is refused."""
    from horovod_data.backup import together

    monkeypatch.setenv("HOROVOD_DATA_ATTEMPT", "1")
    monkeypatch.setenv("HOROVOD_DATA_STATE", folder)
    callback = lambda: hvdata.callbacks.BackupAndRestore(save_freq=100)
    # A model of Keras 2 gets its variables in the first step otherwise, and the next attempt makes none.
    job = lambda: fit(channel(hvdata, "known"), [callback()], epochs=2, built=True)
    one = results(comm, job)
    raises_everywhere(comm, job, ValueError, "training 1 of the program .* has saved .* and this is training 2. Give")
    monkeypatch.setattr(together, "_ended", together.collections.Counter())  # another process
    two = results(comm, job)
    for rank in range(comm.size):
        assert len(one[rank][1]) == 2 * STEPS and two[rank][1] == []
        for ours, theirs in zip(two[rank][2], one[0][2]):
            np.testing.assert_array_equal(ours, theirs)
    assert os.path.exists(folder)


@pytest.mark.world(np=2)
def test_two_fits_with_one_directory(hvdata, comm, folder, monkeypatch):
    """The second fit() was broken off. The first fit() of the next job must not resume from that set."""
    from horovod_data.backup import together

    job = lambda stop: fit(channel(hvdata, "known"), [hvdata.callbacks.BackupAndRestore(folder, 2)], stop, epochs=1)
    results(comm, lambda: (job(None), job(5)))
    monkeypatch.setattr(together, "_ended", together.collections.Counter())  # another process
    raises_everywhere(comm, lambda: job(None), ValueError, "training 2 of the program .* and this is training 1. Give")


@pytest.mark.world(np=2)
def test_ranks_with_other_numbers_of_steps(hvdata, comm, folder, monkeypatch):
    """The slow rank ends its epoch before the step at which the fast rank would wait for its exchange."""
    monkeypatch.setattr("horovod_data.backup.leaving._EXCHANGE_SECONDS", 1e9)
    monkeypatch.setattr("horovod_data.backup.leaving._MOST_STEPS", 4)
    data = lambda: pipeline("known").repeat(2).take(14)

    def job():
        ds = hvdata.distribute_dataset(data, batch="per_rank", schedule="dynamic", prefetch=1)
        backup = hvdata.callbacks.BackupAndRestore(folder)
        return len(fit(ds, [Calls(lambda _: time.sleep(0.3 * comm.rank)), backup], epochs=1)[1])

    assert sum(results(comm, job)) == 14


@pytest.mark.world(np=1)
@pytest.mark.ranks(1)
def test_handlers_after_an_error(hvdata, comm, folder, usr1):
    before = signal.getsignal(signal.SIGTERM)

    class Wrong(Model):
        def train_step(self, data):
            raise Broken

    model = Wrong()
    model(np.zeros((1, 1), np.float32))
    model.compile("sgd", "mse", run_eagerly=True)
    with pytest.raises(Broken):
        model.fit(channel(hvdata, "known"), verbose=0, callbacks=[hvdata.callbacks.BackupAndRestore(folder)])
    assert signal.getsignal(signal.SIGTERM) == before


class Other(tf.keras.Model):
    """Has another variable than Model."""

    def __init__(self):
        super().__init__()
        self.other = tf.keras.layers.Dense(1, name="other")

    def call(self, x):
        return self.other(x)


@pytest.mark.world(np=2)
def test_errors_of_a_fit(hvdata, comm, folder, several):
    """All ranks raise the error of one."""
    backup = lambda: hvdata.callbacks.BackupAndRestore(folder, save_freq=3)
    results(comm, lambda: fit(channel(hvdata, "known"), [backup()], stop=7))

    def other():
        model = Other()
        model(np.zeros((1, 1), np.float32))
        model.compile("sgd", "mse")
        model.fit(channel(hvdata, "known"), callbacks=[backup()], verbose=0)

    raises_everywhere(comm, other, ValueError, "has restored another model than this one: .*Use the same model")

    def other_on_rank_1():
        return other() if comm.rank == 1 else fit(channel(hvdata, "known"), [backup()])

    raises_everywhere(comm, other_on_rank_1, ValueError, r"^\[rank 1 on .*another model than this one")

    def arguments_differ():
        mine = hvdata.callbacks.BackupAndRestore(folder + "-steps", save_freq=2 + comm.rank)
        fit(channel(hvdata, "known"), [mine], epochs=1)

    disagree = (
        r"the ranks disagree in BackupAndRestore\(\): keep 2, save_freq 2, .* on rank 0; .*save_freq 3, .* on rank 1"
    )
    raises_everywhere(comm, arguments_differ, ValueError, disagree, "Pass the same arguments on every rank")

    def steps_differ():
        mine = hvdata.callbacks.BackupAndRestore(folder + "-steps", save_freq=2)
        first = 1 if comm.rank == 1 else 0
        fit(channel(hvdata, "known"), [mine], epochs=2, initial_epoch=first)

    steps = "save at different steps: rank 0 at epoch 0, step 2,.* rank 1 at epoch 1, step 2"
    raises_everywhere(comm, steps_differ, ValueError, steps)

    def not_shared():
        mine = hvdata.callbacks.BackupAndRestore(f"{folder}-of-{comm.rank}")
        fit(channel(hvdata, "known"), [mine], epochs=1)

    raises_everywhere(
        comm, not_shared, RuntimeError, "rank 1 does not see the directory .*-of-0 of rank 0. .*that all ranks share"
    )

    def damaged():
        fit(channel(hvdata, "known"), [hvdata.callbacks.BackupAndRestore(folder + "-damaged", save_freq=2)])

    kept = hvdata.callbacks.BackupAndRestore(folder + "-damaged", save_freq=4, delete_checkpoint=False)
    results(comm, lambda: fit(channel(hvdata, "known"), [kept], stop=5))
    comm.barrier()
    if comm.rank == 0:
        path = Path(folder + "-damaged", "set-00000001", "part-0", "iterator")
        state = bytearray(path.read_bytes())
        state[len(state) // 2] ^= 0x55
        path.write_bytes(state)
    comm.barrier()
    raises_everywhere(comm, damaged, ValueError, "part-0/iterator, which is damaged. Remove this set")

    def a_file():
        fit(channel(hvdata, "known"), [hvdata.callbacks.BackupAndRestore(__file__)])

    raises_everywhere(
        comm, a_file, OSError, "can't read the directory .*test_backup.py: .*Not a directory: .*Use a directory of"
    )

    def another_shape():
        model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1, use_bias=False)])
        model.compile("sgd", "mse")
        wide = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(2, use_bias=False)])
        wide.compile("sgd", "mse")
        ds, name = channel(hvdata, "known"), folder + "-shape"
        model.fit(ds, verbose=0, callbacks=[hvdata.callbacks.BackupAndRestore(name, delete_checkpoint=False)])
        comm.barrier()
        wide.fit(ds, verbose=0, epochs=2, callbacks=[hvdata.callbacks.BackupAndRestore(name)])

    raises_everywhere(comm, another_shape, ValueError, "has restored another model than this one: .*Use the same model")

    def mixed():
        source = tf.data.Dataset.from_generator(lambda: iter(range(9)), output_signature=tf.TensorSpec([], tf.int64))
        both = tf.data.Dataset.zip((channel(hvdata, "known"), source)).map(lambda pair, _: pair)
        fit(both, [hvdata.callbacks.BackupAndRestore(folder + "-mixed", save_freq=2)], epochs=1)

    raises_everywhere(comm, mixed, tf.errors.FailedPreconditionError, "BackupAndRestore failed|stateful")


@pytest.mark.world(np=2)
def test_a_stage_that_buffers_and_other_ranks(hvdata, comm, folder):
    """Here the set's manifest stands for the other job."""
    buffered = lambda: channel(hvdata, "known").prefetch(2)
    backup = hvdata.callbacks.BackupAndRestore(folder, save_freq=2)
    results(comm, lambda: fit(buffered(), [backup], stop=3))
    comm.barrier()
    if comm.rank == 0:
        manifest = Path(folder, "set-00000001", "set.json")
        manifest.write_text(manifest.read_text().replace(f'"ranks": {comm.size}', '"ranks": 7'))
    comm.barrier()
    raises_everywhere(
        comm, lambda: fit(buffered(), [backup]), ValueError,
        f"saved by 7 ranks, and Prefetch behind distribute_dataset.* so {comm.size} ranks can't restore it. Restart with 7",
    )  # fmt: skip


@pytest.mark.world(np=1)
@pytest.mark.ranks(1)
@pytest.mark.parametrize("arguments, text", [
    ({"directory": "x", "save_freq": 0}, 'save_freq must be "epoch" or a number of steps, not 0'),
    ({"directory": "x", "save_freq": "batch"}, "not 'batch'"),
    ({"directory": "x", "save_freq": True}, "not True"),
    ({"directory": "x", "keep": 0}, "keep must be 1 or more sets, not 0"),
    ({"directory": ""}, "was given no directory"),
    ({"directory": 3}, "directory must be a path, not 3"),
    ({}, "Pass a directory that all ranks share, or set HOROVOD_DATA_STATE"),
])  # fmt: skip
def test_wrong_arguments(hvdata, arguments, text):
    with pytest.raises((TypeError, ValueError), match=text):
        hvdata.callbacks.BackupAndRestore(**arguments)


@pytest.mark.world(np=2)
def test_the_directory_of_the_environment(hvdata, comm, folder, monkeypatch):
    monkeypatch.setenv("HOROVOD_DATA_STATE", folder)
    backup = hvdata.callbacks.BackupAndRestore(save_freq=5)
    got = outcomes(comm, lambda: fit(channel(hvdata, "known"), [backup], stop=6))
    assert all(isinstance(one, tuple) and len(one[1]) == 6 for one in got), got
    assert os.listdir(folder) == ["set-00000001"]
