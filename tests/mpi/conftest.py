# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests that run on every rank. A process runs many tests and initialises once."""

from __future__ import annotations

import signal
import sys

import pytest


@pytest.fixture(scope="session")
def hvdata():
    import horovod_data

    horovod_data.init()
    yield horovod_data
    horovod_data.shutdown()


@pytest.fixture(scope="session")
def comm(hvdata):
    """An mpi4py communicator of all processes, dedicated readers included, for the messages of tests."""
    from mpi4py import MPI

    return MPI.COMM_WORLD.Dup()


@pytest.fixture(autouse=True)
def equal_layer_names():
    """Makes Keras number its layers from the start again.

    Horovod matches collectives by the names of layers, and Keras counts layers in each process. If a test fails on one
    rank before it makes a layer, the next test would wait for ever.
    """
    if "keras" in sys.modules:
        import tensorflow as tf

        tf.keras.backend.clear_session()


@pytest.fixture
def unverified(monkeypatch):
    """Only channels with verify=True are verified in this test. Other tests verify all (tests/ranks/worlds.py)."""
    monkeypatch.delenv("HOROVOD_DATA_VERIFY", raising=False)


@pytest.fixture(params=["verified", "unverified"])
def either_way(request, monkeypatch):
    """Runs the test with proof of delivery, and without, which is the default of the library."""
    monkeypatch.setenv("HOROVOD_DATA_VERIFY", "1" if request.param == "verified" else "0")


@pytest.fixture
def path(tmp_path):
    """The path of a checkpoint, in a folder of this rank."""
    return str(tmp_path / "iterator")


@pytest.fixture
def folder(shared_path):
    """The path of a folder that all ranks share. It does not exist yet."""
    return str(shared_path / "sets")


@pytest.fixture
def handlers():
    """Puts back the handlers of signals. Ranks that leave ignore the signals."""
    theirs = [(number, signal.getsignal(number)) for number in (signal.SIGUSR1, signal.SIGTERM)]
    yield
    for number, handler in theirs:
        signal.signal(number, handler)


@pytest.fixture(params=["first", "last"])
def root(request, comm):
    return {"first": 0, "last": comm.size - 1}[request.param]


@pytest.fixture
def several(comm):
    if comm.size == 1:
        pytest.skip("there is one rank")
