# SPDX-License-Identifier: Apache-2.0
"""A build that lacks something reports what it looked for, which versions work, and what to do."""

from __future__ import annotations

import importlib.util
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
    """The errors of a configuration that must fail or succeed, in one line, because CMake breaks lines anywhere."""
    cmake = shutil.which("cmake", path=PATH)
    assert cmake, "no cmake: scripts/setup.sh venv"
    command = [cmake, "-S", str(ROOT), "-B", str(folder), f"-DPython_EXECUTABLE={sys.executable}", *options]
    env = {**os.environ, "PATH": PATH, **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=170)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return " ".join(done.stderr.split())


NO_MPI = [
    "horovod_data: no MPI library for C was found.",
    "named by MPICC ('/no/such/mpicc'), an installation in MPI_HOME ('/no/home'), and mpicc in PATH (",
    "Works with: Open MPI 4 and 5, MPICH 3.4 and 4",
    "What to do: `apt-get install libopenmpi-dev openmpi-bin`",
    "`MPICC=/path/to/mpicc pip install --no-build-isolation .`",
]
NO_TENSORFLOW = [
    f"horovod_data: TensorFlow can't be imported by {sys.executable}.",
    "Works with: TensorFlow 2.15 and newer",
    "What to do: `pip install tensorflow-cpu==2.21.0`",
    "without --no-build-isolation pip hides the installed TensorFlow from the build",
    "ImportError: it is hidden for this test",
]
NO_XXHASH = ["horovod_data: xxhash.h was not found", "`apt-get install libxxhash-dev`"]


@pytest.mark.parametrize("options, hidden, parts", [
    (["-DHVDATA_CORE=OFF", "-DHVDATA_MPI_TESTS=ON"], {"MPICC": "/no/such/mpicc", "MPI_HOME": "/no/home"}, NO_MPI),
    ([], {"PYTHONPATH": "FOLDER"}, NO_TENSORFLOW),
    (["-DHVDATA_CORE=OFF", "-DHVDATA_XXHASH=HVDATA_XXHASH-NOTFOUND", "-DCMAKE_FIND_ROOT_PATH=/no/such",
      "-DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY"], {}, NO_XXHASH),
], ids=["no MPI", "no TensorFlow", "no xxHash"])  # fmt: skip
def test_what_is_missing(tmp_path, options, hidden, parts):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('it is hidden for this test')\n")
    environment = {name: value.replace("FOLDER", str(tmp_path)) for name, value in hidden.items()}
    said = configure(tmp_path / "build", *options, **environment)
    for part in parts:
        assert part in said, said


TENSORFLOW = """
import os
__version__ = "{version}"
class sysconfig:
    get_lib = lambda: os.path.dirname(__file__)
    get_include = lambda: os.path.join(sysconfig.get_lib(), "include")
    get_compile_flags = lambda: []
"""


def test_a_build_folder_learns_of_another_tensorflow(tmp_path):
    """Python's path stays the same, for example because an environment was made again in its place."""
    site = tmp_path / "site"
    (site / "tensorflow" / "include").mkdir(parents=True)
    (site / "tensorflow" / "libtensorflow_framework.so.2").touch()
    for version in "2.15.1", "2.21.0":
        (site / "tensorflow" / "__init__.py").write_text(TENSORFLOW.format(version=version))
        info = site / f"tensorflow_cpu-{version}.dist-info"
        info.mkdir()
        configure(tmp_path / "build", fails=False, PYTHONPATH=str(site), PYTHONDONTWRITEBYTECODE="1")
        assert version in (tmp_path / "build" / "compile_commands.json").read_text()
        info.rmdir()


@pytest.mark.parametrize("options, strict", [([], False), (["-DHVDATA_WERROR=ON"], True)])
def test_a_warning_stops_the_build_only_on_request(tmp_path, options, strict):
    configure(tmp_path, "-DHVDATA_CORE=OFF", "-DHVDATA_MPI_TESTS=ON", *options, fails=False)
    commands = (tmp_path / "compile_commands.json").read_text()
    assert "-Wextra" in commands and ("-Werror" in commands) == strict, commands


@pytest.mark.parametrize("sanitizer", ["", "thread"])
def test_sanitized_tests_run_without_address_space_randomisation_where_that_is_permitted(tmp_path, sanitizer):
    if not any(Path(prefix, "include/gtest/gtest.h").exists() for prefix in ("/usr", "/usr/local")):
        pytest.skip("needs GoogleTest")
    setarch = shutil.which("setarch")
    permitted = setarch is not None and subprocess.run([setarch, platform.machine(), "-R", "true"]).returncode == 0
    configure(tmp_path, "-DHVDATA_CORE=OFF", "-DHVDATA_TESTS=ON", f"-DHVDATA_SANITIZE={sanitizer}", fails=False)
    lines = (tmp_path / "csrc/tests/CTestTestfile.cmake").read_text().splitlines()
    tests = [line for line in lines if line.startswith("add_test(") and "links_neither" not in line]
    assert len(tests) > 8
    for line in tests:
        assert ('"-R"' in line) == (permitted and sanitizer != ""), line


