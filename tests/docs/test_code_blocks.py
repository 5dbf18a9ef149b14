# SPDX-License-Identifier: Apache-2.0
"""The code blocks of README.md and docs/: commands and their options exist.

tests/mpi/test_docs_blocks.py runs the blocks of Python. tests/examples runs the programs of the commands.
"""

import difflib
import importlib.util
import re
import shlex

import pytest
from blocks import BLOCKS, LANGUAGES, ROOT, Block, named
from test_reference import parser_of

from horovod_data.launcher import options

MAKE_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
RUN = {"python", "mpirun", "horovodrun", "horovod-data-run"}
OWN = "train.py"  # stands for a program of the reader


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
            assert script == OWN or (ROOT / script).is_file(), script
        elif words[0] == "sbatch":  # tests/slurm has a Slurm, and runs the same scripts
            assert all(word == OWN or (ROOT / word).is_file() for word in (words[1], words[-1])), words
        elif words[0] == ".venv/bin/pytest":
            assert (ROOT / words[1].partition("::")[0]).exists(), words
        else:
            assert words == ["pip", "install", "--no-build-isolation", "."]


def test_options_of_our_commands_exist(monkeypatch):
    """Each parser takes the words that the pages give it."""
    for _, words in [command for block in named("bash") for command in commands(block)]:
        if words[0] == "horovod-data-run":
            assert options.parse(words[1:]).command[0] == "python"
        elif "-m" in words:
            at = words.index("-m") + 1
            with monkeypatch.context() as patch:
                parser = parser_of(f"python -m {words[at]}", patch)
            parser.parse_args(words[at + 1 :])


def test_the_two_scripts_of_the_readme_differ_in_three_lines():
    before, after = ((ROOT / "examples" / f"digits_keras{part}.py").read_text().splitlines() for part in ("_stock", ""))
    added = [line[2:] for line in difflib.ndiff(before, after) if line.startswith("+ ")]
    assert len([line for line in added if line and not line.startswith("import ")]) == 3
