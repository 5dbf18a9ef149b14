# SPDX-License-Identifier: Apache-2.0
"""Which command lines start a tool of ours, for which the package does without its core; and that no other does."""

import subprocess
import sys

import pytest

from horovod_data import tools


@pytest.mark.parametrize("words, arguments, expected", [
    (["python", "-m", "horovod_data.doctor"], 0, True),
    (["python", "-X", "dev", "-m", "horovod_data.plan", "--ranks", "8"], 2, True),
    (["python", "-mhorovod_data.plan"], 0, True),
    (["python", "-m", "horovod_data.doctor.inside", "core", "3"], 2, True),
    (["python", "-m", "horovod_data.planned"], 0, False),
    (["python", "-m", "pytest", "horovod_data.doctor"], 1, False),
    (["python", "-m", "train", "-m", "horovod_data.plan"], 2, False),
    (["python"], 0, False),
])  # fmt: skip
def test_command_lines(words, arguments, expected):
    assert tools.names_tool(words, arguments) is expected


def test_this_process_is_no_tool():
    assert not tools.starting_tool()


def test_any_other_program_has_the_whole_package(tmp_path):
    """Also one that is started with -m and imports the package while Python still looks for it."""
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "__init__.py").write_text("import horovod_data as hvdata\nprint(hvdata.init.__name__)\n")
    (tmp_path / "training" / "run.py").write_text("")
    ran = subprocess.run([sys.executable, "-m", "training.run", "horovod_data.plan"], cwd=tmp_path, text=True,
                         capture_output=True, timeout=50)  # fmt: skip
    assert ran.stdout == "init\n", ran.stderr
