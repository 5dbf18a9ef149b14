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
from together import generated, on_trainers, raises_everywhere, results, written

pytestmark = [pytest.mark.world(np=3), pytest.mark.ranks(1, 2, 3, 4)]

STEPS, ROWS = 10, 12  # of an epoch; of a step
KERAS_3 = not hasattr(tf.keras.Model, "_maybe_load_initial_counters_from_ckpt")


class Broken(Exception):
    """Ends a job."""


class Model(tf.keras.Model):
    """Notes the rows of each step."""

    def __init__(self, units=1, use_bias=False):
        super().__init__()
        self.unit = tf.keras.layers.Dense(units, use_bias=use_bias, kernel_initializer="zeros")
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


def fit(ds, callbacks, stop=None, epochs=3, together=1, built=KERAS_3, make=Model, **arguments):
    """Runs fit() until its end, or until it is broken off: the numbers, the rows, and the final variables.

    `built`: before fit(). With Keras 3 the callback needs it.
    """
    model = make()
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


def backed_up(hvdata, folder, data=None, stop=None, before=(), callback={}, **how):
    """fit() with a backup. `callback` has its arguments: it saves every 2 steps, unless they say something else."""
    backup = hvdata.callbacks.BackupAndRestore(folder, **{"save_freq": 2, **callback})
    return fit(channel(hvdata, "known") if data is None else data, [*before, backup], stop, **how)


def another_process(monkeypatch):
    """The next fit() is the first training of its program."""
    from horovod_data.backup import together

    monkeypatch.setattr(together, "_ended", together.collections.Counter())


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
    job = lambda stop: results(comm, lambda: backed_up(hvdata, folder, augmented(), stop, epochs=1))
    rows = sum((step for one, two in zip(job(7), job(None)) for step in one[1][:6] + two[1]), [])
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
    rows = results(comm, lambda: backed_up(hvdata, folder, stop=5)[1])
    assert all(len(of_rank) == 5 for of_rank in rows)
    assert os.listdir(folder) == ["set-00000001"]
    text = written(comm, capfd, "no set was saved, and the job goes on with the set before")
    assert text.count("BackupAndRestore: no set was saved") == 1 and "No space left on device" in text
    # Steps 3 to 6. A lost process of the first job may still write the set 2, so this job does not.
    results(comm, lambda: backed_up(hvdata, folder, stop=4))
    assert sorted(os.listdir(folder)) == ["set-00000001", "set-00000004"]


@pytest.mark.world(np=2)
def test_a_directory_that_can_only_be_read(hvdata, comm, folder, monkeypatch, capfd):
    """The job trains all the same."""
    from horovod_data.backup import together

    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(together, "open", refuse, raising=False)
    monkeypatch.setattr(together.Sets, "folder", refuse)
    assert {len(rows) for _, rows, _ in results(comm, lambda: backed_up(hvdata, folder, epochs=1))} == {STEPS}
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
    how = {"callback": {"save_freq": 3}, "epochs": 1}
    one = results(comm, lambda: backed_up(hvdata, folder, stop=5, before=[Calls(step)], **how))
    two = results(comm, lambda: backed_up(hvdata, folder, **how))
    whole = results(comm, lambda: fit(channel(hvdata, "known"), [], epochs=1))
    for rank in range(comm.size):
        assert one[rank][1][:3] + two[rank][1] == whole[rank][1]
        for ours, theirs in zip(two[0][2], whole[0][2]):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


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


def left(call):
    """The status with which a call exits. Or its result."""
    try:
        return call()
    except SystemExit as error:
        return error.code


@pytest.mark.world(np=2)
@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("first, at", [(True, STEPS - 1), (False, STEPS - 2), (True, STEPS)])
def test_a_signal_and_an_early_end(hvdata, comm, folder, monkeypatch, first, at):
    """fit() ends as without the signal, whichever callback comes first. The next fit() of the program leaves.

    The ranks decide in the last step of the epoch, or have not decided when it ends.
    """
    monkeypatch.setattr("horovod_data.backup.leaving._EXCHANGE_SECONDS", 0.0)

    def step(steps):
        if steps == at:
            os.kill(os.getpid(), signal.SIGUSR1)

    def ends(callback):
        callback.model.stop_training = True

    def two_fits():
        ds = channel(hvdata, "known")
        backup = hvdata.callbacks.BackupAndRestore(folder, save_freq=100)
        both = [Calls(step, ends), backup] if first else [backup, Calls(step, ends)]
        rows = left(lambda: len(fit(ds, both)[1]))
        return rows, left(lambda: backed_up(hvdata, folder + "-2", ds, callback={"save_freq": 100}))

    assert results(comm, two_fits) == [(STEPS, 75)] * comm.size


@pytest.mark.world(np=2)
def test_after_the_end_under_the_launcher(hvdata, comm, folder, monkeypatch):
    """The sets stay. The next attempt makes no step. A second fit() in the directory is refused."""
    monkeypatch.setenv("HOROVOD_DATA_ATTEMPT", "1")
    monkeypatch.setenv("HOROVOD_DATA_STATE", folder)
    # A model of Keras 2 gets its variables in the first step otherwise, and the next attempt makes none.
    job = lambda: backed_up(hvdata, None, callback={"save_freq": 100}, epochs=2, built=True)
    one = results(comm, job)
    raises_everywhere(comm, job, ValueError, "training 1 of the program .* has saved .* and this is training 2. Give")
    another_process(monkeypatch)
    two = results(comm, job)
    for rank in range(comm.size):
        assert len(one[rank][1]) == 2 * STEPS and two[rank][1] == []
        for ours, theirs in zip(two[rank][2], one[0][2]):
            np.testing.assert_array_equal(ours, theirs)
    assert os.path.exists(folder)
    # The second fit() was broken off. The first fit() of the next job must not resume from that set.
    job = lambda stop: backed_up(hvdata, folder + "-2", stop=stop, epochs=1)
    monkeypatch.delenv("HOROVOD_DATA_ATTEMPT")
    another_process(monkeypatch)
    results(comm, lambda: (job(None), job(5)))
    another_process(monkeypatch)
    raises_everywhere(comm, lambda: job(None), ValueError, "training 2 of the program .* and this is training 1. Give")


