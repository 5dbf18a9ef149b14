# SPDX-License-Identifier: Apache-2.0
"""For tests with several readers: a dataset on each, and what the trainers get."""

import numbered_rows
import tensorflow as tf
from checkpoints import restore, save, take
from together import local, on_trainers


def batches_of(reader: int, rows_of_batches):
    """Rows whose numbers tell their reader."""
    return numbered_rows.batches_of(rows_of_batches, 1000 * reader)


def from_readers(batches_of_readers, seen=None):
    """A dataset function that yields other batches on each reader."""

    def function(context):
        if seen is not None:
            seen.append((context.input_pipeline_id, context.num_input_pipelines, context.num_replicas_in_sync))
        return numbered_rows.dataset_of(batches_of_readers[context.input_pipeline_id])

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
    return on_trainers(hvdata, comm, lambda: local(dataset))


def saved_and_restored(hvdata, comm, ds, path, steps):
    """What each trainer takes in so many steps of an epoch, and its new iterator, restored behind them."""
    iterator = iter(ds) if hvdata.is_trainer() else None
    got = on_trainers(hvdata, comm, lambda: take(iterator, steps))
    on_trainers(hvdata, comm, lambda: save(iterator, path))
    again = iter(ds) if hvdata.is_trainer() else None
    on_trainers(hvdata, comm, lambda: restore(again, path))
    return got, again


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
