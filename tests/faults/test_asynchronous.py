# SPDX-License-Identifier: Apache-2.0
"""A program that has TensorFlow run its ops later than it asks for them: epochs are dealt as ever."""

import re

import pytest
import tensorflow as tf
from jobs import run_job

pytestmark = pytest.mark.limit(120)

SCRIPT = """
import time
import tensorflow as tf
tf.config.experimental.set_synchronous_execution(False)
import horovod_data as hvdata
hvdata.init()
dataset = hvdata.distribute_dataset({make}, batch="per_rank", name="train", verify=True)
try:
    for epoch in (1, 2):
        print("rows", [int(row) for row in dataset], flush=True)
except tf.errors.OpError as error:
    print("raised", error.message, flush=True)
"""


def shuffled():
    return tf.data.Dataset.range(24).shuffle(24, seed=5)


@pytest.mark.commit("dedicated")
@pytest.mark.parametrize("readers", [0, 1], ids=["embedded", "dedicated"])
def test_epochs_are_those_of_one_process(readers):
    plain = shuffled()
    want = [[int(row) for row in plain] for _ in range(2)]
    job = run_job(
        SCRIPT.format(make="lambda: tf.data.Dataset.range(24).shuffle(24, seed=5)"), np=2, readers=readers, timeout=100
    )
    assert job.returncode == 0, job.describe()
    for rank, out in enumerate(job.stdout[:2]):
        assert out.splitlines() == [f"rows {epoch[rank::2]}" for epoch in want], job.describe()
    said = re.findall(r"channel train, epoch (\d): (.*)", "".join(job.stderr))
    assert [number for number, _ in said] == ["1", "2"], job.describe()
    assert all(words.startswith("24 rows, each delivered once; 0 lost") for _, words in said), job.describe()


def test_a_pipeline_that_raises():
    make = "lambda: tf.data.Dataset.range(8).map(lambda x: tf.debugging.check_numerics(1 / tf.cast(4 - x, tf.float32), 'four'))"
    job = run_job(SCRIPT.format(make=make).replace("int(row)", "float(row)"), np=2, timeout=100)
    assert job.returncode == 0, job.describe()
    for out in job.stdout:
        assert re.search(r"raised .*four : Tensor had Inf values", out), job.describe()
