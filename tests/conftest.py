# SPDX-License-Identifier: Apache-2.0
"""Loads the plugin of tests/ranks: the child's on a rank of a job, otherwise the outer one. See ranks/__init__.py."""

import gc
import os
import sys

import pytest
from hypothesis import HealthCheck, settings

# No deadline, because a loaded machine is slow. Examples are always the same, except in `make test-all`.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True,
                          derandomize="HVDATA_TEST_ALL_FAULTS" not in os.environ)  # fmt: skip
settings.load_profile("any machine")

# On each rank pytest rewrites the assertions. Its cache of that saves more time than TensorFlow's import takes.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

pytest_plugins = ["ranks.child" if os.environ.get("HVDATA_TEST_JOB") else "ranks.outer"]


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collects without the garbage collector, as in ranks/site. Hundreds of thousands of objects are made, and none is
    freed."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
