# SPDX-License-Identifier: Apache-2.0
"""`python -m pytest`, which leaves the working directory out of sys.path, so that the ranks import what `launch`
chose."""

import sys
from pathlib import Path

import pytest

sys.path[0] = str(Path(__file__).parent.parent)  # the folder that contains `ranks`
sys.exit(pytest.main())
