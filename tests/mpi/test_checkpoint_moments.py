# SPDX-License-Identifier: Apache-2.0
"""Ranks that save at different moments, files of earlier runs, and saves after an error: no element is lost or
comes twice."""

import threading
import time

import pytest
import tensorflow as tf
from checkpoints import rest, restored, save, saved, take
from together import dealt_to_all, generated, numbers, outcomes, raises_everywhere, results

pytestmark = pytest.mark.world(np=2)

STEPS = 10


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("others", ["running", "exhausted"])
def test_who_saves_first_may_be_behind(hvdata, comm, path, others):
    """The reader has pulled everything when the last rank saves. That rank then takes more steps before the others
    save."""
    n, last = STEPS * comm.size, comm.rank == comm.size - 1
    ds = numbers(hvdata, n, prefetch=4, name="moments")
    it = iter(ds)
    results(comm, lambda: take(it, 7 if last else 8))
    time.sleep(0.3)  # until the reader has pulled the rest
    results(comm, lambda: save(it, path) if last else None)
    results(comm, lambda: take(it, 2) if last else rest(it) if others == "exhausted" else None)
    results(comm, lambda: None if last else save(it, path))
    again = restored(comm, ds, path)
    had = [STEPS if others == "exhausted" else 8] * (comm.size - 1) + [7]
    want = [steps[at:] for steps, at in zip(dealt_to_all(comm, range(n)), had)]
    assert results(comm, lambda: rest(again)) == want


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("goes_on", [False, True])
def test_who_saves_before_the_first_step(hvdata, comm, path, goes_on):
    """The last rank saves first. If it takes no step until the others save, their states have all of its shares. If it
    takes steps, the reader has dropped the shares that it knows to be taken, so the states don't belong together."""
    n, last, steps = STEPS * comm.size, comm.rank == comm.size - 1, 8 if goes_on else 3

    def channel(run):  # a channel of its own stands for a process of its own
        return numbers(hvdata, n, prefetch=4, name=f"moments {run}")

    it = iter(channel(1))
    results(comm, lambda: save(it, path) if last else None)
    results(comm, lambda: take(it, steps) if goes_on or not last else None)
    results(comm, lambda: None if last else save(it, path))
    again = restored(comm, channel(2), path)
    if goes_on:
        says = f"that of rank {comm.size - 1} on .* was saved before its first step of the epoch"
        to_do = "Restore a checkpoint that all ranks saved at the same step"
        raises_everywhere(comm, lambda: rest(again), tf.errors.InvalidArgumentError, says, to_do)
    else:
        *others, mine = dealt_to_all(comm, range(n))
        assert results(comm, lambda: rest(again)) == [share[steps:] for share in others] + [mine]


@pytest.mark.ranks(2, 3, 4)
def test_dynamic_twice_in_a_row(hvdata, comm, path):
    """The last rank saved long after the others. When all save again, the reader has not yet skipped all that this rank
    had taken."""
    n, last = 60 * comm.size, comm.rank == comm.size - 1
    ds = numbers(hvdata, n, schedule="dynamic", prefetch=2, name="moments")
    it = iter(ds)
    first = results(comm, lambda: take(it, 2))
    results(comm, lambda: None if last else save(it, path))
    later = results(comm, lambda: take(it, 20))  # the other ranks' later steps are in no state, so they come again
    results(comm, lambda: save(it, path) if last else None)
    again = restored(comm, ds, path)
    second = results(comm, lambda: take(again, 1))
    saved(comm, again, path)
    third = restored(comm, ds, path)
    end = results(comm, lambda: rest(third))
    assert sorted(sum([*first, later[-1], *second, *end], [])) == list(range(n))


