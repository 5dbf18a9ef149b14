# SPDX-License-Identifier: Apache-2.0
"""A process of another user looks for a job's memory, while its ranks deliver. docs/security.md says what it can do."""

import os
import subprocess
import sys

import psutil
import pytest
from jobs import start_job

NOBODY = 65534

EPOCHS = """
import time
import numpy as np, tensorflow as tf
import horovod_data as hvdata
hvdata.init()
n = hvdata.size()
ds = hvdata.distribute_dataset(
    lambda: tf.data.Dataset.range(64 * 30 * n).map(lambda i: tf.fill([1024], i)).batch(64), batch="per_rank", verify=True)
for epoch in range(2):
    rows = []
    for x in ds:
        rows.append(x.numpy())
        time.sleep(0.05)
    rows = np.concatenate(rows)
    assert (rows[:, 0] == np.concatenate([np.arange(64) + 64 * (s * n + hvdata.rank()) for s in range(30)])).all()
    print("epoch", epoch, flush=True)
"""

LOOK = """
import sys
for pid in sys.argv[1:]:
    for name in ["mem", "maps", "environ", *(f"fd/{n}" for n in range(200))]:
        try:
            with open(f"/proc/{pid}/{name}", "rb", 0) as file:
                print(pid, name)
        except OSError as refused:
            print("refused" if isinstance(refused, PermissionError) else "none", file=sys.stderr)
"""


@pytest.mark.limit(240)
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of another user")
def test_another_user_opens_nothing():
    with start_job(EPOCHS, np=3) as job:
        job.wait_for("epoch 0", rank=0, timeout=120)
        ranks = [str(one.pid) for one in psutil.Process().children(recursive=True) if "python" in one.name()]
        looked = subprocess.run(
            [getattr(sys, "_base_executable", sys.executable), "-I", "-S", "-c", LOOK, *ranks],
            user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", capture_output=True, text=True,
        )  # fmt: skip
        assert job.finish(timeout=120) == 0, job.describe()
    assert looked.returncode == 0 and looked.stdout == "", looked
    assert looked.stderr.count("refused") >= 3 * 200, looked
