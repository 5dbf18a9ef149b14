# SPDX-License-Identifier: Apache-2.0
"""Ranks that save at different moments, files of earlier runs, and saves after an error: nothing is lost or comes
twice."""

import threading
import time

import pytest
import tensorflow as tf
from checkpoints import rest, restore, save, take
from together import dealt, outcomes, raises_everywhere, results

pytestmark = pytest.mark.world(np=2)

STEPS = 10


@pytest.fixture
def path(tmp_path):
    """One folder per rank."""
    return str(tmp_path / "iterator")


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("others", ["running", "exhausted"])
def test_who_saves_first_may_be_behind(hvdata, comm, path, others):
    """The reader has pulled everything when the last rank saves. That rank then takes more steps before the others
    save."""
    n, last = STEPS * comm.size, comm.rank == comm.size - 1
    ds = hvdata.distribute_dataset(tf.data.Dataset.range(n), batch="per_rank", prefetch=4, name="moments")
    it = iter(ds)
    results(comm, lambda: take(it, 7 if last else 8))
    time.sleep(0.3)  # for the reader to have pulled the rest
    results(comm, lambda: save(it, path) if last else None)
    results(comm, lambda: take(it, 2) if last else rest(it) if others == "exhausted" else None)
    results(comm, lambda: None if last else save(it, path))
    again = iter(ds)
    results(comm, lambda: restore(again, path))
    had = [STEPS if others == "exhausted" else 8] * (comm.size - 1) + [7]
    assert results(comm, lambda: rest(again)) == [
        dealt(range(n), rank, comm.size)[had[rank] :] for rank in range(comm.size)
    ]


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("goes_on", [False, True])
def test_who_saves_before_the_first_step(hvdata, comm, path, goes_on):
    """What it has not had is in the others' states, but for what the reader has heard that it has taken since: some of the
    eight steps, as the last of them was dealt at most four beyond those it had heard of."""
    n, last, steps = STEPS * comm.size, comm.rank == comm.size - 1, 8 if goes_on else 3

    def first_epoch(run):  # a channel of its own stands for a process of its own
        return iter(
            hvdata.distribute_dataset(tf.data.Dataset.range(n), batch="per_rank", prefetch=4, name=f"moments {run}")
        )

    it = first_epoch(1)
    results(comm, lambda: save(it, path) if last else None)
    results(comm, lambda: take(it, steps) if goes_on or not last else None)
    results(comm, lambda: None if last else save(it, path))
    again = first_epoch(2)
    results(comm, lambda: restore(again, path))
    if goes_on:
        raises_everywhere(
            comm,
            lambda: rest(again),
            tf.errors.InvalidArgumentError,
            f"that of rank {comm.size - 1} on .* was saved before its first step of the epoch",
            "Restore a checkpoint that all ranks saved at the same step",
        )
    else:
        assert results(comm, lambda: rest(again)) == [
            dealt(range(n), rank, comm.size)[0 if rank == comm.size - 1 else steps :] for rank in range(comm.size)
        ]


@pytest.mark.ranks(2, 3, 4)
def test_dynamic_twice_in_a_row(hvdata, comm, path):
    """The last rank saved long after the others. When all save again, the reader has not yet skipped all that this rank
    had taken."""
    n, last = 60 * comm.size, comm.rank == comm.size - 1
    ds = hvdata.distribute_dataset(
        tf.data.Dataset.range(n), batch="per_rank", schedule="dynamic", prefetch=2, name="moments"
    )
    it = iter(ds)
    first = results(comm, lambda: take(it, 2))
    results(comm, lambda: None if last else save(it, path))
    later = results(comm, lambda: take(it, 20))  # of the others': not in their states, so it comes again
    results(comm, lambda: save(it, path) if last else None)
    again = iter(ds)
    results(comm, lambda: restore(again, path))
    second = results(comm, lambda: take(again, 1))
    results(comm, lambda: save(again, path))
    third = iter(ds)
    results(comm, lambda: restore(third, path))
    end = results(comm, lambda: rest(third))
    assert sorted(sum([*first, later[-1], *second, *end], [])) == list(range(n))


