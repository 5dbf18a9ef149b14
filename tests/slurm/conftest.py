# SPDX-License-Identifier: Apache-2.0
"""One Slurm for all tests of this folder."""

import pytest
from cluster import NoSlurm, Slurm, install


@pytest.fixture(scope="session")
def slurm():
    try:
        install()
    except NoSlurm as reason:
        pytest.skip(str(reason))
    running = Slurm()
    yield running
    running.stop()
