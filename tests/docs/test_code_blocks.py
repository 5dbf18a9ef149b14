# SPDX-License-Identifier: Apache-2.0
"""The code blocks of README.md and docs/: commands run or exist, the diff is the real one. tests/mpi/test_docs_blocks.py
runs those of Python."""

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


@pytest.mark.whole_job
@pytest.mark.horovod
@pytest.mark.limit(240)
@pytest.mark.parametrize(
    "line",
    [pytest.param(line, marks=[pytest.mark.commit] if "-m horovod_data." in line else []) for line in RUNNABLE],
)
def test_commands_run(line, tmp_path, request):
    """With the Python and the mpirun under test."""
    variables, words = RUNNABLE[line]
    variables = {**variables, "HOROVOD_CYCLE_TIME": None}  # Horovod's own: these train
    if "-m" in words:  # one of our tools, itself or as a job
        start = [] if words[0] == "python" else [*launcher(), *words[1 : words.index("python")]]
        command = [*start, sys.executable, *words[words.index("-m") :]]
        subprocess.run(command, cwd=tmp_path, check=True, env=environment(tmp_path, 0, variables))
        return
    if any(word.startswith("examples/digits_keras") for word in words):
        tmp_path = request.getfixturevalue("digits")
    if words[0] == "python":
        subprocess.run(
            [sys.executable, str(ROOT / words[1]), *words[2:]],
            cwd=tmp_path,
            check=True,
            env=environment(tmp_path, 0, variables),
        )
        return
    if words[0] == "horovod-data-run":
        (tmp_path / "hosts.txt").write_text("host1 slots=4\nhost2 slots=4\n")
        elsewhere = {"-H", "--hostfile"} & set(words)  # where no such hosts are, the command must do for a dry run
        at = words.index("python")
        job = run_launcher(
            *words[1:at],
            *["--dry-run"] * bool(elsewhere),
            sys.executable,
            str(ROOT / words[at + 1]),
            *words[at + 2 :],
            env=variables,
            cwd=tmp_path,
            timeout=200,
        )
        assert job.returncode == 0, job.output
        return
    launch, option, processes, python, script = words
    assert (option, python) == ("-np", "python")
    if launch == "horovodrun":
        if not open_mpi():
            pytest.skip("horovodrun knows MPICH by its name, which not every mpirun of MPICH says")
        launch = str(Path(sys.executable).with_name("horovodrun"))
    job = run_job(
        ROOT / script,
        np=int(processes),
        env=variables,
        launcher="" if launch == "mpirun" else launch,
        timeout=200,
        cwd=tmp_path,
    )
    assert job.returncode == 0, job.describe()


def test_the_diff_is_the_one_between_the_two_scripts():
    (block,) = named("diff")
    names = ["digits_keras_stock.py", "digits_keras.py"]
    before, after = ((ROOT / "examples" / name).read_text().splitlines() for name in names)
    diff = list(difflib.unified_diff(before, after, *names, n=1, lineterm=""))
    assert block.text.splitlines() == diff
    added = [line for line in diff[2:] if line.startswith("+") and line != "+" and not line.startswith("+import ")]
    assert len(added) == 3, "three changed lines and the import"
