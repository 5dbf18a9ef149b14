# SPDX-License-Identifier: Apache-2.0
"""horovod-data-run --audit audits the data of Keras' Model.fit, in programs that do not know of it."""

import re

import pytest
from launched import run_launcher

pytestmark = [pytest.mark.horovod, pytest.mark.limit(120)]

START = """
import numpy as np
import tensorflow as tf
import horovod.tensorflow.keras as hvd
hvd.init()
x = np.arange(64, dtype=np.float32)
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
def data():
    return tf.data.Dataset.from_tensor_slices((x[:, None] / 64, x))
"""


def run(tmp_path, *lines, options=("--audit",), env=None):
    (tmp_path / "train.py").write_text(START + "\n".join(lines) + "\nprint('up to the end')\n")
    job = run_launcher("-np", "2", *options, "python", str(tmp_path / "train.py"), env=env, timeout=100)
    assert job.output.count("up to the end") == 2, job.output
    return job.output


def verdicts(output):
    """Returns which rows each audit saw more than once in each epoch, as "audit.epoch: 100.0 %" or ": no row"."""
    pattern = r"audit (\d+), epoch (\d+): (no row|[\d.]+ %)(?: more than once| of the rows were seen more than once)"
    return sorted(f"{audit}.{epoch}: {rows}" for audit, epoch, rows in re.findall(pattern, output))


@pytest.mark.commit
def test_datasets_and_arrays(tmp_path):
    output = run(
        tmp_path,
        "mine = data().shard(hvd.size(), hvd.rank()).batch(8)",
        "history = model.fit(mine, epochs=2, verbose=0).history",
        "assert len(history['loss']) == 2",
        "model.fit(data().batch(16), verbose=0, callbacks=[tf.keras.callbacks.History()])",  # the same on both ranks
        "model.fit(mine.filter(lambda *_: True), epochs=3, verbose=0)",
        "model.fit(mine.repeat(), epochs=2, steps_per_epoch=3, verbose=0, validation_data=(x[:, None], x))",
        "model.fit(x[:, None], x, verbose=0)",
        "model.fit(x[:, None], x, verbose=0, validation_split=0.5)",
        "model.fit((batch for batch in mine), verbose=0)",
    )
    once = [f"{number}: no row" for number in ("1.1", "1.2", "3.1", "3.2", "3.3", "4.1", "4.2")]
    assert verdicts(output) == sorted([*once, "2.1: 100.0 %", "5.1: 100.0 %"]), output
    assert "All ranks saw the same rows: nothing gives each rank its own part of them." in output
    assert output.count("not audited: x is a numpy.ndarray, of which validation_split takes a part away") == 1, output
    assert output.count("x is a builtins.generator, from which Keras takes batches before it trains with them") == 1, (
        output
    )
    assert output.count("has validation_data, which is not audited") == 1, output


def test_a_fit_within_a_fit(tmp_path):
    """A program's callback may make it on some ranks alone. It is not audited, and rank 0 reports that."""
    output = run(
        tmp_path,
        "other = tf.keras.Sequential([tf.keras.layers.Dense(1)])",
        "other.compile('sgd', 'mse')",
        "inner = tf.keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: other.fit(x[:, None], x, verbose=0))",
        "model.fit(data().shard(hvd.size(), hvd.rank()).batch(8), epochs=2, verbose=0, callbacks=[inner])",
    )
    assert verdicts(output) == ["1.1: no row", "1.2: no row"], output
    assert output.count("Model.fit was called within a call of Model.fit, and is not audited") == 1, output


def test_what_cant_be_audited_is_trained_with_all_the_same(tmp_path):
    """A dataset within the elements has no bytes. A batch of one rank that has no keys is in the report."""
    output = run(
        tmp_path,
        "class Named(tf.keras.Model):",
        "    def __init__(self):",
        "        super().__init__()",
        "        self.layer = tf.keras.layers.Dense(1)",
        "    def call(self, inputs):",
        "        return self.layer(inputs)",
        "    def train_step(self, batch):",
        "        return super().train_step((batch[0]['x'], batch[1]))",
        "    def _symbolic_build(self, *arguments, **named):",  # Keras would call the model with the dataset
        "        pass",
        "named = Named()",
        "named.build((None, 1))",
        "named.compile('sgd', 'mse')",
        "strange = data().batch(16).map(lambda x, y: ({'x': x, 'more': tf.data.Dataset.range(3)}, y))",
        "assert len(named.fit(strange, epochs=2, verbose=0).history['loss']) == 2",
        "import horovod_data.auditing.record as record",
        "made = record.keys_of",
        "def keys_of(element, key):",
        "    if hvd.rank() and element[1][0] == 32:",
        "        raise TypeError('no such type')",
        "    return made(element, key)",
        "record.keys_of = keys_of",  # on one rank, in the middle
        "class Batches(tf.keras.utils.Sequence):",
        "    def __len__(self):",
        "        return 4",
        "    def __getitem__(self, index):",
        "        return x[16 * index:16 * index + 16, None], x[16 * index:16 * index + 16]",
        "model.fit(data().batch(16), epochs=2, verbose=0)",
        "model.fit(Batches(), verbose=0)",
    )
    not_audited = r"not audited: \[rank 0 on \S+\] component \[0\]\['more'\] of the dataset's elements is a DatasetSpec"
    assert len(re.findall(not_audited, output)) == 1, output
    assert re.findall(r"audit 2, epoch (\d): an error ended the epoch on rank 1", output) == ["1", "2"], output
    for epoch in (1, 2):
        assert f"Rank 1's epoch was ended after 2 steps by TypeError: audit 2, epoch {epoch}, step 3" in output
    assert output.count("not audited: x is a __main__.Batches, which Keras would not recognise in a wrapper") == 1, (
        output
    )


def test_a_rank_that_goes_on_alone_trains_without_it(tmp_path):
    """The other rank has ended, so audit() raises an error of TensorFlow's."""
    output = run(
        tmp_path,
        "import horovod_data as hvdata",
        "hvdata.init()",
        "model.fit(x[:, None], x, verbose=0)",
        "if hvd.rank() == 1: print('up to the end', flush=True); hvdata.shutdown(); raise SystemExit",
        "import time; time.sleep(2)",
        "model.fit(x[:, None], x, verbose=0)",
    )
    assert "this call of Model.fit is not audited: " in output and "has shut down" in output, output


def test_the_program_may_call_init_and_start_by_the_variable(tmp_path):
    lines = "import horovod_data as hvdata", "hvdata.init()", "model.fit(data().batch(16), verbose=0)"
    output = run(tmp_path, *lines, options=(), env={"HOROVOD_DATA_AUDIT": "1"})
    assert verdicts(output) == ["1.1: 100.0 %"], output


def test_a_program_without_fit_is_told(tmp_path):
    output = run(tmp_path, "list(data())")
    assert output.count("this program has not called Keras' Model.fit, so nothing was audited") == 1, output
