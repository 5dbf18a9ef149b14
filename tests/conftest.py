# SPDX-License-Identifier: Apache-2.0
"""On a rank of a job that the outer pytest launched, the child's plugin; else the outer one. See ranks/__init__.py."""

import os

pytest_plugins = ["ranks.child" if os.environ.get("HVDATA_TEST_JOB") else "ranks.outer"]
