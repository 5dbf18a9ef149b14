# SPDX-License-Identifier: Apache-2.0
"""What tests that run on every rank get. One process runs many tests: it initialises once."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def hvdata():
    import horovod_data

    horovod_data.init()
    yield horovod_data
    horovod_data.shutdown()


@pytest.fixture(scope="session")
def comm(hvdata):
    """An mpi4py communicator of all processes, dedicated readers included, for what tests say to each other."""
    from mpi4py import MPI

    return MPI.COMM_WORLD.Dup()


@pytest.fixture
def unverified(monkeypatch):
    """Channels of this test are verified only where it says so: all worlds verify all of them (tests/ranks/worlds.py)."""
    monkeypatch.delenv("HOROVOD_DATA_VERIFY", raising=False)


@pytest.fixture(params=["verified", "unverified"])
def either_way(request, monkeypatch):
    """For tests of what every batch goes through: once with proof of delivery, and once as it is by default."""
    monkeypatch.setenv("HOROVOD_DATA_VERIFY", "1" if request.param == "verified" else "0")
