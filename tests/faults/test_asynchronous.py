# SPDX-License-Identifier: Apache-2.0
"""A program that has TensorFlow run its ops later than it asks for them: epochs are dealt as in any other program."""

import re

import pytest
import tensorflow as tf
from jobs import run_program

pytestmark = pytest.mark.limit(120)

SCRIPT = """
try:
    dataset = train(lambda: {make}, verify=True)
    for epoch in (1, 2):
        say("rows", [{number}(row) for row in dataset])
except tf.errors.OpError as error:
    say("raised", error.message)
"""
LATER = "import tensorflow as tf; tf.config.experimental.set_synchronous_execution(False)"


@pytest.mark.commit("1")
@pytest.mark.parametrize("readers", [0, 1])
def test_epochs_are_those_of_one_process(readers):
    plain = tf.data.Dataset.range(24).shuffle(24, seed=5)
    want = [[int(row) for row in plain] for _ in range(2)]
    script = SCRIPT.format(make="tf.data.Dataset.range(24).shuffle(24, seed=5)", number="int")
    job = run_program(script, 2, readers=readers, before=LATER)
    for rank, out in enumerate(job.stdout[:2]):
        assert out.splitlines() == [f"rows {epoch[rank::2]}" for epoch in want], job.describe()
    said = re.findall(r"channel train, epoch (\d): (.*)", "".join(job.stderr))
    assert [number for number, _ in said] == ["1", "2"], job.describe()
    assert all(words.startswith("24 rows that the reader yielded, each delivered once; 0 lost") for _, words in said), job.describe()


def test_a_pipeline_that_raises():
    make = "tf.data.Dataset.range(8).map(lambda x: tf.debugging.check_numerics(1 / tf.cast(4 - x, tf.float32), 'four'))"
    job = run_program(SCRIPT.format(make=make, number="float"), 2, before=LATER)
    job.assert_said("raised .*four : Tensor had Inf values", 0, 1)