@pytest.mark.ranks(2, 3, 4)
def test_states_of_two_runs_of_one_epoch(hvdata, comm, path):
    """The second run was killed while it saved. So one rank has only its file of the run before."""
    n, last = STEPS * comm.size, comm.rank == comm.size - 1

    def first_epoch(run):  # a channel of its own stands for a process of its own
        return iter(
            hvdata.distribute_dataset(
                tf.data.Dataset.range(n), batch="per_rank", schedule="dynamic", name=f"moments {run}"
            )
        )

    it = first_epoch(1)
    results(comm, lambda: take(it, 2))
    results(comm, lambda: save(it, path))
    again = first_epoch(2)
    results(comm, lambda: restore(again, path))
    results(comm, lambda: take(again, 2))
    results(comm, lambda: None if last else save(again, path))
    mixed = first_epoch(3)
    results(comm, lambda: restore(mixed, path))
    raises_everywhere(
        comm, lambda: rest(mixed), tf.errors.InvalidArgumentError, "don't belong together", "channel moments"
    )


@pytest.mark.parametrize("schedule", ["static", "dynamic"])
def test_after_an_error_there_is_nothing_to_save(hvdata, comm, path, schedule):
    """A save after an error is an error, because a restore would leave out the rest of the epoch."""
    n = STEPS * comm.size
    broken = tf.data.Dataset.range(n).map(
        lambda x: tf.debugging.check_numerics(tf.where(x < n // 2, 1.0, float("nan")), "broken")
    )
    ds = hvdata.distribute_dataset(broken, batch="per_rank", schedule=schedule, name="moments")
    it = iter(ds)
    raises_everywhere(comm, lambda: [float(x) for x in it], tf.errors.InvalidArgumentError, "broken")
    raises_everywhere(
        comm,
        lambda: save(it, path),
        tf.errors.FailedPreconditionError,
        "channel moments",
        "can't be saved: it has ended, or lost a step, with an error",
        "from the checkpoint before",
    )
    assert outcomes(comm, lambda: next(it, None) is None) == [True] * comm.size


@pytest.mark.parametrize("schedule, batch", [("static", "per_rank"), ("dynamic", "per_rank"), ("static", "global")])
def test_what_has_failed_is_in_no_state(hvdata, comm, path, schedule, batch):
    """The reader has met the error and the ranks have not. A restore would resume after the failed element."""
    n, bad = STEPS * comm.size, 5 * comm.size + comm.size - 1
    if schedule == "dynamic":  # ranks may have taken what others would have
        bad = n - 1
    broken = tf.data.Dataset.range(n).map(
        lambda x: tf.debugging.check_numerics(tf.where(tf.equal(x, bad), float("nan"), 1.0), "broken")
    )
    if batch == "global":
        broken = broken.batch(comm.size)
    ds = hvdata.distribute_dataset(broken, batch=batch, schedule=schedule, prefetch=STEPS, name="moments")
    it = iter(ds)
    results(comm, lambda: take(it, 4))

    def saves():
        deadline = time.monotonic() + 20  # for the reader to have met it
        while time.monotonic() < deadline:
            save(it, path)
            time.sleep(0.1)

    raises_everywhere(
        comm,
        saves,
        tf.errors.FailedPreconditionError,
        "channel moments",
        "can't be saved any more: its pipeline has failed",
        "from the checkpoint before",
    )
    raises_everywhere(
        comm, lambda: [float(x) if batch == "per_rank" else x for x in it], tf.errors.InvalidArgumentError, "broken"
    )


def test_a_restore_that_takes_long_can_be_left(hvdata, comm, path):
    """A newer iterator's epoch begins before the replay of the older one is done."""
    n, starts = 40 * comm.size, []

    def numbers():
        starts.append(None)
        pause = 0.5 if len(starts) == 2 else 0  # where it is run again
        for i in range(n):
            time.sleep(pause)
            yield i

    ds = hvdata.distribute_dataset(
        lambda: tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([], tf.int64)),
        batch="per_rank",
        name="moments",
    )
    it = iter(ds)
    results(comm, lambda: take(it, 36))
    results(comm, lambda: save(it, path))
    results(comm, lambda: rest(it))
    again, raised = iter(ds), []
    results(comm, lambda: restore(again, path))

    def ask():
        try:
            next(again)
        except tf.errors.OpError as error:
            raised.append(str(error))

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(3)
    began = time.monotonic()
    assert results(comm, lambda: rest(iter(ds))) == [dealt(range(n), rank, comm.size) for rank in range(comm.size)]
    asking.join()
    assert results(comm, lambda: "superseded" in raised[0]) == [True] * comm.size
    assert time.monotonic() - began < 10
