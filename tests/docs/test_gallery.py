# SPDX-License-Identifier: Apache-2.0
"""docs/gallery.md has every example with its output, and is what packaging/site/gallery.py writes."""

import importlib.util
import sys

import pytest
from blocks import ROOT

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


def test_the_page_is_what_the_script_writes(gallery):
    text = PAGE.read_text()
    outputs = gallery.outputs_of(text)
    assert all(outputs.values()) and "Traceback" not in text
    assert list(outputs) == [entry.command for entry in gallery.ENTRIES]
    assert gallery.page(outputs) == text
