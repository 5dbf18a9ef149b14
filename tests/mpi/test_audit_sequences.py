# SPDX-License-Identifier: Apache-2.0
"""hvdata.audit of Keras' sequences: in fit, which fetches batches ahead in threads, and in loops of one's own."""

import time

import numpy as np
import pytest
import tensorflow as tf
from audits import keras
from together import raises_everywhere, results

pytestmark = pytest.mark.world(np=1)

BATCHES, ROWS = 3, 8
EVERY = "every row once"


@pytest.fixture
def batches(comm):
    class Batches(tf.keras.utils.Sequence):
        order = np.arange(BATCHES * ROWS)

        def __len__(self):
            return BATCHES

        def __getitem__(self, index):
            rows = self.order[ROWS * index : ROWS * (index + 1)].astype(np.float32) * comm.size + comm.rank
            return rows[:, None], rows

        def on_epoch_end(self):
            self.order = np.random.default_rng(int(self.order[0])).permutation(self.order)

    return Batches()


def ends(comm, audited):
    """Of its epochs on this rank: (what the report says, steps)."""
    results(comm, audited.report)
    return [(one.verdict, one.steps[comm.rank]) for one in audited.reports]


@pytest.mark.slow
@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("workers", [1, 4])
def test_fit(hvdata, comm, batches, workers):
    """With several workers Keras fetches on until it ends the epoch. These batches belong to no epoch."""
    audited = hvdata.audit(batches, reference=BATCHES * ROWS * comm.size)
    slow = tf.keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: time.sleep(0.4))  # as one that validates

    def fit(callbacks):
        keras().fit(audited, epochs=2, verbose=0, shuffle=True, workers=workers, callbacks=callbacks)

    for callbacks in ([], [slow]):
        results(comm, lambda callbacks=callbacks: fit(callbacks))
    assert ends(comm, audited) == [(EVERY, BATCHES)] * 4
    list(audited)
    assert ends(comm, audited)[4:] == [(EVERY, BATCHES)]


@pytest.mark.ranks(1, 2)
def test_loops(hvdata, comm, batches):
    """A loop that is left ends its epoch. A batch outside of a loop belongs to none."""
    audited = hvdata.audit(batches, reference=BATCHES * ROWS * comm.size)
    audited[0]
    raises_everywhere(comm, audited.report, RuntimeError, "called before the first epoch")
    for _ in audited:
        break
    assert results(comm, audited.report)[0].left == tuple(range(comm.size))
    for _ in range(2):
        for x, _ in audited:
            assert len(x) == ROWS
        audited.on_epoch_end()
    missing = f"{100 * (1 - 1 / BATCHES):.1f} % of the rows were never seen"
    assert ends(comm, audited) == [(missing, 1), (EVERY, BATCHES), (EVERY, BATCHES)]
    loop = iter(audited)
    next(loop)
    assert ends(comm, audited)[3:] == [(missing, 1)]
    for end in (audited.on_epoch_end, audited.end_epoch):
        for index in range(len(audited)):
            audited[index]
        end()
    assert ends(comm, audited)[4:] == [(EVERY, BATCHES)] * 2
    audited[1]
    audited.on_epoch_end()
    assert results(comm, audited.report)[0].left == tuple(range(comm.size))
