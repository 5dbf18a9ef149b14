# SPDX-License-Identifier: Apache-2.0
"""These tests run on machines that can simulate hosts: see bed.py."""

import functools

import pytest
from bed import why_not
from ranks.launch import open_mpi


@functools.cache
def reason() -> str:
    return why_not() if open_mpi() else "the simulated hosts are for Open MPI"


@pytest.fixture(autouse=True)
def hosts_can_be_simulated() -> None:
    if reason():
        pytest.skip(reason())
