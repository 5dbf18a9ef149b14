# SPDX-License-Identifier: Apache-2.0
"""The files around the code agree with it about names and versions."""

import re
from pathlib import Path

import pytest

import horovod_data

ROOT = Path(__file__).resolve().parents[2]
yaml = pytest.importorskip("yaml")


def test_citation_and_changelog_have_this_version():
    """The changelog may have a heading for what is not released yet, above it."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == horovod_data.__version__
    assert {"cff-version", "message", "title", "authors", "license"} <= set(citation)
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = [heading for heading in headings if heading != "Unreleased"]
    assert (
        released[0] == f"{horovod_data.__version__} ({citation['date-released']})" and headings.index(released[0]) <= 1
    )


def test_the_stability_page_names_what_is_public():
    page = (ROOT / "docs" / "stability.md").read_text()
    public = page.partition("| names |")[2].partition("\n")[0]
    assert set(re.findall(r"`(\w+)`", public)) == set(horovod_data.__all__)
