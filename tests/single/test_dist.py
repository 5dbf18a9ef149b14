# SPDX-License-Identifier: Apache-2.0
"""The sdist: its files, and that it installs offline into an environment without the checkout, and delivers.

HVDATA_TEST_SDIST names an sdist, as `make dist` does. Otherwise one is made.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from email.parser import Parser
from pathlib import Path

import pytest
from ranks.launch import environment, launcher

import horovod_data

ROOT = Path(__file__).resolve().parents[2]

DELIVERY = """
import horovod_data as hvdata
import tensorflow as tf

hvdata.init()
dataset = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(10).batch(4), batch="global", remainder="partial")
hvdata.serve()
rows = [int(row) for step in dataset for row in step]
with open(f"rows.{hvdata.rank()}", "w") as file:
    file.write(f"{hvdata.size()} {rows} {hvdata.__file__}")
"""


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    if given := os.environ.get("HVDATA_TEST_SDIST"):
        return Path(given).resolve()
    folder = tmp_path_factory.mktemp("dist")
    code = "import sys; sys.path.insert(0, 'cmake'); import horovod_data_build; horovod_data_build.build_sdist(sys.argv[1])"
    command = [sys.executable, "-c", code, str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, timeout=170)
    (made,) = folder.iterdir()
    return made


def test_what_is_in_it(sdist):
    """The source distribution has all that a build and the tests need, and nothing that was built."""
    name = f"horovod_data-{horovod_data.__version__}"
    assert sdist.name == f"{name}.tar.gz"
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    folders = ["cmake", "csrc", "docs", "examples", "horovod_data", "packaging", "scripts", "tests"]
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True)
    missing = {file for file in listed.stdout.splitlines() if (ROOT / file).is_file()} - names
    assert not missing
    assert {"CMakeLists.txt", "setup.py", "pyproject.toml", "LICENSE", "README.md", "PKG-INFO"} <= names
    assert not [file for file in names if re.search(r"\.(so|o|pyc)$|^build/|^\.venv", file)]


def test_its_metadata(sdist):
    with tarfile.open(sdist) as archive:
        file = archive.extractfile(f"horovod_data-{horovod_data.__version__}/PKG-INFO")
        said = Parser().parsestr(file.read().decode())
    assert said["Version"] == horovod_data.__version__ and said["Requires-Python"] == ">=3.9"
    assert said["Description-Content-Type"] == "text/markdown" and said.get_payload().startswith("# horovod_data")


def ran(command, folder, env, seconds) -> str:
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.limit(1500)
def test_it_installs_into_an_empty_environment_and_delivers(sdist, tmp_path):
    """Offline, against the TensorFlow of this environment, and far from the checkout."""
    venv, elsewhere = tmp_path / "venv", tmp_path / "elsewhere"
    elsewhere.mkdir()
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=120)
    (packages,) = venv.glob("lib/python*/site-packages")
    # All that is installed here can be imported there, behind what is installed there.
    (packages / "here.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")) + "\n")
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    path = os.pathsep.join([str(venv / "bin"), os.path.dirname(sys.executable), outside["PATH"]])
    # Pip's own folder is new each time. In TMPDIR the sources are the same to the compiler's cache.
    outside.update(PATH=path, TMPDIR=str(tmp_path), CCACHE_BASEDIR=str(tmp_path), CCACHE_NOHASHDIR="1")
    python = str(venv / "bin" / "python")
    options = ["--no-index", "--no-build-isolation", "--no-deps", "--ignore-installed"]
    ran([python, "-m", "pip", "install", *options, str(sdist)], elsewhere, outside, 1200)
    (elsewhere / "deliver.py").write_text(DELIVERY)
    env = environment(tmp_path, 0, {"PYTHONPATH": None, "PATH": path})
    ran([*launcher(), "-np", "2", python, "deliver.py"], elsewhere, env, 90)
    for rank, rows in enumerate(([0, 1, 4, 5, 8], [2, 3, 6, 7, 9])):
        assert (elsewhere / f"rows.{rank}").read_text() == f"2 {rows} {packages}/horovod_data/__init__.py"
    said = ran([str(venv / "bin" / "horovod-data-run"), "--version"], elsewhere, outside, 170)
    assert said == f"horovod_data {horovod_data.__version__}\n"
