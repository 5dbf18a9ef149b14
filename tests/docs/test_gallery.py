# SPDX-License-Identifier: Apache-2.0
"""docs/gallery.md has every example, with its output. packaging/site/gallery.py shortens outputs for the page."""

import importlib.util

import pytest
from blocks import ROOT

EXAMPLES = [
    path.relative_to(ROOT).as_posix()
    for path in sorted((ROOT / "examples").rglob("*"))
    if path.is_file() and path.suffix in {".py", ".sbatch", ".yaml"}
]
spec = importlib.util.spec_from_file_location("gallery", ROOT / "packaging" / "site" / "gallery.py")
gallery = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gallery)


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_there(example):
    assert f"](../{example})" in gallery.PAGE.read_text()


def test_every_command_has_its_output():
    blocks = gallery.BLOCK.findall(gallery.PAGE.read_text())
    assert len(blocks) > 15 and all(output and "Traceback" not in output for _, output in blocks)


def test_an_output_keeps_its_length():
    assert gallery.shortened("1\n2 \n", "a\n") == "1\n2\n"
    assert gallery.shortened("1\n2\n3\n4\n5\n", "a\n…\nb\nc\n") == "1\n…\n4\n5\n"
    assert gallery.shortened("1\n2\n3\n", "…\nb\n") == "…\n3\n"
