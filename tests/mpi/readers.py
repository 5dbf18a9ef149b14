# SPDX-License-Identifier: Apache-2.0
"""For tests with several readers: a dataset on each, and what the trainers get."""

import itertools

import numpy as np
import tensorflow as tf
from oracle import equal
from together import numpy_of, on_trainers


def batches_of(reader: int, rows_of_batches):
    """Rows that contain the number of their reader."""
    starts = itertools.accumulate(rows_of_batches, initial=1000 * reader)
    return [
        (np.arange(first, first + rows), np.array([b"%d" % reader] * rows, object))
        for first, rows in zip(starts, rows_of_batches)
    ]


def from_readers(batches_of_readers, seen=None):
    """A dataset function that yields other batches on each reader."""
    spec = (tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.string))

    def function(context):
        if seen is not None:
            seen.append((context.input_pipeline_id, context.num_input_pipelines, context.num_replicas_in_sync))
        mine = batches_of_readers[context.input_pipeline_id]
        return tf.data.Dataset.from_generator(lambda: iter(mine), output_signature=spec)

    return function


def failing(ds: tf.data.Dataset, bad) -> tf.data.Dataset:
    """Numbers as floats. The number `bad` fails."""
    return ds.map(
        lambda i: (
            tf.debugging.check_numerics(1.0 / tf.cast(i - bad, tf.float32), "bad row") * 0 + tf.cast(i, tf.float32)
        )
    )


def divided(hvdata, make, **options):
    """A channel whose readers divide what `make` makes."""
    options = {"batch": "per_rank", "remainder": "partial", "shard": "auto", **options}
    return hvdata.distribute_dataset(make if hvdata.is_reader() else None, **options)


def shares(hvdata, comm, dataset):
    """The elements of one pass for each trainer, in order. Other processes don't iterate."""
    return on_trainers(hvdata, comm, lambda: numpy_of(dataset))


def assert_delivered(got, want, note=None):
    assert [len(mine) for mine in got] == [len(mine) for mine in want], (note, got, want)
    for mine, its in zip(got, want):
        assert all(equal(a, b) for a, b in zip(mine, its)), (note, got, want)


def until_it_fails(hvdata, comm, dataset):
    """For each trainer the elements that came, and the text of the error after them."""

    def walk():
        got = []
        try:
            for element in dataset:
                got.append(float(element))
        except tf.errors.InvalidArgumentError as error:
            return got, str(error)
        return got, None

    return on_trainers(hvdata, comm, walk)
