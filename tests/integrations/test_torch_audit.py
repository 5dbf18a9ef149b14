# SPDX-License-Identifier: Apache-2.0
"""hvdata.audit of PyTorch's own DataLoader and DistributedSampler, where PyTorch is installed."""

import json

import pytest
from jobs import run_job

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.limit(150)]

# 103 rows on 2 ranks. The sampler repeats a row, or with drop_last leaves a row out. Without a sampler each rank reads
# all.
SCRIPT = """
import json
import torch
import horovod_data as hvdata
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

hvdata.init()
rows = TensorDataset(torch.arange(103), torch.rand(103, 4))

def audited(sampler):
    audit = hvdata.audit(DataLoader(rows, batch_size=10, sampler=sampler), key=0, reference=103)
    for number, features in audit:
        assert isinstance(features, torch.Tensor) and features.shape == (len(number), 4)
    report = audit.report()
    if hvdata.rank() == 0:
        print("REPORT", json.dumps([report.never, report.times, report.rows, report.steps]), flush=True)

of_rank = dict(num_replicas=hvdata.size(), rank=hvdata.rank())
audited(DistributedSampler(rows, **of_rank, shuffle=True, seed=7))
audited(DistributedSampler(rows, **of_rank, shuffle=True, seed=7, drop_last=True))
audited(DistributedSampler(rows, **of_rank, shuffle=True, seed=hvdata.rank()))  # the seed must be the same on all ranks
audited(None)
"""


def test_a_data_loader_with_its_sampler():
    job = run_job(SCRIPT, 2, timeout=120)
    repeats, dropped, seeds, all_of_it = [
        json.loads(line.partition(" ")[2]) for line in job.stdout[0].splitlines() if line.startswith("REPORT")
    ]
    assert repeats == [0, {"1": 102, "2": 1}, [52, 52], [6, 6]], job.describe()
    assert dropped == [1, {"1": 102}, [51, 51], [6, 6]], job.describe()
    assert seeds[0] > 10 and seeds[1]["2"] > 10, job.describe()
    assert all_of_it == [0, {"2": 103}, [103, 103], [11, 11]], job.describe()
