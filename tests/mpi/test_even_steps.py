# SPDX-License-Identifier: Apache-2.0
"""even_batches before distribute_dataset: even steps, each row once, exact weights, and a restore in mid-window."""

import numpy as np
import pytest
import tensorflow as tf
from checkpoints import restored, saved
from together import local, on_reader, on_trainers, results

pytestmark = [pytest.mark.world(np=2), pytest.mark.ranks(1, 2, 3, 4)]

ROWS = 300


def tokens_of(i):
    """5 to 63 of them. Each token of a row is the number of the row, from 1 on."""
    return i * 37 % 59 + 5


def sequences(hvdata, ranks, how):
    rows = tf.data.Dataset.range(1, 1 + ROWS).map(lambda i: (tf.fill([tokens_of(i)], i), tf.strings.as_string(i)))
    return rows.apply(hvdata.even_batches(lambda x, _: tf.size(x), ranks=ranks, window=100, **how))


def weigh(x, _):
    return tf.math.count_nonzero(x, axis=1)


def distributed(hvdata, comm, how):
    ranks = sum(comm.allgather(hvdata.is_trainer()))
    make = on_reader(hvdata, lambda: sequences(hvdata, ranks, how))
    return hvdata.distribute_dataset(make, batch="per_rank", remainder="pad", weigh=weigh, verify=True), ranks


@pytest.mark.world(np=3)
@pytest.mark.readers(0, 1)
@pytest.mark.parametrize("how", [{"max_cost": 512}, {"batch_size": 8}])
def test_every_rank_gets_even_batches_with_exact_weights(hvdata, comm, how):
    dataset, ranks = distributed(hvdata, comm, how)
    steps = list(zip(*on_trainers(hvdata, comm, lambda: local(dataset))))
    rows = [int(text) for step in steps for _, texts, _ in step for text in texts if text]
    assert sorted(rows) == list(range(1, 1 + ROWS))
    for number, step in enumerate(steps):
        costs = [x.size if "max_cost" in how else np.count_nonzero(x) for x, *_ in step]
        if number < len(steps) - 1:
            assert max(costs) <= 1.1 * np.mean(costs) and max(costs) <= 512
        # The loss of a row is the mean of its tokens, which is its number.
        real = np.concatenate([x[:, 0] for x, *_ in step])
        tokens = tokens_of(real) * (real > 0)
        mean_of_means = np.mean([np.mean(x[:, 0] * weight) for x, _, weight in step])
        assert abs(mean_of_means - np.sum(real * tokens) / np.sum(tokens)) < 1e-5 * ROWS


def test_a_restored_job_goes_on_in_mid_window(hvdata, comm, path):
    dataset, _ = distributed(hvdata, comm, {"max_cost": 512})
    it = iter(dataset)
    results(comm, lambda: [next(it) and None for _ in range(2)])
    saved(comm, it, path)
    rest = results(comm, lambda: local(it))
    again = restored(comm, dataset, path)
    assert str(results(comm, lambda: local(again))) == str(rest) and all(len(mine) > 2 for mine in rest)
