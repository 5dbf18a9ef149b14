# SPDX-License-Identifier: Apache-2.0
"""The programs whose figures docs/evidence.md publishes, with less work. Each must find and print the same."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import launch

pytestmark = [pytest.mark.limit(290), pytest.mark.horovod]

PROGRAMS = {
    "batches": (["--batches", "20000", "--ranks", "2"], r"20,000 verified batches on 2 ranks, 0 lost, 0 twice"),
    "audit_memory": (["--rows", "200000", "--ranks", "1", "2"], r"200,?000"),
    "flips": (["--flips", "6"], r"\d flipped bytes, way inline: all found, by rank and step"),
}


@pytest.mark.commit("audit_memory")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_part_of_it(name, tmp_path):
    words, says = PROGRAMS[name]
    command = [
        sys.executable,
        str(Path(__file__).with_name(f"{name}.py")),
        *words,
        "--mpirun",
        shlex.join(launch.launcher()),
    ]
    env = launch.environment(tmp_path, 0, {})
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(says, done.stdout), done.stdout + done.stderr
