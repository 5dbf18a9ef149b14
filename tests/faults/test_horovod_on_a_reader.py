# SPDX-License-Identifier: Apache-2.0
"""A dedicated reader that calls hvd.init() is told so at once, by whichever module and whenever that was imported."""

import pytest
from jobs import run_job

pytestmark = [pytest.mark.horovod, pytest.mark.limit(120)]

SCRIPT = """
import horovod_data as hvdata
{before}
hvdata.init()
{after}
try:
    hvd.init()
    print("joined as rank", hvd.rank(), flush=True)
except RuntimeError as error:
    print(error, flush=True)
hvdata.serve()
print("behind serve", hvd.size(), flush=True)
"""


@pytest.mark.commit("after-horovod.tensorflow")
@pytest.mark.parametrize("module", ["horovod.tensorflow", "horovod.tensorflow.keras", "horovod.keras"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_hvd_init_on_a_dedicated_reader(module, when):
    imports = {"before": "", "after": "", when: f"import {module} as hvd"}
    job = run_job(SCRIPT.format(**imports), np=1, readers=1, timeout=90)
    assert job.returncode == 0, job.describe()
    assert job.stdout[0] == "joined as rank 0\nbehind serve 1\n", job.describe()
    assert "reader 0 on " in job.stdout[1] and "hvd.init() was called on a dedicated reader" in job.stdout[1], (
        job.describe()
    )
    assert "serve()" in job.stdout[1] and "joined" not in job.stdout[1], job.describe()


def test_uncaught_it_ends_the_job():
    job = run_job(
        """
import horovod_data as hvdata
import horovod.tensorflow as hvd
hvdata.init()
hvd.init()
hvdata.distribute_dataset(None, batch="global")
""",
        np=1,
        readers=1,
        timeout=60,
    )
    assert job.returncode == 1, job.describe()
    assert "RuntimeError" in job.stderr[1] and "on a dedicated reader" in job.stderr[1], job.describe()
