# SPDX-License-Identifier: Apache-2.0
"""The progress of epochs from constructed numbers. tests/faults/test_progress_jobs.py has whole jobs."""

import pytest

from horovod_data.job import settings
from horovod_data.launcher import options
from horovod_data.observe import times
from horovod_data.observe.progress import display, watch
from horovod_data.observe.progress.epochs import Ended, Epochs, Tally, Total

WAITS = "; rank 0 waits 25 % of the time"


def looks(epochs, *given):
    """What has ended at each look: (epoch, its steps, steps of all epochs, seconds of all). A step has 4 rows.

    Rank 0 waits in a quarter of its time.
    """
    return [
        epochs.look(Tally(epoch, steps, 4 * steps), Total(all_steps, 4 * all_steps, seconds, seconds / 4))
        for epoch, steps, all_steps, seconds in given
    ]


def test_an_epoch_whose_length_is_known():
    epochs = Epochs(expected=1000)
    assert looks(epochs, (0, 0, 0, 0.0), (1, 200, 200, 1.0), (1, 450, 450, 2.0)) == [[], [], []]
    assert epochs.text() == f"epoch 1: 45 %, 450 of 1,000 steps, 900 rows/s on rank 0{WAITS}"
    last, (ended,) = looks(epochs, (1, 1000, 1000, 5.0), (1, 1000, 1000, 5.0))
    assert last == [] and not epochs.under_way
    assert ended.text() == f"epoch 1 ended after 1,000 steps: 4,000 rows on rank 0 in 5.0 s, 800 rows/s{WAITS}"
    assert looks(epochs, (1, 1000, 1000, 5.0)) == [[]], "it ends once"


def test_an_epoch_that_is_left():
    epochs = Epochs(expected=1000)
    *_, (ended,) = looks(epochs, (1, 1, 1, 1.0), (1, 450, 450, 2.0), (1, 450, 450, 2.0))
    assert ended.text() == f"epoch 1 ended after 450 steps of 1,000: 1,800 rows on rank 0 in 2.0 s, 900 rows/s{WAITS}"
    _, (ended,) = looks(epochs, (2, 1, 451, 2.5), (2, 1, 451, 2.5))
    assert ended.text() == f"epoch 2 ended after 1 step of 1,000: 4 rows on rank 0 in 0.5 s, 8 rows/s{WAITS}"


def test_a_length_that_is_not_known():
    """The second epoch is measured by the first, and says so. If it is longer, its end is unknown."""
    epochs = Epochs()
    looks(epochs, (1, 50, 50, 1.0))
    assert epochs.text() == f"epoch 1: 50 steps, 200 rows/s on rank 0{WAITS}"
    looks(epochs, (1, 60, 60, 1.5), (1, 60, 60, 1.5), (2, 20, 80, 2.0), (2, 30, 90, 3.0))
    assert epochs.text() == f"epoch 2: about 50 %, 30 steps (60 in the epoch before), 80 rows/s on rank 0{WAITS}"
    looks(epochs, (2, 61, 121, 4.0))
    assert epochs.text().startswith("epoch 2: 61 steps, ")


def test_epochs_that_follow_at_once():
    """A look finds the next epoch already running. The totals say what the epoch before had since the last look."""
    epochs = Epochs()
    *_, ended = looks(epochs, (1, 40, 40, 1.0), (2, 10, 110, 2.0))
    assert [(one.first, one.last, one.steps, one.rows) for one in ended] == [(1, 1, 100, 400)]
    assert ended[0].seconds == pytest.approx(1 + 60 / 70)
    assert (epochs.number, epochs.steps, epochs.seconds) == (2, 10, pytest.approx(10 / 70))


def test_epochs_between_two_looks():
    epochs = Epochs(expected=3)
    ((ended,),) = looks(epochs, (4, 1, 10, 1.0))
    assert ended == Ended(1, 3, 9, 36, pytest.approx(0.9), pytest.approx(0.225), 3)
    assert ended.text() == f"epochs 1 to 3 ended after 9 steps: 36 rows on rank 0 in 0.9 s, 40 rows/s{WAITS}"
    looks(epochs, (4, 3, 12, 1.2), (4, 3, 12, 1.2))
    ((ended,),) = looks(epochs, (6, 2, 17, 2.0))
    assert (ended.first, ended.last, ended.steps) == (5, 5, 3), "the fourth was over already"


