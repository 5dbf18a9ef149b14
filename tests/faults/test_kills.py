# SPDX-License-Identifier: Apache-2.0
"""Jobs with hvdata.Backup that are killed, or leave after a signal, and are started again on other numbers of ranks."""

import contextlib
import json
import signal
import time

import pytest
from jobs import program, run_program, start_job
from killing import same, train_with_kills

pytestmark = pytest.mark.limit(300)


@pytest.mark.commit
def test_two_kills(tmp_path):
    whole = train_with_kills(tmp_path / "whole", [])
    kills = [("step", 4, 0, 50), ("before the rename", 3, 0, 5), ("signal", 4, 2, 3)]
    trained = train_with_kills(tmp_path / "killed", kills)
    assert trained.begun[:3] == [0, 48, 51] and trained.begun[3] > 53
    same(trained, whole)


FIT = """
import horovod.tensorflow.keras as hvd

make = lambda: (tf.data.Dataset.range(4800).shuffle(480, seed=5)
                .map(lambda i: (tf.cast([i], tf.float32), tf.cast([i], tf.float32))).batch(48))
ds = train(make, batch="global", remainder="partial")
hvdata.serve()
model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1, use_bias=False)])
model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1e-7)), "mse")

class Steps(tf.keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_train_batch_end(self, batch, logs=None):
        say("step", self.epoch, batch)
        time.sleep(0.02)

backup = hvdata.callbacks.BackupAndRestore(save_freq=1000)
model.fit(ds, epochs=2, verbose=0, callbacks=[Steps(), backup])
say("stats", hvdata.stats()["attempt"])
"""


def steps_of(job, rank):
    return [tuple(map(int, line.split()[1:])) for line in job.stdout[rank].splitlines() if line.startswith("step ")]


TWICE = """
loader = load([np.zeros(4)] * 1000, batch="global")
with hvdata.Backup(sys.argv[1]) as backup:
    for epoch in backup.epochs(1):
        for share in backup.steps(loader):
            if backup.step == 3 and rank == 1:
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGTERM)  # mpirun may pass on what came already
                say("goes on")
                time.sleep(1.1)
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(60)
"""


def test_a_second_signal_ends_the_process(tmp_path):
    job = run_program(TWICE, 2, str(tmp_path / "sets"), status=None)
    assert job.returncode not in (0, 75) and job.seconds < 40, job.describe()
    job.assert_said("^goes on$", 1)


ATTEMPT = """
for _ in train(lambda: tf.data.Dataset.range(64).batch(4)):
    time.sleep(0.05)
"""


def test_lines_and_files_of_an_attempt(tmp_path):
    """The timeline of the attempt before stays."""
    files = {"HOROVOD_DATA_TIMELINE": str(tmp_path / "trace.json"), "HOROVOD_DATA_REPORT": "1"}
    lines = {"HOROVOD_DATA_PROGRESS": "1", "HOROVOD_DATA_PROGRESS_SECONDS": "0.1"}
    run_program(ATTEMPT, 2, env=files)
    job = run_program(ATTEMPT, 2, env={**files, **lines, "HOROVOD_DATA_ATTEMPT": "2"})
    job.assert_said("^horovod_data: attempt 2, channel train, epoch 1: ", 0)
    job.assert_said("^horovod_data report: attempt 2\nhorovod_data report: channel train", 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace.attempt2.json", "trace.json"]
    for name, attempt in (("trace.json", None), ("trace.attempt2.json", 2)):
        assert json.loads((tmp_path / name).read_text())[0]["args"].get("attempt") == attempt


@pytest.mark.parametrize("readers, number", [(1, "SIGTERM"), (0, "SIGUSR1")])
def test_fit_leaves_after_a_signal(tmp_path, readers, number):
    """Nothing aborts the job. All ranks end with the status. A dedicated reader outlasts the signal, and ends, too."""
    env = {"HOROVOD_DATA_STATE": str(tmp_path)}
    with start_job(program(FIT), 2, readers=readers, env=env) as job:
        job.wait_for("step 0 20", rank=0)
        if readers:
            job.kill_rank(2, getattr(signal, number))
            job.wait_for("SIGTERM came on this reader, which serves until all trainers have ended", rank=2)
        job.kill_rank(1, getattr(signal, number))
        while number == "SIGUSR1" and job.alive(1):  # a repeated signal changes nothing
            with contextlib.suppress(ProcessLookupError):
                job.kill_rank(1, signal.SIGUSR1)
            time.sleep(0.05)
        assert job.finish() == 75, job.describe()
    text = job.describe()
    assert f"{number} came on rank 1" in text and "leave with status 75" in text and "MPI_ABORT" not in text, text
    one = steps_of(job, 0)
    assert one == steps_of(job, 1) and one[-1][0] == 0
    two = run_program(FIT, 2, readers=readers, env={**env, "HOROVOD_DATA_ATTEMPT": "2"})
    assert one + steps_of(two, 0) == [(epoch, batch) for epoch in range(2) for batch in range(100)]
    two.assert_said("^stats 2$", 0)
