# SPDX-License-Identifier: Apache-2.0
"""The recipes in packaging/ can be read, and agree with pyproject.toml and scripts/setup.sh."""

import ast
import glob
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import horovod_data

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
yaml = pytest.importorskip("yaml")
SETUP = (ROOT / "scripts" / "setup.sh").read_text()


def tool(name: str) -> str:
    """A program of those that `make recipes` installs."""
    path = shutil.which(name, path=os.pathsep.join([str(ROOT / "build" / "recipes" / "bin"), os.environ["PATH"]]))
    return path or pytest.skip(f"needs {name}: make recipes")


def test_recipes_have_this_version():
    conda = yaml.safe_load((PACKAGING / "conda-forge" / "recipe.yaml").read_text())
    assert (ROOT / conda["about"]["license_file"]).exists()
    (path,) = (PACKAGING / "easybuild").glob("*.eb")
    easybuild = {}
    exec(compile(path.read_text(), str(path), "exec"), {"SOURCE_TAR_GZ": "source"}, easybuild)
    chain = easybuild["toolchain"]
    versions = f"{easybuild['version']}-{chain['name']}-{chain['version']}{easybuild['versionsuffix']}"
    assert path.name == f"{easybuild['name']}-{versions}.eb"
    assert dict(easybuild["dependencies"])["TensorFlow"] == re.search(r"2\.15\) version=([\d.]+)", SETUP)[1]
    tree = ast.parse((PACKAGING / "spack" / "package.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    (spack,) = [call.args[0].value for call in calls if call.func.id == "version"]
    assert {conda["context"]["version"], easybuild["version"], spack} == {horovod_data.__version__}


@pytest.mark.limit(120)
def test_easybuild_takes_its_recipe(tmp_path):
    """EasyBuild accepts the style of the recipe, and knows all that it names, for this toolchain."""
    eb = tool("eb")
    lmod = os.environ.get("LMOD_CMD") or next(iter(glob.glob("/usr/share/lmod/*/libexec/lmod")), None)
    if lmod is None:
        pytest.skip("needs Lmod: make recipes")
    (path,) = (PACKAGING / "easybuild").glob("*.eb")
    here = os.path.dirname(eb)
    env = {**os.environ, "HOME": str(tmp_path), "EASYBUILD_PREFIX": str(tmp_path), "LMOD_CMD": lmod}
    env |= {"EASYBUILD_ALLOW_USE_AS_ROOT_AND_ACCEPT_CONSEQUENCES": "1", "EB_PYTHON": os.path.join(here, "python")}
    env["PATH"] = os.pathsep.join([here, os.environ["PATH"]])
    for name in "PYTHONPATH", "VIRTUAL_ENV":
        env.pop(name, None)

    def ask(*options: str) -> str:
        command = [eb, *options, str(path)]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "All style checks PASSed" in ask("--check-style")
    found = ask("--dry-run", "--robot")
    for needed in "CMake-3.26.3-GCCcore", "Ninja-1.11.1-GCCcore", "xxHash-0.8.2-GCCcore", "TensorFlow-2.15.1-foss":
        assert f"/{needed}-" in found, found


@pytest.mark.parametrize("name", ["Dockerfile", "horovod_data.def"])
def test_containers_run_stages_that_exist(name):
    text = (PACKAGING / "container" / name).read_text()
    stages = re.search(r"scripts/setup\.sh ([a-z ]+)", text)[1].split()
    known = re.search(r"STAGE: ([a-z0-9 ]+)", SETUP)[1].split()
    assert stages and set(stages) <= set(known)


def test_hadolint_finds_nothing_in_the_dockerfile():
    hadolint = tool("hadolint")
    command = [hadolint, str(PACKAGING / "container" / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr


def test_patches_of_horovod_say_why():
    patches = sorted((PACKAGING / "horovod").glob("*.patch"))
    assert len(patches) == 5
    for path in patches:
        reason, _, diff = path.read_text().partition("\n--- a/")
        assert len(reason.split()) > 10 and re.search(r"^\+\+\+ b/horovod/", diff, re.MULTILINE), path
