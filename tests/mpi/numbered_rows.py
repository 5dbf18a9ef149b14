# SPDX-License-Identifier: Apache-2.0
"""Batches of numbered rows, and their shares, for tests of distribute_dataset() and loader() against the oracle."""

import itertools

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st
from loaders import Stream
from oracle import deliver, equal, is_dynamic_delivery
from together import local, merged, on_reader, on_trainers

REMAINDERS = ["drop", "partial", "pad", "repeat"]
PREFETCHES = st.sampled_from(["auto", 1, 2, 3, 5, 16])
ROWS = st.integers(0, 11) | st.integers(400, 900)  # of a batch


def batch_of(first: int, rows: int):
    """Rows with their numbers, in components of several kinds. Batches of 100 rows and more travel as messages."""
    ids = np.arange(first, first + rows, dtype=np.int64)
    return {
        "id": ids,
        "text": np.array([b"row %d\0" % i for i in ids], object),
        "x": (np.repeat(ids[:, None], 64, axis=1).astype(np.float32),),
    }


def batches_of(rows_of_batches, first: int = 0):
    starts = itertools.accumulate(rows_of_batches, initial=first)
    return [batch_of(first, rows) for first, rows in zip(starts, rows_of_batches)]


SPEC = {
    "id": tf.TensorSpec([None], tf.int64),
    "text": tf.TensorSpec([None], tf.string),
    "x": (tf.TensorSpec([None, 64], tf.float32),),
}


def dataset_of(batches):
    return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=SPEC)


# The source on the reader. All but the first are sources of loader().
SOURCES = {"dataset": dataset_of, "list": list, "stream": Stream, "tf.data": dataset_of}


def one_pass_of(hvdata, source, batches, **options):
    """Makes a channel of these batches. Returns a function that gives a rank's shares of an epoch."""
    make = on_reader(hvdata, lambda: SOURCES[source](batches))
    if source == "dataset":
        dataset = hvdata.distribute_dataset(make, **options)
        return lambda: local(dataset)
    loader = hvdata.loader(make, **options)
    return lambda: list(loader)


def check(got, want):
    assert len(set(map(len, got))) == 1, "contract 3: every rank has the same number of steps"
    for rank, (mine, right) in enumerate(zip(got, want)):
        same = [equal(a, b) for a, b in itertools.zip_longest(mine, right)]
        assert all(same), f"rank {rank}: got {mine}, not {right}"


def delivers(hvdata, comm, one_pass, batches, batch, remainder, epochs=2):
    """Asserts that each rank gets the oracle's rows in every epoch, and the job all rows that are delivered in order.
    `one_pass()` has a rank's shares of an epoch."""
    for _ in range(epochs):
        got = on_trainers(hvdata, comm, one_pass)
        check(got, deliver(batches, len(got), batch, remainder=remainder))
        if remainder == "partial":
            order = [row for share in merged(got) for row in share["id"]]
            assert order == list(range(sum(len(batch["id"]) for batch in batches))), "contract 4: the reader's order"


def delivers_dynamically(hvdata, comm, one_pass, batches, remainder):
    for _ in range(2):
        got = on_trainers(hvdata, comm, one_pass)
        if remainder in ("pad", "repeat"):  # no row is ever missing
            assert all(weight.tolist() == [1.0] * len(batch["id"]) for mine in got for batch, weight in mine), got
            got = [[batch for batch, _ in mine] for mine in got]
        assert is_dynamic_delivery(batches, got), got
