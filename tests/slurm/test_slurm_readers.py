# SPDX-License-Identifier: Apache-2.0
"""The script of examples/slurm with a reader on each node."""

import pytest
from test_slurm import SCRIPTS, run, train  # noqa: F401

pytestmark = [pytest.mark.limit(150), pytest.mark.slow]


def test_a_reader_on_each_node(run, train):  # noqa: F811
    job = run(SCRIPTS / "readers_per_node.sbatch", *train)
    assert job.returncode == 0, job
    assert job.lines("GOT") == ["[0, 2, 4, 6]", "[1, 3, 5, 7]"], job
    assert job.lines("WHO") == ["0 2  devices: 0", "1 2  devices: 0", "None None reads devices:"], job


def test_readers_that_train_keep_their_devices(run, train):  # noqa: F811
    job = run(SCRIPTS / "readers_per_node.sbatch", *train, HOROVOD_DATA_EMBEDDED="1")
    assert job.returncode == 0, job
    assert job.lines("GOT") == ["[0, 3]", "[1, 4]", "[2, 5]"], job
    assert job.lines("WHO") == ["0 3 reads devices: 0", "1 3  devices: 0", "2 3  devices: 0"], job
