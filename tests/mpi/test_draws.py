# SPDX-License-Identifier: Apache-2.0
"""Random numbers behind distribute_dataset(): what docs/random.md promises of seeds."""

import numpy as np
import pytest
import tensorflow as tf
from together import on_reader, on_trainers

pytestmark = [pytest.mark.world(np=3), pytest.mark.ranks(1, 2, 3, 4), pytest.mark.readers(0, 1)]


@pytest.fixture(autouse=True)
def no_seed_is_left():
    yield
    tf.random.set_seed(None)
    np.random.seed(None)


def data(ranks):
    """Two steps, of 8 rows for each rank."""
    return tf.data.Dataset.range(16 * ranks).batch(8 * ranks)


def distributed(hvdata, comm, name):
    ranks = comm.allreduce(int(hvdata.is_trainer()))
    return hvdata.distribute_dataset(on_reader(hvdata, lambda: data(ranks)), batch="global", name=name), ranks


def draws(hvdata, comm, epochs, make):
    """All that each trainer draws in each epoch of make(), by epoch: one list over all trainers."""

    def run():
        dataset = make()
        return [[float(x) for batch in dataset for x in np.ravel(batch)] for _ in range(epochs)]

    got = on_trainers(hvdata, comm, run)
    return [sum((mine[epoch] for mine in got), []) for epoch in range(epochs)]


def uniform(rows):
    return tf.random.uniform(tf.shape(rows))


def brightened(dataset):
    layer = tf.keras.layers.RandomBrightness(0.2, value_range=(0, 1))
    return dataset.map(lambda rows: layer(tf.fill([tf.shape(rows)[0], 2, 2, 3], 0.5), training=True)[:, 0, 0, 0])


def dropped_out(dataset):
    """The number that the dropped units of a row make in base 2."""
    layer, base = tf.keras.layers.Dropout(0.5), tf.constant([[2.0**k] for k in range(22)])
    call = tf.function(lambda rows: tf.cast(layer(tf.ones([tf.shape(rows)[0], 22]), training=True) > 0, tf.float32))
    return [tf.matmul(call(rows), base).numpy() for rows in dataset]


WAYS = {
    "a random op": lambda dataset: dataset.map(uniform),
    "a layer that augments": brightened,
    "dropout": dropped_out,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_seed_for_each_rank_gives_other_draws_on_each(hvdata, comm, way):
    dataset, ranks = distributed(hvdata, comm, f"seeds of {way}")
    for of_rank in True, False:

        def make(of_rank=of_rank):
            tf.keras.utils.set_random_seed(1 + hvdata.rank() * of_rank)
            return WAYS[way](dataset)

        (drawn,) = draws(hvdata, comm, 1, make)
        different = len(set(drawn))
        assert len(drawn) == 16 * ranks
        assert different == (16 * ranks if of_rank else 16), (way, of_rank, different)


def test_stateless_draws_differ_by_epoch_too(hvdata, comm):
    dataset, ranks = distributed(hvdata, comm, "stateless")

    def make():
        seeds = tf.data.Dataset.random(seed=1 + hvdata.rank(), rerandomize_each_iteration=True).batch(2)
        return tf.data.Dataset.zip((dataset, seeds)).map(
            lambda rows, seed: tf.random.stateless_uniform(tf.shape(rows), seed)
        )

    first, second = draws(hvdata, comm, 2, make)
    assert len(set(first + second)) == 2 * 16 * ranks


@pytest.mark.world(np=2, readers=2)
@pytest.mark.readers(2)
def test_a_seed_for_each_reader_gives_other_draws_on_each(hvdata, comm):
    ranks = comm.allreduce(int(hvdata.is_trainer()))
    for of_reader in True, False:

        def make(context, of_reader=of_reader):
            seed = 1 + of_reader * context.input_pipeline_id
            return data(ranks).map(lambda rows: tf.random.uniform(tf.shape(rows), seed=seed))

        dataset = hvdata.distribute_dataset(make, batch="global", name=f"readers {of_reader}")
        (drawn,) = draws(hvdata, comm, 1, lambda dataset=dataset: dataset)
        assert len(set(drawn)) == len(drawn) // (1 if of_reader else 2)
