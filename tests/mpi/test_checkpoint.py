# SPDX-License-Identifier: Apache-2.0
"""tf.train.Checkpoint(iterator=...): the global order goes on, nothing is lost, nothing comes twice."""

import time

import pytest
import tensorflow as tf
from checkpoints import rest, restore, save, take
from together import Counted, Raised, dealt, elements, outcomes, raises_everywhere, results, written

pytestmark = pytest.mark.world(np=3)

STEPS = 10


def want(n, comm, start):
    return [dealt(range(n), rank, comm.size)[start:] for rank in range(comm.size)]


def sources(n):
    """Inputs whose state TensorFlow can save, and one without a state, which is replayed to the position."""
    return {
        "range": lambda: tf.data.Dataset.range(n),
        "shuffled": lambda: tf.data.Dataset.range(n).shuffle(5, seed=3, reshuffle_each_iteration=False),
        "mapped": lambda: tf.data.Dataset.range(n).map(lambda x: x, num_parallel_calls=2).prefetch(2),
        "ready-made": lambda: ready_made(n),
        "generator": Counted(n).dataset,
    }


def ready_made(n):
    """0 .. n-1, which TensorFlow doesn't rewrite."""
    half = tf.data.Dataset.from_tensor_slices(tf.range(n // 2, dtype=tf.int64)).repeat(2).skip(n // 2)
    other = tf.data.Dataset.from_tensor_slices(tf.range(n // 2, n + 3, dtype=tf.int64)).take(n - n // 2)
    return half.concatenate(other)


@pytest.fixture(params=["range", "shuffled", "mapped", "ready-made", "generator"])
def source(request, comm):
    return sources(STEPS * comm.size)[request.param]


@pytest.fixture
def path(tmp_path, comm):
    """One folder per rank."""
    return str(tmp_path / "iterator")


@pytest.mark.parametrize("taken", [1, 4, STEPS - 1])
def test_every_rank_saves_and_restores(hvdata, comm, source, path, taken):
    ds = hvdata.distribute_dataset(source, batch="per_rank", prefetch=3)
    whole = elements(comm, ds)
    it = iter(ds)
    assert results(comm, lambda: take(it, taken)) == [steps[:taken] for steps in whole]
    results(comm, lambda: save(it, path))
    # The iterator that was saved goes on as if nothing had been.
    assert results(comm, lambda: rest(it)) == [steps[taken:] for steps in whole]

    again = iter(ds)
    results(comm, lambda: restore(again, path))
    assert results(comm, lambda: rest(again)) == [steps[taken:] for steps in whole]
    assert elements(comm, ds) == whole  # and the epoch after it is a whole one


@pytest.mark.usefixtures("either_way")
def test_into_another_channel(hvdata, comm, path):
    """A restarted job has other channels and other iterators on the same pipeline."""
    n = STEPS * comm.size
    it = iter(hvdata.distribute_dataset(tf.data.Dataset.range(n), batch="per_rank", name="resumed"))
    results(comm, lambda: take(it, 3))
    results(comm, lambda: save(it, path))
    del it
    again = iter(hvdata.distribute_dataset(tf.data.Dataset.range(n), batch="per_rank", name="resumed"))
    results(comm, lambda: restore(again, path))
    assert results(comm, lambda: rest(again)) == want(n, comm, 3)


@pytest.mark.usefixtures("either_way")
def test_ranks_at_different_positions(hvdata, comm, path):
    """Each rank resumes at its own position, also if the ranks saved at different steps."""
    n = STEPS * comm.size
    ds = hvdata.distribute_dataset(tf.data.Dataset.range(n), batch="per_rank", prefetch=4)
    it = iter(ds)
    taken = 2 + comm.rank % 3
    results(comm, lambda: take(it, taken))
    results(comm, lambda: save(it, path))
    again = iter(ds)
    results(comm, lambda: restore(again, path))
    assert results(comm, lambda: rest(again)) == [w[2 + rank % 3 :] for rank, w in enumerate(want(n, comm, 0))]


@pytest.mark.usefixtures("either_way")
def test_rank_0_alone_saves_and_restores(hvdata, comm, path):
    """Horovod's habit: only rank 0 has a checkpoint. Restoring it there, before any collective call, is enough."""
    n = STEPS * comm.size
    ds = hvdata.distribute_dataset(tf.data.Dataset.range(n), batch="per_rank", prefetch=3)
    it = iter(ds)
    results(comm, lambda: take(it, 4))
    if comm.rank == 0:
        save(it, path)
    comm.barrier()
    again = iter(ds)
    if comm.rank == 0:
        restore(again, path)
    assert results(comm, lambda: rest(again)) == want(n, comm, 4)


@pytest.mark.world(np=4)
@pytest.mark.usefixtures("either_way")
def test_global_batches(hvdata, comm, path):
    source = tf.data.Dataset.range(12 * 6).batch(12, drop_remainder=True)
    ds = hvdata.distribute_dataset(source, batch="global")
    whole = results(comm, lambda: [x.numpy().tolist() for x in ds])
    it = iter(ds)
    results(comm, lambda: [next(it).numpy() for _ in range(2)])
    results(comm, lambda: save(it, path))
    again = iter(ds)
    results(comm, lambda: restore(again, path))
    assert results(comm, lambda: [x.numpy().tolist() for x in again]) == [steps[2:] for steps in whole]


@pytest.mark.world(np=4)
@pytest.mark.usefixtures("either_way")
def test_dynamic(hvdata, comm, path):
    """Nothing lost, nothing twice; who gets what is free."""
    n = STEPS * comm.size
    ds = hvdata.distribute_dataset(tf.data.Dataset.range(n), batch="per_rank", schedule="dynamic")
    it = iter(ds)
    before = results(comm, lambda: take(it, 2))
    results(comm, lambda: save(it, path))
    again = iter(ds)
    results(comm, lambda: restore(again, path))
    after = results(comm, lambda: rest(again))
    assert sorted(sum(before, []) + sum(after, [])) == list(range(n))


@pytest.mark.world(np=1)
@pytest.mark.usefixtures("either_way")
def test_unused_and_exhausted(hvdata, comm, path):
    """Neither a save nor a restore of such an iterator opens an epoch."""
    source = Counted(STEPS * comm.size)
    ds = hvdata.distribute_dataset(source.dataset(), batch="per_rank")
    results(comm, lambda: save(iter(ds), path + "-unused"))
    it = iter(ds)
    results(comm, lambda: rest(it))
    results(comm, lambda: save(it, path + "-exhausted"))
    assert comm.bcast(source.starts) == 1

    exhausted = iter(ds)
    results(comm, lambda: restore(exhausted, path + "-exhausted"))
    assert results(comm, lambda: rest(exhausted)) == [[]] * comm.size
    assert comm.bcast(source.starts) == 1
    unused = iter(ds)
    results(comm, lambda: restore(unused, path + "-unused"))
    assert results(comm, lambda: rest(unused)) == want(source.n, comm, 0)


@pytest.mark.ranks(2, 3, 4)
def test_a_state_that_comes_too_late(hvdata, comm, path):
    """Rank 0 has begun the epoch that the others restore into: an error on every rank."""
    n = STEPS * comm.size
    ds = hvdata.distribute_dataset(tf.data.Dataset.range(n), batch="per_rank", prefetch=2)
    it = iter(ds)
    results(comm, lambda: take(it, 4))
    results(comm, lambda: save(it, path))
    results(comm, lambda: rest(it))
    again = iter(ds)

    def late():
        if comm.rank == 0:
            take(again, 1)
        comm.barrier()
        if comm.rank > 0:
            restore(again, path)
        return rest(again)

    raises_everywhere(comm, late, tf.errors.OpError, "restore", "epoch 2")


def test_checkpoint_manager_in_a_training_loop(hvdata, comm, tmp_path):
    n = STEPS * comm.size
    ds = hvdata.distribute_dataset(tf.data.Dataset.range(n), batch="per_rank")

    def run(until):
        it, step = iter(ds), tf.Variable(0)
        manager = tf.train.CheckpointManager(tf.train.Checkpoint(iterator=it, step=step), str(tmp_path), max_to_keep=2)
        manager.restore_or_initialize()
        got = []
        for x in it:
            got.append(int(x))
            step.assign_add(1)
            if int(step) in (3, 6):
                manager.save()
            if int(step) == until:
                break
        return got

    whole = want(n, comm, 0)
    assert results(comm, lambda: run(5)) == [w[:5] for w in whole]
    assert results(comm, lambda: run(8)) == [w[3:8] for w in whole]  # from step 3, the last one saved
    assert results(comm, lambda: run(None)) == [w[6:] for w in whole]


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize(
    "schedule, taken", [("static", 0), ("static", 1), ("static", STEPS), ("dynamic", 0), ("dynamic", 1)]
)
@pytest.mark.usefixtures("either_way")
def test_some_have_seen_the_end(hvdata, comm, path, schedule, taken):
    """Rank 0 has seen the end. The others have not begun, have steps to take, or have taken all but not seen the
    end."""
    n = STEPS * comm.size

    def channel():
        return hvdata.distribute_dataset(Counted(n).dataset(), batch="per_rank", schedule=schedule, prefetch=STEPS + 1)

    it = iter(channel())

    def before():
        got = take(it, taken if comm.rank > 0 else 1)  # rank 0 reads, and begins when it asks itself
        comm.barrier()
        return got if comm.rank > 0 else got + rest(it)

    got = results(comm, before)
    results(comm, lambda: save(it, path))
    ds = channel()  # as in a restarted job: in this one they have begun a different number of epochs
    again = iter(ds)
    results(comm, lambda: restore(again, path))
    after = results(comm, lambda: rest(again))
    if schedule == "static":
        assert [a + b for a, b in zip(got, after)] == want(n, comm, 0)
        assert elements(comm, ds) == want(n, comm, 0)  # all ranks count the same epochs
    else:
        assert sorted(sum(got + after, [])) == list(range(n))
        assert sorted(sum(elements(comm, ds), [])) == list(range(n))


@pytest.mark.ranks(2, 3, 4)
def test_a_dynamic_rank_that_saves_after_the_end(hvdata, comm, path):
    """The others saved early. The steps that rank 0 has taken since are in its own state and must not come again."""
    n = STEPS * comm.size
    ds = hvdata.distribute_dataset(tf.data.Dataset.range(n), batch="per_rank", schedule="dynamic", name="late")
    it = iter(ds)
    got = results(comm, lambda: take(it, 1))
    results(comm, lambda: comm.rank > 0 and save(it, path))
    got[0] += results(comm, lambda: rest(it))[0]
    results(comm, lambda: comm.rank > 0 or save(it, path))  # the epoch is over everywhere
    again = iter(ds)
    results(comm, lambda: restore(again, path))
    after = results(comm, lambda: rest(again))
    assert sorted(sum(got + after, [])) == list(range(n))


@pytest.mark.ranks(2, 3, 4)
def test_rank_0_alone_saves_when_it_has_seen_the_end(hvdata, comm, path):
    source = Counted(STEPS * comm.size)
    ds = hvdata.distribute_dataset(source.dataset(), batch="per_rank")
    it = iter(ds)
    results(comm, lambda: rest(it))
    results(comm, lambda: comm.rank > 0 or save(it, path))
    again = iter(ds)
    results(comm, lambda: comm.rank > 0 or restore(again, path))
    assert results(comm, lambda: rest(again)) == [[]] * comm.size
    assert comm.bcast(source.starts) == 1
    assert elements(comm, ds) == want(source.n, comm, 0)


@pytest.mark.ranks(2, 3, 4)
def test_states_of_different_epochs(hvdata, comm, path):
    """Rank 0's iterator has seen the end of epoch 1, and the others are in epoch 2. These states don't belong
    together."""
    ds = hvdata.distribute_dataset(tf.data.Dataset.range(STEPS * comm.size), batch="per_rank", prefetch=2)
    it = iter(ds)
    results(comm, lambda: rest(it))
    later = iter(ds)
    results(comm, lambda: take(later, 1))
    results(comm, lambda: save(later if comm.rank else it, path))
    results(comm, lambda: rest(later))
    again = iter(ds)
    results(comm, lambda: restore(again, path))

    got = outcomes(comm, lambda: rest(again))
    assert got[0] == []  # it has nothing to wait for
    for one in got[1:]:
        assert isinstance(one, Raised) and "saved in different epochs" in one.text, one


@pytest.mark.parametrize("abandon", ["deleted", "superseded", "restored anew"])
def test_a_restored_iterator_that_is_abandoned(hvdata, comm, path, abandon):
    """The state is dropped with the iterator. The next iterator runs a whole epoch."""
    n = STEPS * comm.size
    ds = hvdata.distribute_dataset(tf.data.Dataset.range(n), batch="per_rank")
    results(comm, lambda: save(iter(ds), path + "-unused"))
    it = iter(ds)
    results(comm, lambda: take(it, 4))
    results(comm, lambda: save(it, path))
    again = iter(ds)
    results(comm, lambda: restore(again, path))
    if abandon == "restored anew":
        results(comm, lambda: restore(again, path + "-unused"))
        assert results(comm, lambda: rest(again)) == want(n, comm, 0)
    elif abandon == "deleted":
        del again
        comm.barrier()
    assert elements(comm, ds) == want(n, comm, 0)
    if abandon == "superseded":  # and when it is asked after all, it goes on from its state
        assert results(comm, lambda: rest(again)) == want(n, comm, 4)


def shuffled_generator(n, **options):
    """A pipeline whose state can't be saved, with another order in each epoch."""
    return Counted(n).dataset().shuffle(5, **options)


def test_a_seeded_shuffle_of_a_generator_goes_on_in_a_later_epoch(hvdata, comm, path):
    """In a new process the order of the saved epoch comes back, although the epochs before it don't run again."""
    n = STEPS * comm.size
    ds = hvdata.distribute_dataset(lambda: shuffled_generator(n, seed=3), batch="per_rank")
    elements(comm, ds)
    elements(comm, ds)
    it = iter(ds)
    got = results(comm, lambda: take(it, 4))
    results(comm, lambda: save(it, path))
    whole = [a + b for a, b in zip(got, results(comm, lambda: rest(it)))]
    fourth = elements(comm, ds)
    anew = hvdata.distribute_dataset(lambda: shuffled_generator(n, seed=3), batch="per_rank")
    again = iter(anew)
    results(comm, lambda: restore(again, path))
    assert results(comm, lambda: rest(again)) == [w[4:] for w in whole]
    assert elements(comm, anew) == fourth != whole


def shuffled_range(n, **options):
    return tf.data.Dataset.range(n).shuffle(5, **options)


@pytest.mark.world(np=1)
@pytest.mark.parametrize("when", ["at its end", "unused", "in the middle", "in the middle, then at its end"])
@pytest.mark.parametrize("source", [shuffled_range, shuffled_generator])
def test_a_seeded_shuffle_has_the_next_epochs_order_when_restored(hvdata, comm, path, source, when):
    """The order is that of TensorFlow within one process. Here a new channel stands for another process."""
    n = STEPS * comm.size
    ds = hvdata.distribute_dataset(lambda: source(n, seed=3), batch="per_rank")
    orders = [elements(comm, ds)]
    it = iter(ds)
    if when == "unused":
        results(comm, lambda: save(it, path))
        orders.append(results(comm, lambda: rest(it)))
    elif when == "at its end":
        orders.append(results(comm, lambda: rest(it)))
        results(comm, lambda: save(it, path))
    else:
        got = results(comm, lambda: take(it, 4))
        results(comm, lambda: save(it, path))
        orders.append([a + b for a, b in zip(got, results(comm, lambda: rest(it)))])
    orders += [elements(comm, ds) for _ in range(3)]
    assert len({str(order) for order in orders}) == len(orders)

    def go_on(ds):
        again = iter(ds)
        results(comm, lambda: restore(again, path))
        rests = results(comm, lambda: rest(again))
        return again, rests, [elements(comm, ds) for _ in range(2)]

    anew = hvdata.distribute_dataset(lambda: source(n, seed=3), batch="per_rank")
    again, rests, after = go_on(anew)
    left = {"at its end": 0, "unused": n}.get(when, n - 4 * comm.size) // comm.size
    assert rests == [order[len(order) - left :] for order in orders[1]]
    assert after == orders[2:4]
    if "then" in when:  # what was restored in mid-epoch counts as the epoch that it was
        again = iter(anew)
        last = results(comm, lambda: rest(again))
        assert last == orders[4]
        results(comm, lambda: save(again, path))
        later = hvdata.distribute_dataset(lambda: source(n, seed=3), batch="per_rank")
        assert go_on(later)[1:] == ([[]] * comm.size, [elements(comm, anew), elements(comm, anew)])


@pytest.mark.parametrize("epoch", [2, 4])
def test_a_shuffle_that_had_ended_before_the_save_has_the_next_epochs_order(hvdata, comm, path, epoch):
    """The stages after the shuffle have released it and its state by then."""

    def source():
        return tf.data.Dataset.range(STEPS * comm.size).shuffle(5, seed=3).batch(comm.size)

    ds = hvdata.distribute_dataset(source, batch="global")
    for _ in range(epoch - 1):
        elements(comm, ds)
    it = iter(ds)
    results(comm, lambda: take(it, STEPS - 2))  # the window has the rest
    comm.barrier()
    time.sleep(0.2)
    results(comm, lambda: save(it, path))
    rests = results(comm, lambda: rest(it))
    after = [elements(comm, ds) for _ in range(2)]
    anew = hvdata.distribute_dataset(source, batch="global")
    again = iter(anew)
    results(comm, lambda: restore(again, path))
    assert results(comm, lambda: rest(again)) == rests
    assert [elements(comm, anew) for _ in range(2)] == after


def test_what_is_left_of_a_restored_epoch_may_have_no_step(hvdata, comm, path, capfd):
    """The warning of an epoch without steps doesn't come, because the epoch had some."""
    if comm.size == 1:
        pytest.skip("one rank gets all")
    n = STEPS * comm.size + comm.size - 1
    ds = hvdata.distribute_dataset(tf.data.Dataset.range(n), batch="per_rank", name="had-steps", prefetch=1)
    it = iter(ds)
    results(comm, lambda: take(it, STEPS))
    results(comm, lambda: save(it, path))
    results(comm, lambda: rest(it))
    again = iter(ds)
    results(comm, lambda: restore(again, path))
    assert results(comm, lambda: rest(again)) == [[]] * comm.size
    said = written(comm, capfd, "left out")
    assert "had no step" not in said and f"left out {comm.size - 1} element(s)" in said, said


@pytest.mark.world(np=1)
@pytest.mark.parametrize("why", ["no seed", "later iterator", "shorter"])
def test_a_replay_that_yields_something_else(hvdata, comm, path, why):
    """The library never loses or repeats elements without a word."""
    n = 300 * comm.size  # more than the shuffle holds: it could be saved once the generator has ended
    options = {"seed": 3} if why == "later iterator" else {}

    def source(n):
        return Counted(n).dataset().shuffle(100, **options) if why != "shorter" else Counted(n).dataset()

    ds = hvdata.distribute_dataset(lambda: source(n), batch="per_rank", name="replayed")
    it = iter(ds)
    results(comm, lambda: take(it, 4))
    results(comm, lambda: save(it, path))
    results(comm, lambda: rest(it))
    if why != "later iterator":  # otherwise the dataset has moved on to its next order, and can't be taken back
        ds = hvdata.distribute_dataset(lambda: source(n if why == "no seed" else 3), batch="per_rank", name="replayed")
    again = iter(ds)
    results(comm, lambda: restore(again, path))
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
    results(comm, lambda: save(it, path))
    again = iter(ds)
    results(comm, lambda: restore(again, path))
    raises_everywhere(comm, lambda: list(again), tf.errors.DataLossError, "HOROVOD_DATA_CHECK_REPLAY=0")
    monkeypatch.setenv("HOROVOD_DATA_CHECK_REPLAY", "0")
    again = iter(ds)
    results(comm, lambda: restore(again, path))
    assert results(comm, lambda: [int(x) for x, _ in again]) == want(n, comm, 3)
