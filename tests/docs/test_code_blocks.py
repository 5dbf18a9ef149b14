# SPDX-License-Identifier: Apache-2.0
"""The code blocks of README.md and docs/: commands run or exist, and the diff is the real one.

tests/mpi/test_docs_blocks.py runs the blocks of Python.
"""

import difflib
import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from blocks import BLOCKS, LANGUAGES, ROOT, Block, named
from jobs import run_job
from launched import run_launcher
from ranks.launch import environment, launcher, open_mpi

MAKE_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
RUN = {"python", "mpirun", "horovodrun", "horovod-data-run"}


def test_every_block_says_what_it_is():
    for i, block in enumerate(BLOCKS):
        assert block.language in LANGUAGES, f"{block.id}: ```{block.language}"
        if block.language == "text":
            assert BLOCKS[i - 1].output == block.text, f"{block.id}: output of nothing"


def commands(block: Block):
    """(environment, words) of each line."""
    for line in block.text.splitlines():
        words = shlex.split(line)
        variables = {}
        while re.fullmatch(r"[A-Z_]+=.*", words[0]):
            name, _, variables[name] = words.pop(0).partition("=")
        yield variables, words


@pytest.mark.parametrize("block", named("bash"), ids=lambda block: block.id)
def test_commands_exist(block: Block):
    for _, words in commands(block):
        if words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= MAKE_TARGETS, words
        elif words[0] in RUN and "-m" in words:
            module = words[words.index("-m") + 1]
            assert words[words.index("-m") - 1] == "python" and importlib.util.find_spec(module), module
        elif words[0] in RUN:
            script = next(word for word in words if word.endswith(".py"))
            assert (ROOT / script).is_file(), script
        elif words[0] == "sbatch":  # tests/slurm has a Slurm, and runs the same scripts
            assert all((ROOT / word).is_file() for word in (words[1], words[-1])), words
        elif words[0] == ".venv/bin/pytest":
            assert (ROOT / words[1].partition("::")[0]).exists(), words
        else:
            assert words == ["pip", "install", "--no-build-isolation", "."]


# Each once, though several pages have it.
RUNNABLE = {
    line: command
    for block in named("bash")
    for line, command in zip(block.text.splitlines(), commands(block))
    if command[1][0] in RUN
}


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A folder in which digits_data.py has run, as the pages say before they train."""
    folder = tmp_path_factory.mktemp("digits")
    subprocess.run([sys.executable, str(ROOT / "examples" / "digits_data.py")], cwd=folder, check=True)
    return folder


def run_tool(words, folder, environ):
    """A tool or an example, in this process or as a job."""
    at = words.index("python")
    start = [] if at == 0 else [*launcher(), *words[1:at]]
    program = words[at + 1 :] if words[at + 1] == "-m" else [str(ROOT / words[at + 1]), *words[at + 2 :]]
    subprocess.run([*start, sys.executable, *program], cwd=folder, check=True, env=environment(folder, 0, environ))


def run_by_launcher(words, folder, environ):
    (folder / "hosts.txt").write_text("host1 slots=4\nhost2 slots=4\n")
    dry = ["--dry-run"] * bool({"-H", "--hostfile"} & set(words))  # the named hosts are not there
    at = words.index("python")
    program = [sys.executable, str(ROOT / words[at + 1]), *words[at + 2 :]]
    job = run_launcher(*words[1:at], *dry, *program, env=environ, cwd=folder, timeout=200)
    assert job.returncode == 0, job.output


@pytest.mark.whole_job
@pytest.mark.horovod
@pytest.mark.limit(240)
@pytest.mark.parametrize(
    "line",
    [pytest.param(line, marks=[pytest.mark.commit] if "-m horovod_data." in line else []) for line in RUNNABLE],
)
def test_commands_run(line, tmp_path, request):
    """With the Python and the mpirun under test."""
    environ, words = RUNNABLE[line]
    environ = {**environ, "HOROVOD_CYCLE_TIME": None}  # Horovod's default, because these train
    if any(word.startswith("examples/digits_keras") for word in words):
        tmp_path = request.getfixturevalue("digits")
    if words[0] == "python" or "-m" in words:
        return run_tool(words, tmp_path, environ)
    if words[0] == "horovod-data-run":
        return run_by_launcher(words, tmp_path, environ)
    launch, option, processes, python, script = words
    assert (option, python) == ("-np", "python")
    if launch == "horovodrun" and not open_mpi():
        pytest.skip("horovodrun knows MPICH by its name, which not every mpirun of MPICH says")
    by = "" if launch == "mpirun" else str(Path(sys.executable).with_name(launch))
    job = run_job(ROOT / script, np=int(processes), env=environ, launcher=by, timeout=200, cwd=tmp_path)
    assert job.returncode == 0, job.describe()


def test_the_diff_is_the_one_between_the_two_scripts():
    (block,) = named("diff")
    names = ["digits_keras_stock.py", "digits_keras.py"]
    before, after = ((ROOT / "examples" / name).read_text().splitlines() for name in names)
    diff = list(difflib.unified_diff(before, after, *names, n=1, lineterm=""))
    assert block.text.splitlines() == diff
    added = [line for line in diff[2:] if line.startswith("+") and line != "+" and not line.startswith("+import ")]
    assert len(added) == 3, "three changed lines and the import"
