# SPDX-License-Identifier: Apache-2.0
"""Backup of PyTorch's objects: a loop that is broken off goes on, on other ranks, as if nothing had been."""

import json

import pytest
from jobs import run_job

pytest.importorskip("torch")

PROGRAM = """
import json, sys
import numpy as np
import torch
import horovod_data as hvdata

class Broken(Exception):
    pass

hvdata.init()
torch.manual_seed(7)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters(), 0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
loader = hvdata.loader([np.full((4, 3), i, np.float32) for i in range(10)], batch="global", to="torch")
hvdata.serve()
seen = []
try:
    objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    with hvdata.Backup(sys.argv[1], every=3, seconds=None, **objects) as backup:
        for epoch in backup.epochs(2):
            for share in backup.steps(loader):
                if backup.step == int(sys.argv[2]):
                    raise Broken
                seen.append(float(share[0, 0]))
                optimizer.zero_grad()
                model(share).mean().backward()
                optimizer.step()
                scheduler.step()
except Broken:
    pass
assert "tensorflow" not in sys.modules
print(json.dumps([seen, torch.cat([one.detach().ravel() for one in model.parameters()]).tolist(), scheduler.last_epoch]))
"""


def run(folder, np, stop=-1):
    job = run_job(PROGRAM, np, str(folder), str(stop))
    return json.loads(job.stdout[0])


def test_a_loop_goes_on(tmp_path):
    whole, one, two = run(tmp_path / "whole", 2), run(tmp_path / "sets", 2, stop=8), run(tmp_path / "sets", 1)
    assert one[0] == whole[0][:8] and two[0] == whole[0][6:]
    assert two[1] == pytest.approx(whole[1], abs=1e-5) and two[2] == whole[2] == 20
