# SPDX-License-Identifier: Apache-2.0
"""fit() with steps of a given time, with callbacks.BackupAndRestore and without, in turns.

Settings: mib (a list: of the model and its optimizer), milliseconds (of a step), often (steps from one save to the
next), saves (of a round). The step is a sleep, because a step on a GPU leaves the processor free.
"""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf

import horovod_data as hvdata
from ranks.setting import Batch, Job
from ranks.start import finish, in_turns, meet, start


class Sleeping(tf.keras.Model):
    """Has variables, and takes the time of a step."""

    def __init__(self, mib: int, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        # One part is the model's, and one the momentum of the optimizer. Layers are of 1 MiB.
        self.parts = [self.add_weight(name=f"part{i}", shape=[1 << 18], initializer="zeros") for i in range(mib // 2)]
        self.nothing = tf.zeros([1 << 18])
        self.built = True

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        time.sleep(self.seconds)
        return {"loss": tf.zeros([])}  # Keras 3 needs one


class Timed(hvdata.callbacks.BackupAndRestore):
    """Notes how long each save keeps the training, with the time that it adds to the next update of the variables."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.seconds: list[float] = []

    def on_train_batch_end(self, *arguments: Any, **named: Any) -> None:
        began = time.perf_counter()
        super().on_train_batch_end(*arguments, **named)
        if self._since == 0:  # a set has begun
            held = time.perf_counter() - began
            self.seconds.append(held + more(self.model))


def more(model: Sleeping) -> float:
    """The seconds by which an update of all variables takes longer than the next. A set holds variables on rank 0 alone.

    Without a set the updates differ, too, if the ranks share cores.
    """
    first, second = update(model), update(model)
    return max(0.0, first - second)


def update(model: Sleeping) -> float:
    """Updates all variables, which copies those that a set still holds, and returns the seconds."""
    began = time.perf_counter()
    for part in [*model.weights, *model.optimizer.variables]:
        if part.shape == model.nothing.shape:
            part.assign_add(model.nothing)
    return time.perf_counter() - began


def without_saves(model: Sleeping, job: Job, count: int) -> list[float]:
    """What more() finds when no set is saved, that of the slowest rank."""
    found = []
    for _ in range(count):
        meet(job.comm)
        time.sleep(model.seconds)
        found.append(more(model))
    return list(map(max, zip(*job.comm.allgather(found))))


def main() -> None:
    job, given = start()
    results = []
    often = given["often"]
    steps = often * given["saves"] + 1  # a save after the last step would wait for the end of the epoch
    for mib in given["mib"]:
        dataset = hvdata.distribute_dataset(Batch(4 << 10).own, batch="per_rank")
        model = Sleeping(mib, given["milliseconds"] / 1e3)
        model.compile(tf.keras.optimizers.SGD(momentum=0.9), run_eagerly=True)
        model.optimizer.build(model.trainable_variables)
        backups: list[Timed] = []

        def fit() -> None:
            model.fit(dataset, steps_per_epoch=steps, verbose=0)

        def fit_with_backups() -> None:
            backups.append(Timed(f"{given['directory']}/sets", save_freq=often))
            model.fit(dataset, steps_per_epoch=steps, verbose=0, callbacks=backups[-1:])

        fits = in_turns(job, given["rounds"], 1, {"off": fit, "on": fit_with_backups})
        seconds = [each for backup in backups[1:] for each in backup.seconds]  # the first turn warms up
        of_ranks = job.comm.allgather(seconds)
        saves = list(map(max, zip(*of_ranks)))
        more_ways = {"of rank 0": of_ranks[0], "none": without_saves(model, job, len(saves))}
        of_step = {way: [each / steps for each in values] for way, values in fits.items()}
        results.append({"ranks": job.size, "mib": mib, "often": often, **of_step, "saves": saves, **more_ways})
    finish(job, given, results)


if __name__ == "__main__":
    main()
