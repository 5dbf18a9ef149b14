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
    """Of which nothing is asked again: its arguments may have been others than the environment's."""
    job = run_job(SCRIPT, np=3, timeout=100)
    assert job.returncode == 0, job.describe()
    for out in job.stdout:
        first, second, *_ = out.splitlines()
        assert (
            "attach() was given name. It takes batch, on_reader_error" in first
            and "attach() was given bach. It takes" in second
        ), job.describe()
    assert sorted(out.splitlines()[2] for out in job.stdout) == ["use_horovod False 1", *["use_horovod True 1"] * 2], (
        job.describe()
    )
    assert all("] returnn.attach() was called after the end of the job" in out for out in job.stdout), job.describe()
