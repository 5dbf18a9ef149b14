# SPDX-License-Identifier: Apache-2.0
"""scripts/setup.sh with half a set-up or an unusual one. Its Python and its MPI are scripts that note their arguments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "scripts" / "setup.sh"

# Makes environments whose python is itself; its pip notes its arguments.
PYTHON = f"""#!/bin/bash
case "$*" in
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; touch "$3/pyvenv.cfg" ;;
  *"-m pip "*) echo "$*" >>"$NOTES" ;;
  *get_path*) echo "$HEADERS" ;;
  *) exec {sys.executable} "$@" ;;
esac
"""


@pytest.fixture
def setup(tmp_path):
    """Runs setup.sh with these stages, with an MPI that calls itself `mpi`. Returns the process, and pip's arguments."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tmp_path / "Python.h").touch()

    def tool(name: str, text: str) -> None:
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)

    def run(*stages: str, mpi: str = "mpirun (Open MPI) 4.1.4") -> tuple[subprocess.CompletedProcess, str]:
        tool("python3.11", PYTHON)
        tool("mpirun", f"#!/bin/sh\necho '{mpi}'\n")
        tool("mpicc", "#!/bin/sh\n")
        notes = tmp_path / "notes"
        notes.write_text("")
        given = {"VENV": tmp_path / "venv", "PYTHON": tools / "python3.11", "NOTES": notes, "HEADERS": tmp_path}
        env = {**os.environ, **{name: str(path) for name, path in given.items()}, "TENSORFLOW": "tensorflow"}
        env["PATH"] = f"{tools}:{os.environ['PATH']}"
        env.pop("MPICC", None)
        done = subprocess.run([str(SETUP), *stages], env=env, capture_output=True, text=True, timeout=170)
        return done, notes.read_text()

    return run


@pytest.mark.parametrize("interrupted", [False, True])
def test_an_environment_is_made_once(setup, tmp_path, interrupted):
    """If its making was interrupted, it has a python without pip, and is made again."""
    if interrupted:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    done, told = setup("venv")
    assert done.returncode == 0 and "making" in done.stdout and "tensorflow" in told, (done, told)
    done, told = setup("venv")
    assert done.returncode == 0 and "making" not in done.stdout and told == "", (done, told)


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
    """It is built once. Its wheel does not find these MPIs."""
    done, told = setup("mpi4py", mpi=mpi)
    assert done.returncode == 0 and ("--no-binary mpi4py" in told) == built, (done, told)
    done, told = setup("mpi4py", mpi=mpi)
    assert done.returncode == 0 and "--no-binary mpi4py" not in told, (done, told)
