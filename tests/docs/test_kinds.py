# SPDX-License-Identifier: Apache-2.0
"""The four kinds of pages, as in mkdocs.yml. A how-to begins with the reader's sentence and ends with a check."""

from __future__ import annotations

import re

import pytest
import yaml
from blocks import ROOT

DOCS = ROOT / "docs"
KINDS = ["Tutorial", "How-to guides", "Reference", "Explanation"]
GENERATED = re.compile(r"benchmark_\w+|gallery|matrix")


def pages_in(entry) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in pages_in(part)]


NAV = {
    name: pages_in(entry)
    for part in yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    for name, entry in part.items()
}


def test_the_four_kinds_are_there():
    assert [name for name in NAV if name in KINDS] == KINDS


@pytest.mark.parametrize("name", NAV["How-to guides"])
def test_a_how_to_begins_with_the_readers_sentence_and_ends_with_the_check(name):
    text = (DOCS / name).read_text()
    assert re.match(r'# [^\n]+\n\n> "', text), "no sentence of the reader's"
    assert re.findall(r"^## (.*)$", text, re.MULTILINE)[-1] == "Did it work?"


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_a_page_is_short(path):
    """Drawings and code do not count."""
    if not GENERATED.fullmatch(path.stem):
        prose = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
        assert len(prose.splitlines()) <= 200
