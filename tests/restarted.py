# SPDX-License-Identifier: Apache-2.0
"""A training program for jobs that horovod-data-run starts again, and what such a job must have trained.

write(folder)                      # train.py
run_launcher(
    ..., "--state", str(folder / "state"), sys.executable, str(folder / "train.py"), str(folder), "1:2:7:SIGKILL", "0"
)
check(folder)
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from jobs import Job, program, run_job

STEPS, EPOCHS, OFTEN = 10, 2, 4  # steps of an epoch; steps from one set to the next
RATE = 3e-7  # of the training

# Arguments: a folder, `attempt:rank:step:SIGKILL` for each kill, the seconds for each step, and perhaps "per_rank".
# Steps count over all epochs, and the step `end` comes after fit(). At the step of a set's name, the set is written,
# and does not become current. At another kill the last set is whole. Every rank of an attempt writes its rows of each
# step, and the time, to a file. Rank 0 writes the weight at the end.
_TRAIN = program(
    f"""
folder, kills, seconds, batch = sys.argv[1], sys.argv[2].split(","), float(sys.argv[3]), (*sys.argv[4:], "global")[0]
attempt = os.environ["HOROVOD_DATA_ATTEMPT"]
make = lambda: (tf.data.Dataset.range(480).shuffle(480, seed=5, reshuffle_each_iteration=False)
                .map(lambda i: (tf.cast([i], tf.float32), tf.cast([i], tf.float32))).batch(48 if batch == "global" else 12))
if not os.path.exists(f"{{folder}}/order"):
    order = [int(row) for x, _ in make() for row in x.numpy()[:, 0]]
    with open(f"{{folder}}/order.{{os.getpid()}}", "w") as file:
        file.write(json.dumps(order))
    os.rename(file.name, f"{{folder}}/order")
ds = train(make, batch=batch, remainder="partial")
from mpi4py import MPI
from horovod_data.backup import together
comm = MPI.COMM_WORLD.Split(0 if hvdata.is_trainer() else MPI.UNDEFINED)
hvdata.serve()
def rename(old, new, real=os.rename):
    if f"{{attempt}}:{{rank}}:{{os.path.basename(new)}}:SIGKILL" in kills:
        os.kill(os.getpid(), signal.SIGKILL)
    real(old, new)

os.rename = rename
rows = open(f"{{folder}}/rows.{{attempt}}.{{rank}}", "w", buffering=1)
if rank == 0:
    ticks = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19])
    began = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
    with open(f"{{folder}}/times.{{attempt}}", "w") as file:
        file.write(json.dumps([began, imported, joined]))

class Model(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.unit = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")

    def call(self, x):
        return self.unit(x)

    def train_step(self, data):
        x, y = data
        rows.write(json.dumps([noted.epoch, noted.batch, [int(row) for row in x.numpy()[:, 0]], time.time()]) + "\\n")
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((self(x) - y) ** 2)
        (gradient,) = tape.gradient(loss, self.trainable_variables)
        of_all = comm.allreduce(gradient.numpy()) / 48
        self.optimizer.apply_gradients([(tf.constant(of_all), self.trainable_variables[0])])
        return {{"loss": loss}}

class Noted(tf.keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        self.batch = batch
        time.sleep(seconds)
        for name in "SIGKILL", "SIGSTOP":
            if f"{{attempt}}:{{rank}}:{{self.epoch * {STEPS} + batch}}:{{name}}" in kills:
                together.wait()
                with open(f"{{folder}}/killed.{{attempt}}", "w") as file:
                    file.write(str(time.time()))
                os.kill(os.getpid(), getattr(signal, name))

model, noted = Model(), Noted()
model(np.zeros((1, 1), np.float32))
model.compile("sgd", "mse", run_eagerly=True)
model.optimizer.learning_rate.assign({RATE})
model.fit(ds, epochs={EPOCHS}, verbose=0, callbacks=[hvdata.callbacks.BackupAndRestore(save_freq={OFTEN}), noted])
if rank == 0:
    with open(f"{{folder}}/weight", "w") as file:
        file.write(str(float(model.trainable_variables[0].numpy()[0, 0])))
if f"{{attempt}}:{{rank}}:end:SIGKILL" in kills:
    os.kill(os.getpid(), signal.SIGKILL)
now(f"DONE {{rank}} of {{size}} in attempt {{attempt}}")
""",
    init="imported = time.time()\nhvdata.init()\njoined = time.time()\nrank, size = hvdata.rank(), hvdata.size()\n",
)


def run(folder: Path, attempt: int, np: int, *words: str, status: int | None = 0) -> Job:
    """Runs an attempt as a job of its own, without the launcher."""
    env = {"HOROVOD_DATA_ATTEMPT": str(attempt), "HOROVOD_DATA_STATE": str(folder / "state")}
    return run_job(_TRAIN, np, str(folder), *words, env=env, status=status, timeout=120)


def write(folder: Path) -> list[str]:
    """Writes the program. Returns its words behind Python, with the first argument."""
    (folder / "train.py").write_text(_TRAIN)
    return [str(folder / "train.py"), str(folder)]


def trained(folder: Path, of_epoch: int = STEPS) -> dict[int, dict[int, dict[int, list[int]]]]:
    """The rows by attempt, step over the epochs of so many steps, and rank."""
    found: dict[int, dict[int, dict[int, list[int]]]] = {}
    for path in folder.glob("rows.*"):
        attempt, rank = map(int, path.name.split(".")[1:])
        for line in path.read_text().splitlines():
            epoch, batch, rows, _ = json.loads(line)
            found.setdefault(attempt, {}).setdefault(epoch * of_epoch + batch, {})[rank] = rows
    return found


def check(folder: Path, begun: dict[int, int]) -> None:
    """Asserts that the joined rows of all steps, and the weight, are those of an undisturbed job.

    A step counts in the last attempt that has made it.

    begun: the first step of each attempt.
    """
    attempts = trained(folder)
    assert {attempt: min(steps) for attempt, steps in attempts.items()} == begun
    last = {step: ranks for _, steps in sorted(attempts.items()) for step, ranks in steps.items()}
    assert sorted(last) == list(range(EPOCHS * STEPS))
    rows = [row for _, ranks in sorted(last.items()) for _, share in sorted(ranks.items()) for row in share]
    assert rows == json.loads((folder / "order").read_text()) * EPOCHS
    weight = 0.0
    for batch in np.reshape(np.array(rows, np.float64), (EPOCHS * STEPS, -1)):
        weight -= RATE * np.mean(2 * batch * (weight * batch - batch))
    np.testing.assert_allclose(float((folder / "weight").read_text()), weight, atol=1e-5)