@pytest.mark.world(np=2)
def test_ranks_with_other_numbers_of_steps(hvdata, comm, folder, monkeypatch):
    """The slow rank ends its epoch before the step at which the fast rank would wait for its exchange."""
    monkeypatch.setattr("horovod_data.backup.leaving._EXCHANGE_SECONDS", 1e9)
    monkeypatch.setattr("horovod_data.backup.leaving._MOST_STEPS", 4)
    data = lambda: pipeline("known").repeat(2).take(14)

    def job():
        ds = hvdata.distribute_dataset(data, batch="per_rank", schedule="dynamic", prefetch=1)
        slow = Calls(lambda _: time.sleep(0.3 * comm.rank))
        return len(backed_up(hvdata, folder, ds, before=[slow], callback={"save_freq": "epoch"}, epochs=1)[1])

    assert sum(results(comm, job)) == 14


class Wrong(Model):
    def train_step(self, data):
        raise ValueError("no step")


@pytest.mark.world(np=1)
@pytest.mark.ranks(1)
@pytest.mark.usefixtures("handlers")
def test_handlers_after_an_error(hvdata, comm, folder):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ValueError, match="no step"):
        backed_up(hvdata, folder, make=Wrong)
    assert signal.getsignal(signal.SIGTERM) == before


def mixed(hvdata):
    """The channel, beside a source whose state can't be saved."""
    both = tf.data.Dataset.zip((channel(hvdata, "known"), generated(lambda: iter(range(9)))))
    return both.map(lambda pair, _: pair)


OTHER = "has restored another model than this one: .*Use the same model"
# What is wrong in the job that goes on: how it calls backed_up(hvdata, folder), the error, and its text. Keras 2 finds
# another model only if it is built.
ERRORS = {
    "another variable": (lambda *_: {"make": lambda: Model(use_bias=True), "built": True}, ValueError, OTHER),
    "another shape": (lambda *_: {"make": lambda: Model(units=2), "built": True}, ValueError, OTHER),
    "on rank 1": (lambda hvdata, rank, folder: {"make": lambda: Model(use_bias=rank == 1), "built": True}, ValueError,
                  r"^\[rank 1 on .*another model than this one"),
    "arguments": (lambda hvdata, rank, folder: {"folder": folder + "-new", "callback": {"save_freq": 2 + rank}}, ValueError,
                  r"the ranks disagree in BackupAndRestore\(\): keep 2, save_freq 2, .* on rank 0; .*save_freq 3, .* on rank 1"
                  ".*Pass the same arguments on every rank"),
    "steps": (lambda hvdata, rank, folder: {"folder": folder + "-new", "initial_epoch": int(rank == 1)}, ValueError,
              "save at different steps: rank 0 at epoch 0, step 2,.* rank 1 at epoch 1, step 2"),
    "not shared": (lambda hvdata, rank, folder: {"folder": f"{folder}-of-{rank}"}, RuntimeError,
                   "rank 1 does not see the directory .*-of-0 of rank 0. .*that all ranks share"),
    "a file": (lambda *_: {"folder": __file__}, OSError,
               "can't read the directory .*test_backup.py: .*Not a directory: .*Use a directory of"),
    "mixed": (lambda hvdata, rank, folder: {"folder": folder + "-new", "data": mixed(hvdata)},
              tf.errors.FailedPreconditionError, "BackupAndRestore failed|stateful"),
}  # fmt: skip


@pytest.mark.world(np=2)
@pytest.mark.parametrize("wrong", ERRORS)
def test_errors_of_a_fit(hvdata, comm, folder, several, wrong):
    """All ranks raise the error of one."""
    how, kind, text = ERRORS[wrong]
    results(comm, lambda: backed_up(hvdata, folder, stop=5))
    call = lambda: backed_up(hvdata, **{"folder": folder, "epochs": 2, **how(hvdata, comm.rank, folder)})
    raises_everywhere(comm, call, kind, text)


@pytest.mark.world(np=2)
@pytest.mark.parametrize("wrong", ["a stage that buffers, and other ranks", "a byte"])
def test_a_set_that_cannot_be_used(hvdata, comm, folder, wrong):
    """The set's manifest stands for the other job."""
    data = lambda: channel(hvdata, "known").prefetch(2) if wrong != "a byte" else channel(hvdata, "known")
    results(comm, lambda: backed_up(hvdata, folder, data(), stop=3))
    comm.barrier()
    if comm.rank == 0 and wrong == "a byte":
        path = Path(folder, "set-00000001", "part-0", "iterator")
        state = bytearray(path.read_bytes())
        state[len(state) // 2] ^= 0x55
        path.write_bytes(state)
    elif comm.rank == 0:
        manifest = Path(folder, "set-00000001", "set.json")
        manifest.write_text(manifest.read_text().replace(f'"ranks": {comm.size}', '"ranks": 7'))
    comm.barrier()
    stage = f"Prefetch behind distribute_dataset.* so {comm.size} ranks can't restore it. Restart with 7"
    says = (
        "part-0/iterator, which is damaged. Remove this set" if wrong == "a byte" else f"saved by 7 ranks, and {stage}"
    )
    raises_everywhere(comm, lambda: backed_up(hvdata, folder, data()), ValueError, says)
