# SPDX-License-Identifier: Apache-2.0
"""Backup: a program's own loop that is broken off, or leaves after a signal, resumes without a difference."""

import multiprocessing
import os
import signal
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from together import on_trainers, raises_everywhere, results, written

pytestmark = [pytest.mark.world(np=3), pytest.mark.ranks(1, 2, 3), pytest.mark.usefixtures("handlers")]


STEPS, ROWS, EPOCHS = 8, 12, 3  # of an epoch; of a step; of a job


class Broken(Exception):
    """Ends a job."""


class Weights:
    """An object like those of PyTorch."""

    def __init__(self):
        self.value = np.zeros(2)

    def state_dict(self):
        return {"value": self.value.copy()}

    def load_state_dict(self, state):
        self.value = state["value"]


def batches():
    return [np.arange(first, first + ROWS) for first in range(0, STEPS * ROWS, ROWS)]


def made(hvdata, kind):
    arguments = {"batch": "global", "remainder": "partial"}
    if kind == "loader":
        return hvdata.loader(lambda epoch: [batch + 1000 * epoch for batch in batches()], **arguments)
    return hvdata.distribute_dataset(lambda: tf.data.Dataset.range(STEPS * ROWS).shuffle(50, seed=5).batch(ROWS), **arguments)  # fmt: skip


def job(hvdata, data, folder, stop=None, count=None, begin=lambda step: None, **arguments):
    """Trains until step `stop`, counted over all epochs: the shares, with their epochs, and the final state."""
    weights, counter, seen = Weights(), tf.Variable(0), []
    try:
        with hvdata.Backup(
            folder, weights=weights, counter=counter, **{"every": 3, "seconds": None, **arguments}
        ) as backup:
            for epoch in backup.epochs(EPOCHS):
                for share in backup.steps(data, count):
                    if backup.step == stop:
                        raise Broken
                    begin(backup.step)
                    assert backup.epoch == epoch and backup.values.get("last", 0) == backup.step
                    seen.append((epoch, np.asarray(share).tolist()))
                    weights.value += 1
                    counter.assign_add(1)
                    backup.values["last"] = backup.step + 1
    except Broken:
        pass
    except SystemExit as error:
        seen.append(error.code)
    return seen, weights.value.tolist(), int(counter.numpy())


@pytest.mark.readers(0, 1)
@pytest.mark.parametrize("kind", ["loader", "tf.data"])
@pytest.mark.parametrize("stop, count", [(2, None), (7, None), (9, None), (10, 5), (13, 5), (22, 10)])
def test_every_row_is_trained_once(hvdata, comm, folder, kind, stop, count):
    """`count` 5: an epoch ends in the middle of the data. 10: it ends in the second pass."""

    def run(**arguments):
        data = made(hvdata, kind)  # also on a dedicated reader
        return on_trainers(hvdata, comm, lambda: job(hvdata, data, count=count, **arguments))

    whole, one, two = run(folder=folder + "-whole"), run(folder=folder, stop=stop), run(folder=folder)
    saved = stop // 3 * 3
    for rank in range(len(whole)):
        assert one[rank][0] == whole[rank][0][:stop]
        assert two[rank][0] == whole[rank][0][saved:]
    steps = EPOCHS * (count or STEPS)
    assert [rest for _, *rest in two] == [[[steps, steps], steps]] * len(two)
    assert not os.path.exists(folder)  # the block has ended