def test_numbers_that_begin_anew():
    """After stats(reset=True) in mid-epoch, and in a new channel of the name."""
    epochs = Epochs()
    assert looks(epochs, (1, 40, 40, 9.0), (1, 50, 5, 0.5)) == [[], []]
    assert (epochs.steps, epochs.seconds) == (50, 9.5)
    looks(epochs, (2, 7, 12, 1.5), (2, 8, 13, 2.0))
    ((ended,),) = looks(epochs, (1, 3, 3, 0.2))
    assert (ended.first, ended.steps) == (2, 8) and (epochs.number, epochs.steps) == (1, 3)


def process(number=1, **channels):
    """The times of rank 0, which reads. Each channel has those of its trainer or of its reader."""
    named = {
        name: {"options": {"number": number}, type(one).__name__.lower(): one, "tally": {}}
        for name, one in channels.items()
    }
    return {"rank": 0, "reader": 0, "channels": named}


def waited(seconds, for_reader=None):
    of = {0: seconds if for_reader is None else for_reader}
    return times.Trainer(0, "a", 1, 4, seconds, 0.0, 0.0, 1, 0, of, window=2)


def dealt(seconds, untaken):
    return times.Reader(0, "a", True, 5, 5, 0.0, seconds, 0.0, 0.0, {0: 0.0}, {0: 0}, untaken)


def test_times_since():
    before = process(a=waited(5), c=dealt(3, 4))

    def since(now):
        (found,) = times.since([now], {(0, 0): before})
        return {name: one.get("trainer") or one["reader"] for name, one in found["channels"].items()}

    found = since(process(a=waited(7), b=dealt(3, 0), c=dealt(4, 1)))
    assert (found["a"].wait, found["a"].waited_for, found["a"].steps, found["a"].window) == (2, {0: 2}, 0, 2)
    assert found["b"] == dealt(3, 0) and (found["c"].deal, found["c"].untaken, found["c"].elements) == (1, 1, 0)
    assert since(process(a=waited(6, 1))) == {"a": waited(6, 1)}, "the times were reset"
    assert since(process(4, a=waited(7))) == {"a": waited(7)}, "a new channel of that name"


# ---- Displays.


def shown(steps, number=2):
    return f"epoch {number}: {steps} steps", steps


def test_lines(capsys):
    """One line every 10 s. A channel that makes no step has one only while no other channel makes one."""
    lines = display.Lines(10.0)
    seconds, trains, valids = [0, 9, 10, 15, 20, 25, 30, 35], [1, 5, 6, 7, 7, 7, 7, 7], [0, 0, 0, 1, 2, 3, 3, 3]
    for at, train, valid in zip(seconds, trains, valids):
        lines.show({"train": shown(train), **({"valid": shown(valid, number=1)} if valid else {})}, at)
    lines.end("train", shown(8)[0])
    assert capsys.readouterr().err.splitlines() == [
        "horovod_data: channel train, epoch 2: 6 steps",
        "horovod_data: channel train, epoch 2: 7 steps",
        "horovod_data: channel valid, epoch 1: 3 steps",
        "horovod_data: channel train, epoch 2: 7 steps",
        "horovod_data: channel valid, epoch 1: 3 steps",
        "horovod_data: channel train, epoch 2: 8 steps",
    ]


# ---- Settings.


def test_off_by_default():
    read = settings.read_settings({})
    assert (read.progress, read.progress_seconds) == (False, 10.0)


def test_the_launcher():
    given = options.parse(["-np", "2", "--progress", "python", "train.py"])
    assert options.extras_of(given, {}, []).environ["HOROVOD_DATA_PROGRESS"] == "1"
    without = options.parse(["-np", "2", "python", "train.py"])
    assert "HOROVOD_DATA_PROGRESS" not in options.extras_of(without, {}, []).environ


def test_a_child_that_forks():
    """A child releases the lock that the fork of its parent held."""
    one = watch.Watch(display.Lines(1.0))
    for _ in range(2):  # a child, and a child of that
        one.before_fork()
        one.after_fork()
        assert one._showing.acquire(timeout=0)
        one._showing.release()
