# SPDX-License-Identifier: Apache-2.0
"""Jobs with callbacks.BackupAndRestore that are killed, and go on as other jobs, also with other numbers of ranks."""

import json
import os

import pytest
from jobs import run_program

ROWS, EPOCHS, OFTEN = 480, 2, 5

PROGRAM = """
folder, batch, killed_in_write, stop = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
rows_of_batch = 48 if batch == "global" else 12
make = lambda: (tf.data.Dataset.range(480).shuffle(480, seed=5)
                .map(lambda i: (tf.cast([i], tf.float32), tf.cast([i], tf.float32))).batch(rows_of_batch))
ds = train(make, batch=batch, remainder="partial", verify=True)
hvdata.serve()

class Model(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.unit = tf.keras.layers.Dense(1, use_bias=False)

    def call(self, x):
        return self.unit(x)

    def train_step(self, data):
        say("rows", json.dumps([int(row) for row in data[0].numpy()[:, 0]]))
        return super().train_step(data)

class Killed(tf.keras.callbacks.Callback):
    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        say("step", batch)

    def on_train_batch_begin(self, batch, logs=None):
        if self.steps == stop and rank == size - 1:
            together.wait()  # the last set is whole
            os.kill(os.getpid(), signal.SIGKILL)
        self.steps += 1

from horovod_data.backup import together

if killed_in_write:
    rename = os.rename

    def killed_rename(old, new):
        if new.endswith(f"set-{killed_in_write:08}"):
            os.kill(os.getpid(), signal.SIGKILL)
        rename(old, new)

    os.rename = killed_rename

model = Model()
model(np.zeros((1, 1), np.float32))
model.compile("sgd", "mse", run_eagerly=True)
model.optimizer.learning_rate.assign(1e-7)
model.fit(ds, epochs=2, verbose=0, callbacks=[hvdata.callbacks.BackupAndRestore(folder, save_freq=5), Killed()])
"""


def run(folder, np, batch="global", killed_in_write=0, stop=-1):
    """The rows of each step, by rank; and Keras' numbers of the steps of rank 0."""
    dies = killed_in_write or stop >= 0
    job = run_program(PROGRAM, np, str(folder), batch, str(killed_in_write), str(stop), status=None)
    assert (job.returncode == 0) == (not dies), job.describe()
    lines = [text.splitlines() for text in job.stdout]
    rows = [[json.loads(line[5:]) for line in each if line.startswith("rows ")] for each in lines]
    return rows, [int(line[5:]) for line in lines[0] if line.startswith("step ")]


def all_once(one, saved, two):
    """Whether each epoch of both runs has trained each row once. The first run counts up to its set after `saved`
    steps."""
    rows = [row for rank in one for step in rank[:saved] for row in step]
    rows += [row for rank in two for step in rank for row in step]
    return sorted(rows) == sorted(list(range(ROWS)) * EPOCHS)


@pytest.mark.parametrize("batch, before, after, first, of_epoch", [
    ("global", 4, 3, range(5, 10), 10), ("global", 3, 4, range(5, 10), 10),
    ("per_rank", 4, 3, range(6, 13), 14),  # 5 steps of 4 batches are 6 steps of 3 and a rest
    ("per_rank", 1, 2, range(2, 20), 20),
])  # fmt: skip
def test_a_killed_job_goes_on_with_other_ranks(tmp_path, batch, before, after, first, of_epoch):
    """`first`: Keras' numbers of the steps of the resumed epoch. `of_epoch`: the steps of a whole one."""
    one, _ = run(tmp_path / "sets", before, batch, stop=OFTEN + 2)
    two, steps = run(tmp_path / "sets", after, batch)
    assert all_once(one, OFTEN, two), (one, two)
    assert steps == [*first, *range(of_epoch)]
    assert not os.path.exists(tmp_path / "sets")


def test_a_job_that_was_killed_in_the_middle_of_a_write(tmp_path):
    """All parts of the second set are there. It was not made current, so the job goes on with the first."""
    one, _ = run(tmp_path / "sets", 2, killed_in_write=2)
    assert sorted(os.listdir(tmp_path / "sets")) == ["set-00000001", "set-00000002.writing"]
    two, steps = run(tmp_path / "sets", 2)
    assert all_once(one, OFTEN, two)
    assert steps == [*range(5, 10), *range(10)]


ENDS_EARLY = """
from horovod_data.backup import sets, together

folder, end = sys.argv[1:]
together.EXIT_SECONDS, make_folder = 0.1, sets.Sets.folder

def slow(self, number, part):
    time.sleep(1.5)
    return make_folder(self, number, part)

sets.Sets.folder = slow
data = hvdata.loader(lambda epoch: [np.arange(4)] * 20, batch="global")
try:
    try:
        with hvdata.Backup(folder, every=3, seconds=None) as backup:
            for batch in backup.steps(data):
                if backup.step == 3:
                    raise InterruptedError
    except InterruptedError:
        if end == "error":
            raise
        if end == "shutdown during an exit":
            sys.exit(0)
finally:
    if end != "exit":
        hvdata.shutdown()
"""


@pytest.mark.commit("exit")
@pytest.mark.parametrize("end", ["shutdown", "shutdown during an exit", "exit", "error"])
def test_a_job_that_ends_while_a_set_is_written(tmp_path, end):
    """An end without an error waits for the set. After an error a line says that the set is lost."""
    job = run_program(ENDS_EARLY, 2, str(tmp_path / "sets"), end, status=None)
    assert (job.returncode == 0) == (end != "error"), job.describe()
    assert os.path.exists(tmp_path / "sets" / "set-00000001") == (end != "error"), job.describe()
    lost = [text.count("the set that is being written is lost") for text in job.stderr]
    assert lost == [int(end == "error"), 0], job.describe()
