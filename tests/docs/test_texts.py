# SPDX-License-Identifier: Apache-2.0
"""What the pages quote and link exists: error texts, files, environment variables."""

import re

import pytest
from blocks import PAGES, ROOT

from horovod_data.plan import MEASURED

SOURCES = [*ROOT.glob("csrc/**/*.cc"), *ROOT.glob("csrc/**/*.h"), *ROOT.glob("horovod_data/**/*.py")]


def source_text() -> str:
    """All sources, with the pieces of string literals joined, and escapes undone."""
    text = "\n".join(path.read_text() for path in SOURCES)
    return re.sub(r'"\s*\n\s*f?"', "", text).replace('\\"', '"')


def quoted_errors():
    pages = [ROOT / "docs" / name for name in ("troubleshooting.md", "troubleshooting-data.md")]
    headings = [line for page in pages for line in re.findall(r"^### (`.*`.*)$", page.read_text(), re.MULTILINE)]
    return [text for heading in headings for text in re.findall(r"`([^`]+)`", heading) if text != "NaN"]


@pytest.mark.parametrize("error", quoted_errors())
def test_quoted_errors_are_real(error):
    for part in error.split("…"):
        # In the sources a number or name is {...} of an f-string, or stands between two literals.
        assert part.strip(" ,:") in source_text(), part


def test_there_are_quoted_errors():
    assert len(quoted_errors()) > 20


def anchors_of(page):
    """Returns the anchors of a page's headings, as the site and hosts of repositories make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


TEXTS = [*PAGES, *(ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "CODE_OF_CONDUCT", "SECURITY"))]


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text()):
        there = page.parent / target if target else page
        assert "://" in target or there.exists(), target
        assert not anchor or there.suffix != ".md" or anchor in anchors_of(there), (target, anchor)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)  # the changelog names variables that are gone
def test_environment_variables_are_real(page):
    for name in set(re.findall(r"HOROVOD_DATA_[A-Z_]+", page.read_text())):
        assert f'"{name}"' in source_text(), name


def test_named_files_are_there():
    """developers.md names the files on the way of a batch by their paths."""
    text = (ROOT / "docs" / "developers.md").read_text()
    paths = re.findall(r"`((?:csrc|tests|horovod_data|examples|scripts)/[\w./-]+)`", text)
    assert len(paths) > 10
    for path in paths:
        assert path.endswith(".so") or (ROOT / path).exists(), path
    for name in re.findall(r"`(\w+\.(?:cc|h))`", text):
        assert list(ROOT.glob(f"csrc/**/{name}")), name


def test_changelog_has_the_headings():
    text = (ROOT / "CHANGELOG.md").read_text()
    for version in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        headings = re.findall(r"^### (.*)$", version, re.MULTILINE)
        assert [h for h in headings if h != "Given back"] == [
            "New features",
            "Breaking changes",
            "Deprecations",
            "Bug fixes",
        ]


def test_the_planning_model_s_constants_are_those_of_the_page():
    page = (ROOT / "docs" / "planning.md").read_text()
    assert f"n x {MEASURED.seconds_per_batch * 1e6:g} us / w" in page
    assert f"l B / {MEASURED.copy_bytes_per_second / 1e9:g} GB/s / w" in page
    assert f"(n - l) B / {MEASURED.send_bytes_per_second / 1e9:g} GB/s / w" in page


def test_the_programs_of_long_jobs_save_their_state():
    for path in "docs/long-jobs.md", "examples/slurm/requeue.sbatch":
        for program in re.findall(r"python (examples/\S+\.py)", (ROOT / path).read_text()):
            assert "Backup" in (ROOT / program).read_text(), (path, program)
