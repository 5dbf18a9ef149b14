# SPDX-License-Identifier: Apache-2.0
"""States that can't be saved or restored raise an error that says why. The job goes on."""

import time
from pathlib import Path

import psutil
import pytest
import tensorflow as tf
from checkpoints import in_hand, restore, restored, save, saved, take
from together import elements, numbers, raises_everywhere, results

pytestmark = pytest.mark.world(np=3)

GIB = 1 << 30


def needs(comm, gib):
    if min(comm.allgather(psutil.virtual_memory().available)) < gib * GIB:
        pytest.skip(f"needs {gib} GiB of free memory")


def refuses(hvdata, comm, path, make, steps, prefetch):
    """The save fails, and training goes on after it."""
    it = iter(hvdata.distribute_dataset(make, batch="per_rank", prefetch=prefetch, name="refused"))
    results(comm, lambda: tf.nest.map_structure(lambda x: x.shape.as_list(), next(it)))
    in_hand(hvdata, comm, "refused", min(prefetch, steps - 1))
    time.sleep(1)  # until its pipeline has more elements
    comm.Barrier()
    says = r"\[reader 0 on .*, channel .*takes at least \d\.\d\d GiB, and no more than 2.00 GiB"
    says = (says, "training can go on", "prefetch=")
    raises_everywhere(comm, lambda: save(it, path), tf.errors.InvalidArgumentError, *says)
    assert results(comm, lambda: sum(1 for _ in it)) == [steps - 1] * comm.size


def is_of_others(comm, it, channel, *says):
    """The restored iterator raises an error about the elements."""
    says = (f"channel {channel}", "checkpoint of other elements", *says)
    raises_everywhere(comm, lambda: list(it), tf.errors.InvalidArgumentError, *says)


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

    def make():
        return tf.data.Dataset.from_tensors(tf.zeros([size >> 20, 1 << 20], tf.uint8)).repeat(steps * comm.size)

    refuses(hvdata, comm, path, make, steps, prefetch)


