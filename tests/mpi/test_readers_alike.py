# SPDX-License-Identifier: Apache-2.0
"""shard="auto" by elements: readers whose pipelines yield other elements, or another order, end the epoch with an error."""

import numpy as np
import pytest
import tensorflow as tf
from together import generated, on_trainers, outcomes, raises_everywhere, results

pytestmark = [pytest.mark.world(np=2, readers=2), pytest.mark.readers(2), pytest.mark.limit(120)]
Data = tf.data.Dataset


@pytest.fixture(autouse=True)
def one_seed():
    tf.random.set_seed(5)


def distribute(hvdata, make, **options):
    options = {"batch": "per_rank", "remainder": "partial", "shard": "auto", **options}
    return hvdata.distribute_dataset(make if hvdata.is_reader() else None, **options)


def epoch(hvdata, ds):
    return [row for batch in ds for row in batch.numpy().tolist()] if hvdata.is_trainer() else None


def rows(hvdata, comm, ds):
    return sorted(sum(filter(None, results(comm, lambda: epoch(hvdata, ds))), []))


def fails(hvdata, comm, ds, *says):
    """One epoch ends with this error on every trainer."""
    got = [one for one, trains in zip(outcomes(comm, lambda: epoch(hvdata, ds)), comm.allgather(hvdata.is_trainer())) if trains]
    texts = [getattr(one, "text", f"it got {one}") for one in got]
    for text in texts:
        for what in (r'shard="auto" divides', "reader 0 on ", "reader 1 on ", *says):
            assert __import__("re").search(what, text), texts


def permuted(hvdata, change):
    """A permutation of 0 to 99 on reader 0. On the other readers it is changed."""
    order = np.arange(100)
    if hvdata.is_reader() and not is_first(hvdata):
        change(order)
    return order


def is_first(hvdata):
    return "reader 0 " in hvdata.where() if hasattr(hvdata, "where") else None