@pytest.mark.parametrize("kind", ["loader", "tf.data"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_on_one_rank(hvdata, comm, folder, kind, number, capfd):
    """All ranks save at the same step and leave. The program's own handler is called."""
    handled = []
    mine = signal.signal(number, lambda *_: handled.append(number))
    try:

        def begin(step):
            if step == 4 and comm.rank == comm.size - 1:
                os.kill(os.getpid(), number)
            time.sleep(0.02)

        data = made(hvdata, kind)
        one = results(comm, lambda: job(hvdata, data, folder, begin=begin, every=None))
        assert [seen[-1] for seen, *_ in one] == [75] * comm.size
        lengths = {len(seen) - 1 for seen, *_ in one}
        assert len(lengths) == 1 and 5 <= min(lengths) < 24, lengths
        assert handled == [number] * (comm.rank == comm.size - 1)
    finally:
        signal.signal(number, mine)
    text = written(comm, capfd, "leave with status 75")
    step = min(lengths)
    assert f"{signal.Signals(number).name} came on rank {comm.size - 1}" in text
    assert f"All ranks have saved a set after step {step} and leave with status 75" in text
    two = results(comm, lambda: job(hvdata, made(hvdata, kind), folder))
    whole = results(comm, lambda: job(hvdata, made(hvdata, kind), folder + "-whole"))
    for rank in range(comm.size):
        assert one[rank][0][:-1] + two[rank][0] == whole[rank][0]


def test_a_signal_and_a_full_disk(hvdata, comm, folder, monkeypatch, capfd):
    """The ranks leave all the same."""
    from horovod_data.backup import together
    from horovod_data.backup.sets import Sets

    def full(self, number, part):
        raise OSError(28, "No space left on device")

    def begin(step):
        if step == 4:
            together.wait()  # the first set is whole
            monkeypatch.setattr(Sets, "sync", full)
            os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.02)

    one = results(comm, lambda: job(hvdata, made(hvdata, "loader"), folder, begin=begin))
    assert [seen[-1] for seen, *_ in one] == [75] * comm.size
    text = written(comm, capfd, "leave with status 75")
    assert "Backup: no set was saved, and the job goes on with the set before" in text
    on = "all ranks" if comm.size > 1 else "rank 0"
    assert f"SIGUSR1 came on {on}. All ranks could not save a set after step" in text
    assert "leave with status 75. The set before counts." in text
    assert os.listdir(folder) == ["set-00000001"]


def test_a_full_disk_and_torch(hvdata, comm, folder, monkeypatch, capfd):
    """torch.save() raises another error while it handles the OSError. The job goes on."""

    def save(said, file):
        try:
            raise OSError(28, "No space left on device")
        finally:
            raise RuntimeError("unexpected pos 64 vs 0")

    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(save=save, Tensor=Broken))
    seen = results(comm, lambda: job(hvdata, made(hvdata, "loader"), folder, stop=5))
    assert [len(mine) for mine, *_ in seen] == [5] * comm.size
    assert "No space left on device" in written(comm, capfd, "no set was saved")


def test_one_channel_at_a_time(hvdata, comm, folder):
    """Otherwise a step would get rows of another dataset."""
    train, valid = made(hvdata, "loader"), made(hvdata, "tf.data")

    def together():
        with hvdata.Backup(folder) as backup:
            return list(zip(backup.steps(train), backup.steps(train)))

    def one_in_another():
        with hvdata.Backup(folder) as backup:
            for _ in backup.steps(train):
                list(backup.steps(valid))

    def dynamic():
        ds = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(9), batch="per_rank", schedule="dynamic")
        with hvdata.Backup(folder) as backup:
            list(backup.steps(ds))

    raises_everywhere(comm, together, RuntimeError, "another steps.. of this Backup has begun.* Use one steps")
    raises_everywhere(
        comm, one_in_another, ValueError, "given the channel .* after .*Use steps.. for the training data"
    )
    raises_everywhere(comm, dynamic, ValueError, 'schedule="dynamic".*Use schedule="static"')


