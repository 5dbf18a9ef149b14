# SPDX-License-Identifier: Apache-2.0
"""These tests run where hosts can be simulated: see bed.py."""

import functools
import subprocess

import pytest
from bed import why_not
from ranks import launch


@functools.lru_cache
def reason() -> str:
    version = subprocess.run([*launch.launcher(), "--version"], capture_output=True, text=True, check=False).stdout
    if "Open MPI" not in version and "OpenRTE" not in version:
        return "the simulated hosts are for Open MPI"
    return why_not()


@pytest.fixture(autouse=True)
def hosts_can_be_simulated() -> None:
    if reason():
        pytest.skip(reason())
