# SPDX-License-Identifier: Apache-2.0
"""tf.train.Checkpoint(iterator=...): the global order goes on, no element is lost, and none comes twice."""

import time

import pytest
import tensorflow as tf
from checkpoints import rest, restore, restored, save, saved, take
from together import (
    Counted,
    dealt_to_all,
    elements,
    numbers,
    outcomes,
    raises_everywhere,
    results,
    written,
)

pytestmark = pytest.mark.world(np=3)

STEPS = 10


def want(n, comm, start):
    return [steps[start:] for steps in dealt_to_all(comm, range(n))]


# Inputs whose state TensorFlow can save, and one without a state, which is replayed to the position.
SOURCES = {
    "range": lambda n: tf.data.Dataset.range(n),
    "shuffled": lambda n: tf.data.Dataset.range(n).shuffle(5, seed=3, reshuffle_each_iteration=False),
    "mapped": lambda n: tf.data.Dataset.range(n).map(lambda x: x, num_parallel_calls=2).prefetch(2),
    "ready-made": lambda n: ready_made(n),
    "generator": lambda n: Counted(n).dataset(),
}


def ready_made(n):
    """0 .. n-1, which TensorFlow doesn't rewrite."""
    half = tf.data.Dataset.from_tensor_slices(tf.range(n // 2, dtype=tf.int64)).repeat(2).skip(n // 2)
    other = tf.data.Dataset.from_tensor_slices(tf.range(n // 2, n + 3, dtype=tf.int64)).take(n - n // 2)
    return half.concatenate(other)


@pytest.mark.parametrize("taken", [1, 4, STEPS - 1])
@pytest.mark.parametrize("source", SOURCES)
def test_every_rank_saves_and_restores(hvdata, comm, source, path, taken):
    ds = hvdata.distribute_dataset(lambda: SOURCES[source](STEPS * comm.size), batch="per_rank", prefetch=3)
    whole = elements(comm, ds)
    it = iter(ds)
    assert results(comm, lambda: take(it, taken)) == [steps[:taken] for steps in whole]
    saved(comm, it, path)
    # The saved iterator goes on unchanged.
    assert results(comm, lambda: rest(it)) == [steps[taken:] for steps in whole]
    again = restored(comm, ds, path)
    assert results(comm, lambda: rest(again)) == [steps[taken:] for steps in whole]
    assert elements(comm, ds) == whole  # the next epoch is whole


@pytest.mark.world(np=4)
@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("batch", ["per_rank", "global"])
@pytest.mark.parametrize("how", ["into another channel", "at different steps", "rank 0 alone"])
def test_who_saves(hvdata, comm, path, batch, how):
    """A restarted job has other channels on the same pipeline. Each rank resumes at its own step.

    Horovod programs often save on rank 0 only. Then rank 0 restores alone, before any collective call.
    """

    def channel():
        source = tf.data.Dataset.range(12 * STEPS).batch(12 if batch == "global" else 12 // comm.size)
        return hvdata.distribute_dataset(source, batch=batch, prefetch=4, name="resumed")

    ds = channel()
    whole = results(comm, lambda: rest(iter(ds)))
    it = iter(ds)
    taken = [3 + (rank % 3 if how == "at different steps" else 0) for rank in range(comm.size)]
    results(comm, lambda: take(it, taken[comm.rank]))
    mine = comm.rank == 0 or how != "rank 0 alone"
    results(comm, lambda: save(it, path) if mine else None)
    again = iter(channel() if how == "into another channel" else ds)
    if mine:
        restore(again, path)
    assert results(comm, lambda: rest(again)) == [steps[at:] for steps, at in zip(whole, taken)]


@pytest.mark.world(np=2)
@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("who", ["every rank", "rank 0"])
def test_unused_and_exhausted(hvdata, comm, path, who):
    """Neither a save nor a restore of such an iterator opens an epoch."""
    source = Counted(STEPS * comm.size)
    ds = hvdata.distribute_dataset(source.dataset(), batch="per_rank")
    mine = comm.rank == 0 or who == "every rank"
    results(comm, lambda: save(iter(ds), path + "-unused") if mine else None)
    it = iter(ds)
    results(comm, lambda: rest(it))
    results(comm, lambda: save(it, path + "-exhausted") if mine else None)
    assert comm.bcast(source.starts) == 1

    exhausted = iter(ds)
    results(comm, lambda: restore(exhausted, path + "-exhausted") if mine else None)
    assert results(comm, lambda: rest(exhausted)) == [[]] * comm.size
    assert comm.bcast(source.starts) == 1
    unused = iter(ds)
    results(comm, lambda: restore(unused, path + "-unused") if mine else None)
    assert results(comm, lambda: rest(unused)) == want(source.n, comm, 0)


@pytest.mark.parametrize("abandon", ["deleted", "superseded", "restored anew"])
def test_a_restored_iterator_that_is_abandoned(hvdata, comm, path, abandon):
    """The state is dropped with the iterator. The next iterator runs a whole epoch."""
    n = STEPS * comm.size
    ds = numbers(hvdata, n)
    saved(comm, iter(ds), path + "-unused")
    it = iter(ds)
    results(comm, lambda: take(it, 4))
    saved(comm, it, path)
    again = restored(comm, ds, path)
    if abandon == "restored anew":
        results(comm, lambda: restore(again, path + "-unused"))
        assert results(comm, lambda: rest(again)) == want(n, comm, 0)
    elif abandon == "deleted":
        del again
        comm.barrier()
    assert elements(comm, ds) == want(n, comm, 0)
    if abandon == "superseded":  # a later step of it goes on from its state
        assert results(comm, lambda: rest(again)) == want(n, comm, 4)


def shuffled_generator(n, **options):
    """A pipeline whose state can't be saved, with another order in each epoch."""
    return Counted(n).dataset().shuffle(5, **options)


def shuffled_range(n, **options):
    return tf.data.Dataset.range(n).shuffle(5, **options)


@pytest.mark.world(np=1)
@pytest.mark.parametrize("when", ["at its end", "unused", "in the middle", "in the middle, then at its end"])
@pytest.mark.parametrize("source", [shuffled_range, shuffled_generator])
def test_a_seeded_shuffle_has_the_next_epochs_order_when_restored(hvdata, comm, path, source, when):
    """The order is that of TensorFlow within one process. Here a new channel stands for another process, in which the
    epochs before the restored one don't run."""
    n = STEPS * comm.size

    def channel():
        return hvdata.distribute_dataset(lambda: source(n, seed=3), batch="per_rank")

    ds = channel()
    orders = [elements(comm, ds)]
    it = iter(ds)
    taken = {"unused": 0, "at its end": STEPS}.get(when, 4)
    got = results(comm, lambda: rest(it) if taken == STEPS else take(it, taken))
    saved(comm, it, path)
    orders.append([a + b for a, b in zip(got, results(comm, lambda: rest(it)))])
    orders += [elements(comm, ds) for _ in range(3)]
    assert len({str(order) for order in orders}) == len(orders)

    def go_on(ds):
        again = restored(comm, ds, path)
        return results(comm, lambda: rest(again)), [elements(comm, ds) for _ in range(2)]

    anew = channel()
    assert go_on(anew) == ([order[taken:] for order in orders[1]], orders[2:4])
    if "then" in when:  # an epoch that was restored in the middle keeps its number
        again = iter(anew)
        assert results(comm, lambda: rest(again)) == orders[4]
        saved(comm, again, path)
        assert go_on(channel()) == ([[]] * comm.size, [elements(comm, anew), elements(comm, anew)])


@pytest.mark.parametrize("epoch", [2, 4])
def test_a_shuffle_that_had_ended_before_the_save_has_the_next_epochs_order(hvdata, comm, path, epoch):
    """The stages after the shuffle have released it and its state by then."""

    def channel():
        source = tf.data.Dataset.range(STEPS * comm.size).shuffle(5, seed=3).batch(comm.size)
        return hvdata.distribute_dataset(source, batch="global")

    ds = channel()
    for _ in range(epoch - 1):
        elements(comm, ds)
    it = iter(ds)
    results(comm, lambda: take(it, STEPS - 2))  # the window has the rest
    comm.barrier()
    time.sleep(0.2)
    saved(comm, it, path)
    rests = results(comm, lambda: rest(it))
    after = [elements(comm, ds) for _ in range(2)]
    anew = channel()
    again = restored(comm, anew, path)
    assert results(comm, lambda: rest(again)) == rests
    assert [elements(comm, anew) for _ in range(2)] == after


def test_what_is_left_of_a_restored_epoch_may_have_no_step(hvdata, comm, several, path, capfd):
    """The warning of an epoch without steps doesn't come, because the epoch had some."""
    ds = numbers(hvdata, STEPS * comm.size + comm.size - 1, name="had-steps", prefetch=1)
    it = iter(ds)
    results(comm, lambda: take(it, STEPS))
    saved(comm, it, path)
    results(comm, lambda: rest(it))
    again = restored(comm, ds, path)
    assert results(comm, lambda: rest(again)) == [[]] * comm.size
    said = written(comm, capfd, "left out")
    assert "had no step" not in said and f"left out {comm.size - 1} element(s)" in said, said


@pytest.mark.world(np=1)
@pytest.mark.parametrize("why", ["no seed", "later iterator", "shorter"])
def test_a_replay_that_yields_something_else(hvdata, comm, path, why):
    """The library reports every loss or repetition of elements."""
    n = 300 * comm.size  # more than the shuffle holds: it could be saved once the generator has ended
    options = {"seed": 3} if why == "later iterator" else {}

    def channel(n):
        source = lambda: Counted(n).dataset() if why == "shorter" else Counted(n).dataset().shuffle(100, **options)
        return hvdata.distribute_dataset(source, batch="per_rank", name="replayed")

    ds = channel(n)
    it = iter(ds)
    results(comm, lambda: take(it, 4))
    saved(comm, it, path)
    results(comm, lambda: rest(it))
    if why != "later iterator":  # otherwise the dataset has moved on to its next order, and can't be taken back
        ds = channel(n if why == "no seed" else 3)
    again = restored(comm, ds, path)
    raises_everywhere(
        comm, lambda: rest(again), tf.errors.DataLossError, "channel replayed", "Give every shuffle a seed"
    )


def test_a_replay_with_other_values_in_the_same_order(hvdata, comm, path, monkeypatch):
    n = STEPS * comm.size
    tf.random.set_seed(None)  # with one, which another test may have set, the same values come again
    ds = hvdata.distribute_dataset(
        lambda: tf.data.Dataset.range(n).map(lambda x: (x, tf.random.uniform([]))), batch="per_rank", name="augmented"
    )
    it = iter(ds)
    results(comm, lambda: [int(next(it)[0]) for _ in range(3)])
    saved(comm, it, path)
    again = restored(comm, ds, path)
    raises_everywhere(comm, lambda: list(again), tf.errors.DataLossError, "HOROVOD_DATA_CHECK_REPLAY=0")
    monkeypatch.setenv("HOROVOD_DATA_CHECK_REPLAY", "0")
    again = restored(comm, ds, path)
    assert results(comm, lambda: [int(x) for x, _ in again]) == want(n, comm, 3)


# ---- Ranks that save at different moments, and saves after an error.


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
        says = f"and rank {comm.size - 1} on .* don.t belong together: .* before the first step of the epoch"
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
