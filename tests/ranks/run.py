# SPDX-License-Identifier: Apache-2.0
"""`python -m pytest` without its putting the working directory into sys.path: the ranks import what `launch` chose."""

import sys
from pathlib import Path

import pytest

sys.path[0] = str(Path(__file__).parent.parent)  # not this folder, but the one that `ranks` is in
sys.exit(pytest.main())
