# SPDX-License-Identifier: Apache-2.0
"""A copy of the installed Horovod, with or without the patch for Keras 3 (packaging/horovod)."""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

PATCH = Path(__file__).resolve().parents[2] / "packaging" / "horovod" / "4-keras-3.patch"

needs_keras_3 = pytest.mark.skipif(
    importlib.metadata.version("keras").startswith("2."),
    reason="Keras 2 is installed; TensorFlow 2.21 has Keras 3",
)


@pytest.fixture
def horovod(tmp_path, monkeypatch):
    """A function that makes jobs import a copy of Horovod, with or without the patch.

    The copy's libraries are links.
    """

    def use(patched: bool) -> None:
        home, copy = Path(importlib.util.find_spec("horovod").origin).parent, tmp_path / "copy"
        shutil.copytree(home, copy / "horovod", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        for library in home.rglob("*.so"):
            (copy / "horovod" / library.relative_to(home)).symlink_to(library)
        if patched != ("horovod_data" in (home / "keras" / "__init__.py").read_text()):
            if shutil.which("patch") is None:
                pytest.skip("needs the program patch (scripts/setup.sh patches)")
            way = [] if patched else ["--reverse"]
            subprocess.run(["patch", "--silent", "-p1", "-d", copy, *way, "-i", PATCH], check=True)
        monkeypatch.setenv("PYTHONPATH", str(copy), prepend=os.pathsep)

    return use