@pytest.mark.ranks(2, 3, 4)
def test_states_of_two_runs_of_one_epoch(hvdata, comm, path):
    """The second run was killed while it saved. So one rank has only its file of the run before."""

    def channel(run):  # a channel of its own stands for a process of its own
        return numbers(hvdata, STEPS * comm.size, schedule="dynamic", name=f"moments {run}")

    it = iter(channel(1))
    results(comm, lambda: take(it, 2))
    saved(comm, it, path)
    again = restored(comm, channel(2), path)
    results(comm, lambda: take(again, 2))
    results(comm, lambda: None if comm.rank == comm.size - 1 else save(again, path))
    mixed = restored(comm, channel(3), path)
    raises_everywhere(
        comm, lambda: rest(mixed), tf.errors.InvalidArgumentError, "don't belong together", "channel moments"
    )


def broken(comm, bad):
    """STEPS for each rank. Element `bad` fails."""
    return tf.data.Dataset.range(STEPS * comm.size).map(
        lambda x: tf.debugging.check_numerics(tf.where(tf.equal(x, bad), float("nan"), 1.0), "broken")
    )


@pytest.mark.parametrize("schedule", ["static", "dynamic"])
def test_after_an_error_there_is_nothing_to_save(hvdata, comm, path, schedule):
    """A save after an error is an error, because a restore would leave out the rest of the epoch."""
    source = broken(comm, STEPS * comm.size // 2)
    ds = hvdata.distribute_dataset(source, batch="per_rank", schedule=schedule, name="moments")
    it = iter(ds)
    raises_everywhere(comm, lambda: rest(it), tf.errors.InvalidArgumentError, "broken")
    says = (
        "channel moments",
        "can't be saved: an error ended it, or it lost a step",
        "Restore the last checkpoint",
    )
    raises_everywhere(comm, lambda: save(it, path), tf.errors.FailedPreconditionError, *says)
    assert outcomes(comm, lambda: next(it, None) is None) == [True] * comm.size


@pytest.mark.parametrize("schedule, batch", [("static", "per_rank"), ("dynamic", "per_rank"), ("static", "global")])
def test_what_has_failed_is_in_no_state(hvdata, comm, path, schedule, batch):
    """The reader has met the error and the ranks have not. A restore would resume after the failed element."""
    # With "dynamic", ranks may have taken elements in place of other ranks.
    source = broken(comm, (STEPS if schedule == "dynamic" else 6) * comm.size - 1)
    if batch == "global":
        source = source.batch(comm.size)
    ds = hvdata.distribute_dataset(source, batch=batch, schedule=schedule, prefetch=STEPS, name="moments")
    it = iter(ds)
    results(comm, lambda: take(it, 4))

    def saves():
        deadline = time.monotonic() + 20  # for the reader to have met it
        while time.monotonic() < deadline:
            save(it, path)
            time.sleep(0.1)

    says = ("channel moments", "can't be saved any more: its pipeline has failed", "Restore the last checkpoint")
    raises_everywhere(comm, saves, tf.errors.FailedPreconditionError, *says)
    raises_everywhere(comm, lambda: rest(it), tf.errors.InvalidArgumentError, "broken")


def test_a_restore_that_takes_long_can_be_left(hvdata, comm, path):
    """A newer iterator's epoch begins before the replay of the older one is done."""
    n, starts = 40 * comm.size, []

    def slow():
        starts.append(None)
        pause = 0.5 if len(starts) == 2 else 0  # in the second run
        for i in range(n):
            time.sleep(pause)
            yield i

    ds = hvdata.distribute_dataset(
        lambda: generated(slow),
        batch="per_rank",
        name="moments",
    )
    it = iter(ds)
    results(comm, lambda: take(it, 36))
    saved(comm, it, path)
    results(comm, lambda: rest(it))
    again, raised = restored(comm, ds, path), []

    def ask():
        try:
            next(again)
        except tf.errors.OpError as error:
            raised.append(str(error))

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(1)
    began = time.monotonic()
    assert results(comm, lambda: rest(iter(ds))) == dealt_to_all(comm, range(n))
    asking.join()
    assert results(comm, lambda: "superseded" in raised[0]) == [True] * comm.size
    assert time.monotonic() - began < 10
