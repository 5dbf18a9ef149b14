# SPDX-License-Identifier: Apache-2.0
import os
import tempfile
from pathlib import Path

import pytest
from table import Tried


@pytest.fixture
def tried():
    """See table.py."""
    with tempfile.TemporaryDirectory(prefix="hvf-") as folder:
        yield Tried(Path(folder))


@pytest.fixture
def verified(monkeypatch):
    """As all faults of the table in docs/guarantees.md; who starts pytest may say otherwise."""
    monkeypatch.setenv("HOROVOD_DATA_VERIFY", os.environ.get("HOROVOD_DATA_VERIFY", "1"))
