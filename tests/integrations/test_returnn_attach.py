# SPDX-License-Identifier: Apache-2.0
"""attach() for RETURNN where the job has begun already. A stand-in has the two classes that it changes: RETURNN is not asked."""

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
{begin}
print("use_horovod", returnn.attach(), hvdata.num_readers(), flush=True)
hvdata.shutdown()
try:
    returnn.attach()
except RuntimeError as error:
    print("raised", error, flush=True)
"""


@pytest.mark.parametrize("begin, readers", [("", 0), ("hvdata.init()", 0), ("hvdata.init(readers=1)", 1)])
def test_after_init_or_before(begin, readers):
    job = run_job(SCRIPT.format(begin=begin), np=3, timeout=100)
    assert job.returncode == 0, job.describe()
    assert sorted(out.splitlines()[0] for out in job.stdout) == sorted(
        [f"use_horovod {rank >= readers} {max(readers, 1)}" for rank in range(3)]), job.describe()
    assert all("raised returnn.attach() was called after the end of the job" in out for out in job.stdout), job.describe()