HOOKS = ["get_requires_for_build_wheel", "prepare_metadata_for_build_wheel", "build_wheel", "build_editable"]


def backend(
    tmp_path: Path, call: str, installed: bool = False, wanted: str = "", **packages: str
) -> subprocess.CompletedProcess:
    """A call of the build backend, as pip makes it. It sees setuptools and `packages` (name: text) alone.

    `installed`: TensorFlow is in this Python's folder for packages, which the backend does not see. `wanted`:
    HVDATA_TENSORFLOW.
    """
    seen, folder = tmp_path / "seen", tmp_path / "installed"
    seen.mkdir()
    folder.mkdir()
    for name in "setuptools", "pkg_resources", "_distutils_hack", "wheel":
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            (seen / name).symlink_to(spec.submodule_search_locations[0])
    for name, text in packages.items():
        (seen / f"{name}.py").write_text(text)
    if installed:
        (folder / "tensorflow").mkdir()
    # Without `site` no package of this environment is seen.
    code = (
        f"import site, sys, sysconfig; site.getusersitepackages = lambda: {str(folder)!r}; "
        f"sysconfig.get_path = lambda name: {str(folder)!r}; "
        f"sys.path.insert(0, 'cmake'); import horovod_data_build as backend; print(backend.{call})"
    )
    env = {**os.environ, "PYTHONPATH": str(seen), "HVDATA_TENSORFLOW": wanted}
    command = [sys.executable, "-S", "-c", code]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=170)


def assert_refused(done: subprocess.CompletedProcess) -> None:
    assert done.returncode == 1 and "Traceback" not in done.stderr, done
    for part in (
        f"horovod_data: TensorFlow is not visible to this build ({sys.executable}).",
        "pip hides it: it builds in an empty environment",
        "pip install --no-build-isolation horovod_data",
        "If TensorFlow is not installed: `pip install tensorflow-cpu`",
    ):
        assert part in done.stderr


@pytest.mark.parametrize("hook, installed", [*((hook, True) for hook in HOOKS), (HOOKS[0], False)])
def test_a_build_that_does_not_see_tensorflow_says_why_at_once(tmp_path, hook, installed):
    """Such as a build in an isolated environment. Pip calls the first hook before everything else.

    Wherever TensorFlow is: in PYTHONPATH, or in the Python below a virtual environment. pip hides both.
    """
    arguments = "" if hook.startswith("get") else repr(str(tmp_path))
    assert_refused(backend(tmp_path, f"{hook}({arguments})", installed))


@pytest.mark.parametrize("tensorflow, installed, wanted, said", [
    (True, True, "", "builds its C++ core and the TensorFlow ops"),
    (False, False, "", "without the TensorFlow ops, because TensorFlow is not installed"),
    (True, True, "0", "without the TensorFlow ops, because HVDATA_TENSORFLOW=0"),
    (False, True, "0", "without the TensorFlow ops, because HVDATA_TENSORFLOW=0"),
    (False, False, "1", None),
    (True, False, "yes", "HVDATA_TENSORFLOW='yes' is none of auto, 0 and 1"),
])  # fmt: skip
def test_what_a_build_makes(tmp_path, tensorflow, installed, wanted, said):
    """TensorFlow is not imported, because that takes seconds."""
    packages = {"tensorflow": "raise ImportError('nobody should')"} if tensorflow else {}
    done = backend(tmp_path, "look_for_tensorflow()", installed, wanted, **packages)
    if said is None:
        assert_refused(done)
    else:
        assert said in done.stderr and (done.returncode == 0) == (wanted != "yes"), done


HIDDEN = """
import sys

class Hiding:
    def find_spec(self, name, path=None, target=None):
        if name == "tensorflow":
            raise ModuleNotFoundError("No module named 'tensorflow'")

sys.meta_path.insert(0, Hiding())
"""


@pytest.mark.parametrize("wanted, text", [("auto", HIDDEN), ("0", "")])
def test_a_configuration_without_tensorflow_has_the_core_alone(tmp_path, wanted, text):
    (tmp_path / "sitecustomize.py").write_text(text)
    configure(tmp_path / "build", f"-DHVDATA_TENSORFLOW={wanted}", fails=False, PYTHONPATH=str(tmp_path))
    commands = (tmp_path / "build" / "compile_commands.json").read_text()
    assert "csrc/engine/c_api.cc" in commands and "csrc/ops/" not in commands


def test_no_cmake(tmp_path):
    """Only Python is in PATH."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.symlink_to(sys.executable)
    code = (
        "import sys, setuptools, runpy; sys.executable = sys.argv.pop(1); sys.argv[0] = 'setup.py'; "
        "runpy.run_path('setup.py', run_name='__main__')"
    )
    arguments = ["build_ext", "--build-lib", str(tmp_path / "lib"), "--build-temp", str(tmp_path / "temp")]
    command = [sys.executable, "-c", code, str(python), *arguments]
    env = {**os.environ, "PATH": str(tmp_path / "bin")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=170)
    assert done.returncode == 1, done
    assert "horovod_data: CMake (3.20 or newer) was not found. What to do: pip install 'cmake<4'" in done.stderr