def test_after_the_end_under_the_launcher(hvdata, comm, folder, monkeypatch):
    """The sets stay. The next attempt makes no step, also after a `break`."""
    from horovod_data.backup import together

    def run():
        weights, steps = Weights(), 0
        with hvdata.Backup(every=3, weights=weights) as backup:
            for _ in backup.epochs(EPOCHS):
                for _ in backup.steps(made(hvdata, "loader")):
                    weights.value += 1
                    steps += 1
                break
        return steps, weights.value.tolist()

    monkeypatch.setenv("HOROVOD_DATA_ATTEMPT", "1")
    monkeypatch.setenv("HOROVOD_DATA_STATE", folder)
    assert results(comm, run) == [(STEPS, [STEPS, STEPS])] * comm.size
    monkeypatch.setattr(together, "_ended", together.collections.Counter())  # another process
    assert results(comm, run) == [(0, [STEPS, STEPS])] * comm.size


@pytest.mark.world(np=1)
@pytest.mark.ranks(1)
def test_a_child_can_be_ended(hvdata, folder):
    """The child has the handlers of this process, but no step."""
    from horovod_data.ending import signals

    def status():
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(100,), daemon=True)
        child.start()
        time.sleep(0.1)
        child.terminate()
        child.join(20)
        code = child.exitcode
        child.kill()
        return code

    with hvdata.Backup(folder):
        assert status() == -signal.SIGTERM
    with signals.outlasted([signal.SIGTERM]):
        assert status() == -signal.SIGTERM


def test_a_rank_that_makes_no_step(hvdata, comm, folder, monkeypatch):
    """The error of the wait is not hidden, because the other ranks go on with the exchanges."""
    from horovod_data.backup import leaving

    class Late:
        def __init__(self, *_):
            pass

        def wait(self):
            raise TimeoutError("after HOROVOD_DATA_TIMEOUT")

    monkeypatch.setattr(leaving, "bindings", types.SimpleNamespace(Allgather=Late))
    call = lambda: job(hvdata, made(hvdata, "loader"), folder)
    if comm.size > 1:
        raises_everywhere(comm, call, TimeoutError, "HOROVOD_DATA_TIMEOUT")


def test_by_the_clock(hvdata, comm, folder):
    """The clock of rank 0 decides, for all ranks."""
    data = made(hvdata, "loader")
    arguments = {"every": None, "seconds": 0.2, "begin": lambda step: time.sleep(0.05), "keep": 100}
    results(comm, lambda: job(hvdata, data, folder, stop=20, **arguments))
    assert 2 <= len(os.listdir(folder)) <= 6


def test_errors(hvdata, comm, folder):
    data = made(hvdata, "loader")
    results(comm, lambda: job(hvdata, data, folder, stop=5))

    def other_objects():
        with hvdata.Backup(folder, weights=Weights()) as backup:
            return backup

    text = "can't restore the newest set: the set has counter, weights, and this run weights. Use the same objects"
    raises_everywhere(comm, other_objects, ValueError, text)

    def another_shape():
        with hvdata.Backup(folder, every=3, seconds=None, weights=Weights(), counter=tf.Variable([0, 0])) as backup:
            return backup

    raises_everywhere(comm, another_shape, ValueError, "can't restore the newest set: .*shape")

    results(comm, lambda: job(hvdata, data, folder + "-damaged", stop=5))
    comm.barrier()
    if comm.rank == 0:
        (path,) = Path(folder + "-damaged").glob("set-*/part-0/objects")
        path.write_bytes(b"\xff" * path.stat().st_size)
    comm.barrier()
    text = "can't restore from .*-damaged/set-.*/part-0/objects .*remove this set"
    raises_everywhere(comm, lambda: job(hvdata, data, folder + "-damaged"), ValueError, text)

    def other_steps():
        job(hvdata, data, folder + "-other", every=2 + comm.rank)

    if comm.size > 1:
        raises_everywhere(comm, other_steps, ValueError, r"the ranks disagree in Backup\(\): .*every 3.* on rank 1")


@pytest.mark.world(np=1)
@pytest.mark.ranks(1)
def test_other_data(hvdata, folder):
    with pytest.raises(TypeError, match="steps.. was given a list. Give it a result of distribute_dataset"):
        with hvdata.Backup(folder) as backup:
            next(backup.steps([1, 2]))
