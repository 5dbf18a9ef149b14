# SPDX-License-Identifier: Apache-2.0
"""On a rank of a job that the outer pytest launched, the child's plugin; else the outer one. See ranks/__init__.py."""

import os

from hypothesis import settings

settings.register_profile("any machine", deadline=None)  # a loaded one is slow
settings.load_profile("any machine")

pytest_plugins = ["ranks.child" if os.environ.get("HVDATA_TEST_JOB") else "ranks.outer"]
