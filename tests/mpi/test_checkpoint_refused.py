# SPDX-License-Identifier: Apache-2.0
"""States that can't be saved or restored raise an error that says why. The job goes on."""

import time

import psutil
import pytest
import tensorflow as tf
from checkpoints import in_hand, restore, save
from together import elements, raises_everywhere, results

pytestmark = pytest.mark.world(np=3)

GIB = 1 << 30


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "iterator")


def needs(comm, gib):
    if min(comm.allgather(psutil.virtual_memory().available)) < gib * GIB:
        pytest.skip(f"needs {gib} GiB of free memory")


def refuses(hvdata, comm, path, make, steps, prefetch):
    """The save fails, and training goes on after it."""
    it = iter(hvdata.distribute_dataset(make, batch="per_rank", prefetch=prefetch, name="refused"))
    results(comm, lambda: tf.nest.map_structure(lambda x: x.shape.as_list(), next(it)))
    in_hand(hvdata, comm, "refused", min(prefetch, steps - 1))
    time.sleep(1)  # for its pipeline to have more
    comm.Barrier()
    raises_everywhere(
        comm,
        lambda: save(it, path),
        tf.errors.InvalidArgumentError,
        r"\[reader 0 on .*, channel ",
        r"takes at least \d\.\d\d GiB, and no more than 2.00 GiB",
        "training can go on",
        "prefetch=",
    )
    assert results(comm, lambda: sum(1 for _ in it)) == [steps - 1] * comm.size


