# SPDX-License-Identifier: Apache-2.0
"""On a rank of a job that the outer pytest launched, the child's plugin; else the outer one. See ranks/__init__.py."""

import gc
import os
import sys

import pytest
from hypothesis import HealthCheck, settings

# A loaded machine is slow. New examples are drawn by `make test-all`: what others fail with must fail again.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True,
                          derandomize="HVDATA_TEST_ALL_FAULTS" not in os.environ)  # fmt: skip
settings.load_profile("any machine")

# pytest rewrites the tests' assertions, on each rank; what it keeps saves more than TensorFlow's import costs.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

pytest_plugins = ["ranks.child" if os.environ.get("HVDATA_TEST_JOB") else "ranks.outer"]


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Without the garbage collector, as in ranks/site: hundreds of thousands of objects are made, none of which goes."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