@pytest.mark.world(np=1)
@pytest.mark.slow
@pytest.mark.limit(240)
@pytest.mark.ways("auto")
@pytest.mark.ranks(1)  # takes a minute, and no other way on more
def test_a_state_of_shuffle_buffers_above_2_gib(hvdata, comm, path):
    """Two shuffle buffers of the reader's input, of 1.2 GiB each."""
    needs(comm, 14)

    def large(_):  # random, because TensorFlow compresses buffers
        unit = tf.random.stateless_uniform([1 << 18], [1, 2], None, None, tf.int32)
        return tf.tile(tf.bitcast(unit, tf.uint8), [GIB // 5 >> 20, 1])

    def make():
        ds = tf.data.Dataset.range(8).map(large)
        return tf.data.Dataset.zip(tuple(ds.shuffle(6) for _ in "ab")).map(lambda a, b: (a[0, 0], b[0, 0]))

    refuses(hvdata, comm, path, make, 8, 1)


def pairs(n, dtype=tf.int64, y=(2,)):
    return tf.data.Dataset.range(n).map(lambda i: {"x": tf.cast(i, dtype), "y": tf.zeros(y)})


OTHERS = {
    "type": (lambda n: pairs(n, tf.float32), r"\['x'\] was int64 .* and is float .*here"),
    "shape": (lambda n: pairs(n, y=[3]), r"\['y'\] was float of shape \[2\] .* of shape \[3\] here"),
    "structure": (lambda n: tf.data.Dataset.range(n), "had 2 components .* have 1 here"),
}


def test_elements_with_fewer_axes_are_others(hvdata, comm, path):
    """The size of the only axis is unknown. Its rank is known."""

    def channel(*shape):
        source = tf.data.Dataset.from_tensor_slices(tf.zeros([8 * comm.size, *shape])).batch(2)
        return hvdata.distribute_dataset(source, batch="per_rank", name="axes")

    it = iter(channel(3))
    results(comm, lambda: next(it))
    in_hand(hvdata, comm, "axes")  # whose shapes are compared
    comm.Barrier()
    saved(comm, it, path)
    del it
    other = channel()
    assert other.element_spec.shape.as_list() == [None]
    again = restored(comm, other, path)
    is_of_others(comm, again, "axes", r"of shape \[2,3\] when it was saved, and is float of shape \[\?\] here")


@pytest.mark.parametrize("batch", ["per_rank", "global"])
@pytest.mark.parametrize("other", OTHERS)
def test_a_checkpoint_of_other_elements(hvdata, comm, path, other, batch):
    def channel(make):
        ds = make(12 * comm.size)
        ds = ds if batch == "per_rank" else ds.batch(comm.size, drop_remainder=True)
        return hvdata.distribute_dataset(ds, batch=batch, name="typed")

    it = iter(channel(pairs))
    results(comm, lambda: [int(tf.reshape(next(it)["x"], [])) for _ in range(2)])
    saved(comm, it, path)
    del it
    make, text = OTHERS[other]
    ds = channel(make)
    again = restored(comm, ds, path)
    if batch == "global":
        text = text.replace(r"\[2\]", r"\[.*,2\]").replace(r"\[3\]", r"\[.*,3\]")
    # If the reader had nothing in hand at the save, TensorFlow finds first that the pipeline's state lacks a part.
    kinds = (tf.errors.InvalidArgumentError, tf.errors.NotFoundError)
    says = f"(checkpoint of other elements .*{text}|can't be restored from its saved state)"
    raises_everywhere(comm, lambda: next(again), kinds, "channel typed", says)
    assert len(elements(comm, ds)[0]) == 12  # the next epoch is not affected


def test_a_buffer_of_other_elements(hvdata, comm, path):
    """The elements that no rank had taken fit, and the elements in the pipeline's own buffer don't."""

    def channel(rows):
        ds = tf.data.Dataset.range(12).map(lambda i: tf.zeros([rows(i)], tf.int64))
        ds = ds.repeat(3).prefetch(36 * comm.size).repeat(comm.size)
        return hvdata.distribute_dataset(ds, batch="per_rank", prefetch=1, name="buffered")

    it = iter(channel(lambda i: tf.where(i < 6, 2, 3)))  # shapes that TensorFlow doesn't know before
    results(comm, lambda: [len(next(it)) for _ in range(2)])
    time.sleep(2)  # for the buffer to be full
    saved(comm, it, path)
    del it
    again = restored(comm, channel(lambda i: 2), path)
    is_of_others(comm, again, "buffered", r"of shape \[3\] .* of shape \[2\] here")


def test_a_checkpoint_of_another_pipeline(hvdata, comm, path):
    """The elements have the same types. Only TensorFlow sees the difference, and its error names a part of the
    state."""
    rows = tf.data.Dataset.range(12 * comm.size)
    it = iter(hvdata.distribute_dataset(rows, batch="per_rank", name="other"))
    results(comm, lambda: int(next(it)))
    saved(comm, it, path)
    del it
    again = restored(comm, hvdata.distribute_dataset(rows.shuffle(5), batch="per_rank", name="other"), path)
    says = ("channel other", "the input can't be restored from its saved state .*pipeline that was saved")
    raises_everywhere(comm, lambda: [next(again) for _ in range(12)], tf.errors.OpError, *says)


def test_ragged_batches_are_no_other_elements(hvdata, comm, path):
    """Ragged batches are saved as the ranks' shares, in more components than the channel has."""
    rows = 2 * comm.size

    def make():
        return tf.data.Dataset.from_tensors(tf.RaggedTensor.from_row_lengths(tf.range(3 * rows), [3] * rows)).repeat(8)

    ds = hvdata.distribute_dataset(make, batch="global")
    it = iter(ds)
    results(comm, lambda: next(it).to_list())
    saved(comm, it, path)
    again = restored(comm, ds, path)
    assert [len(got) for got in results(comm, lambda: [x.to_list() for x in again])] == [7] * comm.size


def test_symbolic_checkpoints_are_refused(hvdata, comm, path):
    """TensorFlow's own error. Training goes on."""
    options = tf.data.Options()
    options.experimental_symbolic_checkpoint = True
    it = iter(numbers(hvdata, 8 * comm.size).with_options(options))
    results(comm, lambda: int(next(it)) * 0)
    says = "does not support symbolic checkpointing"
    raises_everywhere(comm, lambda: save(it, path), tf.errors.UnimplementedError, says)
    assert [len(one) for one in results(comm, lambda: [int(x) for x in it])] == [7] * comm.size


@pytest.mark.ways("auto", "arena")
@pytest.mark.ranks(1, 3)
@pytest.mark.limit(120)
@pytest.mark.parametrize("how", ["cut", "changed"])
def test_damaged_files(hvdata, comm, path, how):
    """TensorFlow's own checksums find the damage first. The next epoch runs."""
    rows = tf.data.Dataset.range(40 * comm.size).shuffle(8, seed=1, reshuffle_each_iteration=False)
    ds = hvdata.distribute_dataset(rows, batch="per_rank", verify=True)
    it = iter(ds)
    results(comm, lambda: take(it, 3))
    saved(comm, it, path)
    del it
    data = Path(f"{path}.data-00000-of-00001")
    whole = data.read_bytes()
    for at in (0, len(whole) // 2, len(whole) - 1):
        data.write_bytes(whole[:at] if how == "cut" else whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        again = iter(ds)
        raises_everywhere(comm, lambda: restore(again, path), (tf.errors.OpError, IndexError))
    assert [len(share) for share in elements(comm, ds)] == [40] * comm.size