@pytest.mark.world(np=2)
@pytest.mark.slow
@pytest.mark.limit(240)
@pytest.mark.ways("auto")
@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize(
    "size, steps, prefetch", [(11 * GIB // 10, 3, 2), (22 * GIB // 10, 2, 1)], ids=["batches", "one batch"]
)
def test_a_state_of_batches_above_2_gib(hvdata, comm, path, size, steps, prefetch):
    """The state has several batches that no rank has taken, or a single one."""
    needs(comm, 14)
    refuses(
        hvdata,
        comm,
        path,
        lambda: tf.data.Dataset.from_tensors(tf.zeros([size >> 20, 1 << 20], tf.uint8)).repeat(steps * comm.size),
        steps,
        prefetch,
    )


@pytest.mark.world(np=1)
@pytest.mark.slow
@pytest.mark.limit(240)
@pytest.mark.ways("auto")
@pytest.mark.ranks(1)  # takes a minute, and no other way on more
def test_a_state_of_shuffle_buffers_above_2_gib(hvdata, comm, path):
    """Two shuffle buffers of the reader's input, of 1.2 GiB each."""
    needs(comm, 14)

    def large(_):  # and can't be compressed, as TensorFlow does with buffers
        unit = tf.random.stateless_uniform([1 << 18], [1, 2], None, None, tf.int32)
        return tf.tile(tf.bitcast(unit, tf.uint8), [GIB // 5 >> 20, 1])

    def make():
        ds = tf.data.Dataset.range(8).map(large)
        return tf.data.Dataset.zip(tuple(ds.shuffle(6) for _ in "ab")).map(lambda a, b: (a[0, 0], b[0, 0]))

    refuses(hvdata, comm, path, make, 8, 1)


def numbers(n, dtype=tf.int64, **shape):
    return tf.data.Dataset.range(n).map(lambda i: {"x": tf.cast(i, dtype), "y": tf.zeros(shape.get("y", [2]))})


OTHERS = {
    "type": (lambda n: numbers(n, tf.float32), r"\['x'\] was int64 .* and is float .*here"),
    "shape": (lambda n: numbers(n, y=[3]), r"\['y'\] was float of shape \[2\] .* of shape \[3\] here"),
    "structure": (lambda n: tf.data.Dataset.range(n), "had 2 components .* have 1 here"),
}


def test_elements_with_fewer_axes_are_others(hvdata, comm, path):
    """The size of the only axis is unknown. Its rank is known."""

    def make(*shape):
        return lambda: tf.data.Dataset.from_tensor_slices(tf.zeros([8 * comm.size, *shape])).batch(2)

    it = iter(hvdata.distribute_dataset(make(3), batch="per_rank", name="axes"))
    results(comm, lambda: next(it))
    in_hand(hvdata, comm, "axes")  # whose shapes are compared
    comm.Barrier()
    results(comm, lambda: save(it, path))
    other = hvdata.distribute_dataset(make(), batch="per_rank")
    assert other.element_spec.shape.as_list() == [None]
    again = iter(other)
    results(comm, lambda: restore(again, path))
    raises_everywhere(
        comm,
        lambda: next(again),
        tf.errors.InvalidArgumentError,
        "a checkpoint of other elements",
        r"of shape \[2,3\] when it was saved, and is float of shape \[\?\] here",
    )


@pytest.mark.parametrize("batch", ["per_rank", "global"])
@pytest.mark.parametrize("other", OTHERS)
def test_a_checkpoint_of_other_elements(hvdata, comm, path, other, batch):
    def channel(make):
        ds = make(12 * comm.size)
        ds = ds if batch == "per_rank" else ds.batch(comm.size, drop_remainder=True)
        return hvdata.distribute_dataset(ds, batch=batch, name="typed")

    it = iter(channel(numbers))
    results(comm, lambda: [int(tf.reshape(next(it)["x"], [])) for _ in range(2)])
    results(comm, lambda: save(it, path))
    del it
    make, text = OTHERS[other]
    ds = channel(make)
    again = iter(ds)
    results(comm, lambda: restore(again, path))
    if batch == "global":
        text = text.replace(r"\[2\]", r"\[.*,2\]").replace(r"\[3\]", r"\[.*,3\]")
    # Where the reader had nothing in hand when it was saved, TensorFlow is first to miss a part of the pipeline's
    # state.
    raises_everywhere(
        comm,
        lambda: next(again),
        (tf.errors.InvalidArgumentError, tf.errors.NotFoundError),
        "channel typed",
        f"(checkpoint of other elements .*{text}|can't be restored from its saved state)",
    )
    assert len(elements(comm, ds)[0]) == 12  # the next epoch is none of that


def test_a_buffer_of_other_elements(hvdata, comm, path):
    """The elements that no rank had taken fit, and the elements in the pipeline's own buffer don't."""

    def channel(make):
        return hvdata.distribute_dataset(
            lambda: make().repeat(comm.size), batch="per_rank", prefetch=1, name="buffered"
        )

    def written():  # shapes that TensorFlow doesn't know before
        ds = tf.data.Dataset.range(12).map(lambda i: tf.zeros([tf.where(i < 6, 2, 3)], tf.int64))
        return ds.repeat(3).prefetch(36 * comm.size)

    def known():
        return tf.data.Dataset.range(12).map(lambda i: tf.zeros([2], tf.int64)).repeat(3).prefetch(36 * comm.size)

    it = iter(channel(written))
    results(comm, lambda: [len(next(it)) for _ in range(2)])
    time.sleep(2)  # for the buffer to be full
    results(comm, lambda: save(it, path))
    del it
    again = iter(channel(known))
    results(comm, lambda: restore(again, path))

    def steps():
        for x in again:
            assert len(x) == 2

    raises_everywhere(
        comm,
        steps,
        tf.errors.InvalidArgumentError,
        "channel buffered",
        "checkpoint of other elements",
        r"of shape \[3\] .* of shape \[2\] here",
    )


def test_a_checkpoint_of_another_pipeline(hvdata, comm, path):
    """The elements have the same types. Only TensorFlow sees the difference, and its error names a part of the
    state."""
    rows = tf.data.Dataset.range(12 * comm.size)
    it = iter(hvdata.distribute_dataset(rows, batch="per_rank", name="other"))
    results(comm, lambda: int(next(it)))
    results(comm, lambda: save(it, path))
    del it
    again = iter(hvdata.distribute_dataset(rows.shuffle(5), batch="per_rank", name="other"))
    results(comm, lambda: restore(again, path))
    raises_everywhere(
        comm,
        lambda: [next(again) for _ in range(12)],
        tf.errors.OpError,
        "channel other",
        "the input can't be restored from its saved state .*pipeline that was saved",
    )


def test_ragged_batches_are_no_other_elements(hvdata, comm, path):
    """Ragged batches are saved as the ranks' shares, in more components than the channel has."""

    def make(rows):
        return tf.data.Dataset.from_tensors(tf.RaggedTensor.from_row_lengths(tf.range(3 * rows), [3] * rows)).repeat(8)

    ds = hvdata.distribute_dataset(lambda: make(2 * comm.size), batch="global")
    it = iter(ds)
    results(comm, lambda: next(it).to_list())
    results(comm, lambda: save(it, path))
    again = iter(ds)
    results(comm, lambda: restore(again, path))
    assert [len(got) for got in results(comm, lambda: [x.to_list() for x in again])] == [7] * comm.size


def test_symbolic_checkpoints_are_refused(hvdata, comm, path):
    options = tf.data.Options()
    options.experimental_symbolic_checkpoint = True
    ds = hvdata.distribute_dataset(tf.data.Dataset.range(8 * comm.size), batch="per_rank")
    it = iter(ds.with_options(options))
    results(comm, lambda: int(next(it)) * 0)
    raises_everywhere(
        comm, lambda: save(it, path), tf.errors.UnimplementedError, "does not support symbolic checkpointing"
    )
    assert [len(one) for one in results(comm, lambda: [int(x) for x in it])] == [7] * comm.size
