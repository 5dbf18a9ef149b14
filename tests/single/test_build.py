# SPDX-License-Identifier: Apache-2.0
"""A build that lacks something says what was looked for, which versions work, and what to do."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATH = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])


def configure(folder: Path, *options: str, fails: bool = True, **environment: str) -> str:
    """The errors of a configuration that must fail, or must not, their lines joined: CMake breaks them anywhere."""
    cmake = shutil.which("cmake", path=PATH)
    assert cmake, "no cmake: scripts/setup.sh venv"
    command = [cmake, "-S", str(ROOT), "-B", str(folder), f"-DPython_EXECUTABLE={sys.executable}", *options]
    env = {**os.environ, "PATH": PATH, **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=55)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return " ".join(done.stderr.split())


def test_no_mpi(tmp_path):
    said = configure(tmp_path, "-DHVDATA_CORE=OFF", "-DHVDATA_MPI_TESTS=ON", MPICC="/no/such/mpicc", MPI_HOME="/no/home")
    assert "horovod_data: no MPI library for C was found." in said
    assert "named by MPICC ('/no/such/mpicc'), an installation in MPI_HOME ('/no/home'), and mpicc in PATH (" in said
    assert "Works with: Open MPI 4 and 5, MPICH 3.4 and 4" in said
    assert "What to do: `apt-get install libopenmpi-dev openmpi-bin`" in said
    assert "`MPICC=/path/to/mpicc pip install --no-build-isolation .`" in said


@pytest.mark.parametrize("options, strict", [([], False), (["-DHVDATA_WERROR=ON"], True)])
def test_a_warning_stops_the_build_only_on_request(tmp_path, options, strict):
    configure(tmp_path, "-DHVDATA_CORE=OFF", "-DHVDATA_MPI_TESTS=ON", *options, fails=False)
    commands = (tmp_path / "compile_commands.json").read_text()
    assert "-Wextra" in commands and ("-Werror" in commands) == strict, commands


def test_sanitized_tests_run_without_address_space_randomisation_where_that_is_permitted(tmp_path):
    if not any(Path(prefix, "include/gtest/gtest.h").exists() for prefix in ("/usr", "/usr/local")):
        pytest.skip("needs GoogleTest")
    setarch = shutil.which("setarch")
    permitted = setarch is not None and subprocess.run([setarch, platform.machine(), "-R", "true"]).returncode == 0
    configure(tmp_path, "-DHVDATA_CORE=OFF", "-DHVDATA_TESTS=ON", fails=False)
    for line in (tmp_path / "csrc/tests/CTestTestfile.cmake").read_text().splitlines():
        if line.startswith("add_test(") and "links_neither" not in line and "_test" in line:
            assert ('"-R"' in line) == (permitted and "_tsan" in line), line


def test_no_tensorflow(tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('it is hidden for this test')\n")
    said = configure(tmp_path / "build", PYTHONPATH=str(tmp_path))
    assert f"horovod_data: TensorFlow can't be imported by {sys.executable}." in said
    assert "Works with: TensorFlow 2.15 and newer" in said
    assert "What to do: `pip install tensorflow-cpu==2.15.1`" in said
    assert "without --no-build-isolation pip hides the installed TensorFlow from the build" in said
    assert "ImportError: it is hidden for this test" in said
