# SPDX-License-Identifier: Apache-2.0
"""scripts/setup.sh starts from an interrupted or unusual set-up.

Its Python and MPI are scripts that note their arguments.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "scripts" / "setup.sh"

# A stand-in for Python. It makes environments whose python is a copy of this script. Its pip notes its arguments.
PYTHON = f"""#!/bin/bash
case "$*" in
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; touch "$3/pyvenv.cfg" ;;
  *"-m pip "*) echo "$*" >>"$NOTES"; sleep "$PIP_TAKES" ;;
  *version_info*) echo "$VERSION" ;;
  *get_path*) echo "$HEADERS" ;;
  *) exec {sys.executable} "$@" ;;
esac
"""


@pytest.fixture
def setup(tmp_path):
    """Runs setup.sh with these stages, and returns the process and pip's arguments.

    The version text of the MPI is `mpi`. The checkout has nothing but setup.sh.
    """
    tools, checkout = tmp_path / "tools", tmp_path / "checkout"
    tools.mkdir()
    (checkout / "scripts").mkdir(parents=True)
    shutil.copy(SETUP, checkout / "scripts")
    (tmp_path / "Python.h").touch()

    def tool(name: str, text: str) -> None:
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)

    def run(*stages: str, mpi: str = "mpirun (Open MPI) 4.1.4", **more: str) -> tuple[subprocess.CompletedProcess, str]:
        tool("python3.11", PYTHON)
        tool("mpirun", f"#!/bin/sh\necho '{mpi}'\n")
        tool("mpicc", "#!/bin/sh\n")
        notes = tmp_path / "notes"
        notes.write_text("")
        given = {"VENV": tmp_path / "venv", "PYTHON": tools / "python3.11", "NOTES": notes, "HEADERS": tmp_path}
        env = {**os.environ, **{name: str(path) for name, path in given.items()}, "TENSORFLOW": "tensorflow"}
        env = {**env, "PIP_TAKES": "0", "VERSION": "3.11", **more}
        env["PATH"] = f"{tools}:{os.environ['PATH']}"
        env.pop("MPICC", None)
        command = [str(checkout / "scripts" / SETUP.name), *stages]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=170)
        return done, notes.read_text()

    return run


@pytest.mark.parametrize("interrupted", [False, True])
def test_an_environment_is_made_once(setup, tmp_path, interrupted):
    """An environment whose making was interrupted has no pip. It is made again."""
    if interrupted:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    done, told = setup("venv")
    assert done.returncode == 0 and "making" in done.stdout and "tensorflow" in told, (done, told)
    done, told = setup("venv")
    assert done.returncode == 0 and "making" not in done.stdout and told == "", (done, told)


OLD, NEW = "tensorflow-cpu==2.15.1", "tensorflow-cpu==2.21.0"


def test_an_environment_with_another_tensorflow_is_made_again(setup, tmp_path):
    """An older checkout has made the environment, with Horovod and the library."""
    venv = tmp_path / "checkout" / ".venv"
    done, _ = setup("venv", VENV=str(venv), TENSORFLOW=OLD)
    assert done.returncode == 0, done
    (venv / ".stamps" / "horovod").touch()
    done, told = setup("venv", VENV=str(venv), TENSORFLOW=NEW)
    assert done.returncode == 0 and NEW in told, (done, told)
    assert f"has {OLD}, and {NEW} is wanted: making it again" in done.stdout, done
    assert not (venv / ".stamps" / "horovod").exists()
    done, told = setup("venv", VENV=str(venv), TENSORFLOW=NEW)
    assert done.returncode == 0 and told == "", (done, told)


def test_an_environment_elsewhere_is_never_removed(setup, tmp_path):
    setup("venv", TENSORFLOW=OLD)
    done, told = setup("venv", TENSORFLOW=NEW)
    assert done.returncode == 1 and told == "", (done, told)
    assert f"has {OLD}, and {NEW} is wanted: remove it, set VENV" in done.stderr, done
    assert (tmp_path / "venv" / "bin" / "python").exists()


def test_an_environment_with_a_python_without_wheel_is_made_again(setup, tmp_path):
    """The set-up of the environment was interrupted, so no file says which TensorFlow it is for."""
    venv = str(tmp_path / "checkout" / ".venv")
    setup("venv", VENV=venv, TENSORFLOW=OLD)
    shutil.rmtree(tmp_path / "checkout" / ".venv" / ".stamps")
    python = tmp_path / "checkout" / ".venv" / "bin" / "python"
    python.write_text(python.read_text().replace("$VERSION", "3.9"))
    done, told = setup("venv", VENV=venv, TENSORFLOW=NEW)
    assert done.returncode == 0 and "has Python 3.9" in done.stdout and NEW in told, (done, told)


@pytest.mark.parametrize("tensorflow, version, fits", [
    (OLD, "3.9", True), (OLD, "3.12", False), (NEW, "3.9", False), (NEW, "3.10", True), (NEW, "3.13", True), (NEW, "3.14", False),
])  # fmt: skip
def test_pythons_for_which_tensorflow_has_wheels(setup, tensorflow, version, fits):
    done, _ = setup("venv", TENSORFLOW=tensorflow, VERSION=version)
    assert (done.returncode == 0) == fits, done
    assert fits or f"{tensorflow} has no wheel for it. It has wheels for: 3.11" in done.stderr, done


def test_a_step_that_takes_long_is_named_again_and_again(setup):
    done, _ = setup("venv", TICK="0.2", PIP_TAKES="1")
    assert done.returncode == 0 and len(re.findall(r"\[setup\] [01] s: installing tensorflow", done.stderr)) >= 2, done
    done, _ = setup("venv")
    assert done.stderr == "", done


def test_a_folder_that_is_no_environment_stays(setup, tmp_path):
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "thesis.txt").touch()
    done, _ = setup("venv")
    assert done.returncode == 1 and "it is no virtual environment: remove it, or set VENV" in done.stderr, done
    assert (tmp_path / "venv" / "thesis.txt").exists()


@pytest.mark.parametrize(
    "mpi, built", [("mpirun (Open MPI) 4.1.4", False), ("HYDRA build details: Version: 4.0.2", True)]
)
def test_mpi4py_is_built_for_other_mpis_than_open_mpi(setup, mpi, built):
    """The wheel of mpi4py does not find these MPIs. So mpi4py is built, but only once."""
    done, told = setup("mpi4py", mpi=mpi)
    assert done.returncode == 0 and ("--no-binary mpi4py" in told) == built, (done, told)
    done, told = setup("mpi4py", mpi=mpi)
    assert done.returncode == 0 and "--no-binary mpi4py" not in told, (done, told)
