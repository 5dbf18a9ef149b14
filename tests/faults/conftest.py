# SPDX-License-Identifier: Apache-2.0
import tempfile
from pathlib import Path

import pytest
from table import Tried


@pytest.fixture
def tried():
    """See table.py."""
    with tempfile.TemporaryDirectory(prefix="hvf-") as folder:
        yield Tried(Path(folder))
