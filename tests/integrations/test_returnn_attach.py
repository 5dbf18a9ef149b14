# SPDX-License-Identifier: Apache-2.0
"""attach() for RETURNN in a job that has already begun. A stand-in has the two classes that attach() changes."""

import pytest
from jobs import run_job

pytestmark = pytest.mark.limit(120)

SCRIPT = """
import sys, types
import horovod_data as hvdata

class InputContext:
    get_returnn_dataset = map_producer_to_consumer = None

class DatasetDataProvider:
    get_complete_frac = None

pipeline = types.ModuleType("returnn.tf.data_pipeline")
pipeline.InputContext, pipeline.DatasetDataProvider = InputContext, DatasetDataProvider
for name in ("returnn", "returnn.tf"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["returnn.tf.data_pipeline"] = sys.modules["returnn.tf"].data_pipeline = pipeline
for method in (InputContext, "get_returnn_dataset"), (DatasetDataProvider, "get_complete_frac"):
    setattr(*method, lambda self: None)

from horovod_data.integrations import returnn
hvdata.init(readers=1)
for wrong in {"name": "x"}, {"bach": "global"}:
    try:
        returnn.attach(**wrong)
    except TypeError as error:
        print("refused", error, flush=True)
print("use_horovod", returnn.attach(), hvdata.num_readers(), flush=True)
hvdata.shutdown()
try:
    returnn.attach()
except RuntimeError as error:
    print("raised", error, flush=True)
"""


def test_after_init():
    """attach() does not call init() again: its arguments may have been others than the environment's."""
    job = run_job(SCRIPT, np=2, timeout=100)
    first, second, used, after = zip(*(out.splitlines() for out in job.stdout))
    assert all("attach() was given name. It takes batch, cache, on_reader_error" in line for line in first), (
        job.describe()
    )
    assert all("attach() was given bach. It takes" in line for line in second), job.describe()
    assert sorted(used) == ["use_horovod False 1", "use_horovod True 1"], job.describe()
    assert all("] returnn.attach() was called after the end of the job" in line for line in after), job.describe()
