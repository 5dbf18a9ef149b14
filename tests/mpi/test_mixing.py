# SPDX-License-Identifier: Apache-2.0
"""Weighted mixtures on one reader: the job gets the same mixture on any number of ranks.

Resumed on another number of ranks: tests/faults/test_resume.py.
"""

import numpy as np
import pytest
import tensorflow as tf
from together import elements, local

pytestmark = pytest.mark.world(np=1)

SOURCES = 3
WEIGHTS = [0.6, 0.3, 0.1]


@pytest.fixture(autouse=True)
def one_seed():
    """A rank's own global seed, which other tests set, counts beside that of a dataset."""
    tf.random.set_seed(5)


def mixture(rows=200, seed=11, **options):
    """Rows that say their source: 1000 times it, and more."""
    sources = [tf.data.Dataset.range(1000 * k, 1000 * k + rows) for k in range(SOURCES)]
    return tf.data.Dataset.sample_from_datasets(sources, WEIGHTS, seed=seed, **options)


def counts(rows):
    return [sum(row // 1000 == k for row in rows) for k in range(SOURCES)]


@pytest.mark.parametrize("batch", ["global", "per_rank"])
def test_the_mixture_is_that_of_the_job(hvdata, comm, batch):
    """The rows are those of the mixture, so the counts of each source are, too."""
    source = mixture(stop_on_empty_dataset=True).batch(6)
    ds = hvdata.distribute_dataset(source, batch=batch, remainder="partial")
    got = elements(comm, ds)
    joined = [int(row) for step in zip(*got) for part in step for row in part]
    wanted = [int(row) for part in local(source) for row in part]
    assert joined == wanted and counts(joined) == counts(wanted)
    assert np.allclose(np.array(counts(joined)) / len(joined), WEIGHTS, atol=0.12)


def test_weights_of_an_epoch(hvdata, comm):
    """A function of the epoch gives each its own weights."""

    def curriculum(epoch):
        sources = [tf.data.Dataset.range(1000 * k, 1000 * k + 50).repeat() for k in range(2)]
        return tf.data.Dataset.sample_from_datasets(sources, [1 - epoch / 4, epoch / 4], seed=epoch).take(80).batch(8)

    ds = hvdata.distribute_dataset(curriculum, batch="global", remainder="partial")
    for epoch in 1, 2, 3:
        rows = [int(row) for steps in elements(comm, ds) for part in steps for row in part]
        wanted = [int(row) for part in local(curriculum(epoch)) for row in part]
        assert sorted(rows) == sorted(wanted) and counts(rows) == counts(wanted)
