# SPDX-License-Identifier: Apache-2.0
"""docs/gallery.md has every example with its output, and is what packaging/site/gallery.py writes."""

import importlib.util
import re
import shlex
import sys

import pytest
from blocks import ROOT, Block, named

PAGE = ROOT / "docs" / "gallery.md"
EXAMPLES = [
    path.relative_to(ROOT).as_posix()
    for path in sorted((ROOT / "examples").rglob("*"))
    if path.is_file() and path.suffix in {".py", ".sbatch", ".yaml"}
]


@pytest.fixture(scope="module")
def gallery():
    spec = importlib.util.spec_from_file_location("gallery", ROOT / "packaging" / "site" / "gallery.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["gallery"] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    yield module
    del sys.modules["gallery"]


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_there(example):
    assert f"](../{example})" in PAGE.read_text()


@pytest.mark.parametrize("block", named("console"), ids=lambda block: block.id)
def test_commands_exist_and_have_said_something(block: Block):
    assert block.page == PAGE
    command, *output = block.text.splitlines()
    words = shlex.split(command.removeprefix("$ "))
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    assert words[0] in {"python", "mpirun"}, command
    assert (ROOT / next(word for word in words if word.endswith(".py"))).is_file(), command
    assert output and "Traceback" not in block.text, command


def test_the_page_is_what_the_script_writes(gallery):
    text = PAGE.read_text()
    outputs = gallery.outputs_of(text)
    assert list(outputs) == [entry.command for entry in gallery.ENTRIES]
    assert gallery.page(outputs) == text


def test_long_output_is_shortened(gallery):
    entry = gallery.Entry("", "", "python examples/a.py", first=1, last=2)
    assert gallery.shortened("1\n2\n3\n4 \n", entry) == "1\n2\n3\n4\n"  # an ellipsis would stand for one line
    assert gallery.shortened("1\n2\n3\n4\n5\n", entry) == "1\n…\n4\n5\n"
