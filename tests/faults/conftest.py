# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
import subprocess
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
    """Verifies, as all faults of the table in docs/guarantees.md do. HOROVOD_DATA_VERIFY of pytest's caller wins."""
    monkeypatch.setenv("HOROVOD_DATA_VERIFY", os.environ.get("HOROVOD_DATA_VERIFY", "1"))


@pytest.fixture(scope="session")
def preload(tmp_path_factory):
    """Compiles a library from text or a file. Returns the environment in which a process loads it before all others."""

    def compiled(source: str | Path, compiler: str = "mpicc") -> dict[str, str]:
        if shutil.which(compiler) is None:
            pytest.skip(f"needs {compiler}")
        folder = tmp_path_factory.mktemp("preload")
        if isinstance(source, str):
            text, source = source, folder / ("library.cc" if compiler == "c++" else "library.c")
            source.write_text(text)
        library = folder / "library.so"
        words = [compiler, "-w", "-shared", "-fPIC", "-o", library, source, "-ldl", "-lpthread"]
        subprocess.run(words, check=True)
        return {"LD_PRELOAD": str(library)}

    return compiled
