# SPDX-License-Identifier: Apache-2.0
"""What a reader runs for the datasets of TF1 programs takes no GPU: neither its own sessions nor the eager context."""

import pytest
from jobs import run_job

pytestmark = pytest.mark.limit(120)

SCRIPT = """
import gc
import tensorflow as tf
from tensorflow.python.eager import context
v1 = tf.compat.v1
v1.disable_eager_execution()
import horovod_data as hvdata
hvdata.init()
first = v1.data.Dataset.range(8) if hvdata.is_reader() else None  # an object of this graph: dealt in a session
datasets = [hvdata.distribute_dataset(first, batch="per_rank"),
            hvdata.distribute_dataset(lambda: tf.data.Dataset.range(8), batch="per_rank")]  # a function: dealt eagerly
fetches = [v1.data.make_one_shot_iterator(one).get_next() for one in datasets]
program = v1.ConfigProto()
program.gpu_options.visible_device_list = "0"
program.gpu_options.per_process_gpu_memory_fraction = 0.1
with v1.Session(config=program) as session:
    for fetch in fetches:
        print("got", [int(session.run(fetch)) for _ in range(4)], flush=True)
    if hvdata.is_reader():
        ours = [one for one in gc.get_objects() if issubclass(type(one), v1.Session) and one is not session]
        print("sessions", [dict(one._config.device_count) for one in ours], flush=True)
        print("eager", context.context().config.device_count["GPU"],
              [one.device_type for one in tf.config.get_visible_devices()], flush=True)
"""


def test_a_tf1_program_with_a_visible_device_list():
    job = run_job(SCRIPT, np=2, timeout=100)
    assert job.returncode == 0, job.describe()
    for rank, out in enumerate(job.stdout):
        assert out.count(f"got {list(range(rank, 8, 2))}") == 2, job.describe()
    assert "sessions [{'GPU': 0}]" in job.stdout[0] and "eager 0 ['CPU']" in job.stdout[0], job.describe()
