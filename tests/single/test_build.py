# SPDX-License-Identifier: Apache-2.0
"""A build that lacks something says what was looked for, which versions work, and what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATH = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])


def configure(folder: Path, *options: str, **environment: str) -> str:
    """The output of a configuration that must fail, its lines joined: CMake breaks them anywhere."""
    cmake = shutil.which("cmake", path=PATH)
    assert cmake, "no cmake: scripts/setup.sh venv"
    command = [cmake, "-S", str(ROOT), "-B", str(folder), f"-DPython_EXECUTABLE={sys.executable}", *options]
    env = {**os.environ, "PATH": PATH, **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=55)
    assert done.returncode != 0, done.stdout
    return " ".join(done.stderr.split())


def test_no_mpi(tmp_path):
    said = configure(tmp_path, "-DHVDATA_CORE=OFF", "-DHVDATA_MPI_TESTS=ON", MPICC="/no/such/mpicc", MPI_HOME="/no/home")
    assert "horovod_data: no MPI library for C was found." in said
    assert "named by MPICC ('/no/such/mpicc'), an installation in MPI_HOME ('/no/home'), and mpicc in PATH (" in said
    assert "Works with: Open MPI 4 and 5, MPICH 3.4 and 4" in said
    assert "What to do: `apt-get install libopenmpi-dev openmpi-bin`" in said
    assert "`MPICC=/path/to/mpicc pip install --no-build-isolation .`" in said


def test_no_tensorflow(tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('it is hidden for this test')\n")
    said = configure(tmp_path / "build", PYTHONPATH=str(tmp_path))
    assert f"horovod_data: TensorFlow can't be imported by {sys.executable}." in said
    assert "Works with: TensorFlow 2.15 and newer" in said
    assert "What to do: `pip install tensorflow-cpu==2.15.1`" in said
    assert "without --no-build-isolation pip hides the installed TensorFlow from the build" in said
    assert "ImportError: it is hidden for this test" in said
