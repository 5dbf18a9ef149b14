# SPDX-License-Identifier: Apache-2.0
"""tf.data allows a None in an element. It is part of the structure, so every rank has it in the same place."""

import numpy as np
import pytest
import tensorflow as tf
from together import elements, results

pytestmark = pytest.mark.world(np=4)


def with_none(rows, batch):
    return tf.data.Dataset.range(rows).batch(batch).map(lambda x: (x, None, {"a": None, "b": tf.strings.as_string(x)}))


def rows_of(steps):
    """The rows of with_none(), after a check of what is beside them."""
    got = []
    for x, none, rest in steps:
        assert none is None and rest["a"] is None
        assert np.asarray(rest["b"]).tolist() == [str(i).encode() for i in np.asarray(x)]
        got += np.asarray(x).tolist()
    return got


@pytest.mark.parametrize("batch, schedule", [("global", "static"), ("per_rank", "static"), ("per_rank", "dynamic")])
@pytest.mark.parametrize("remainder", ["drop", "partial", "pad"])
def test_a_none_is_where_it_was(hvdata, comm, batch, schedule, remainder):
    source = with_none(12 * comm.size, 2 * comm.size)
    ds = hvdata.distribute_dataset(source, batch=batch, schedule=schedule, remainder=remainder)
    spec = ds.element_spec[0] if remainder == "pad" else ds.element_spec
    assert type(spec[1]).__name__ == type(spec[2]["a"]).__name__ == "NoneTensorSpec"
    kept = []
    for steps in elements(comm, ds):
        if remainder == "pad":  # leave out the padding
            steps = [(x[w > 0], none, {"a": rest["a"], "b": rest["b"][w > 0]}) for (x, none, rest), w in steps]
        kept += rows_of(steps)
    whole = remainder != "drop" or batch == "global" or schedule == "dynamic"
    assert sorted(kept) == list(range(len(kept))) and len(kept) >= (12 if whole else 6) * comm.size


@pytest.mark.parametrize("batch", ["global", "per_rank"])
def test_beside_a_ragged_tensor(hvdata, comm, batch):
    source = tf.data.Dataset.range(6 * comm.size).batch(2 * comm.size)
    source = source.map(lambda x: (None, tf.RaggedTensor.from_row_lengths(tf.repeat(x, x), x), x))
    ds = hvdata.distribute_dataset(source, batch=batch, remainder="partial")
    rows = results(comm, lambda: [(none, ragged.to_list(), x.numpy().tolist()) for none, ragged, x in ds])
    seen = []
    for none, ragged, x in sum(rows, []):
        assert none is None and ragged == [[i] * i for i in x]
        seen += x
    assert sorted(seen) == list(range(6 * comm.size))


def test_the_weight_of_keras(hvdata, comm):
    """(x, None) becomes (x, None, weight), as (x, y) does."""
    source = tf.data.Dataset.range(5).batch(5).map(lambda x: (x, None))
    ds = hvdata.distribute_dataset(source, batch="global", remainder="pad")
    for x, none, weight in [step for steps in elements(comm, ds) for step in steps]:
        assert none is None and x.shape == weight.shape


def test_an_audit_passes_it_on(hvdata, comm):
    audited = hvdata.audit(with_none(6, 2).shard(comm.size, comm.rank))
    assert sorted(sum(results(comm, lambda: rows_of(audited)), [])) == list(range(6))
