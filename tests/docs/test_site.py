# SPDX-License-Identifier: Apache-2.0
"""The site, as `make docs` builds it. MkDocs finds broken links and anchors."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from blocks import ROOT

PYTHON = ROOT / ".venv-docs" / "bin" / "python"
pytestmark = pytest.mark.skipif(
    not (PYTHON.parent / "mkdocs").exists(),
    reason="what builds the site is not installed (scripts/setup.sh docs)",
)


def build(repository: Path, site: Path) -> subprocess.CompletedProcess:
    command = [str(PYTHON), "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=repository, env=env, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built") / "site"
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_there(site):
    names = {path.stem for path in site.glob("*.html")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= names
    assert {"index", "api", "changelog", "contributing", "conduct", "vulnerabilities"} <= names


def test_a_link_to_nowhere_ends_the_build(tmp_path):
    repository = tmp_path / "repository"
    shutil.copytree(ROOT, repository, ignore=shutil.ignore_patterns(".*", "build", "dist", "*.so", "__pycache__"))
    with open(repository / "docs" / "mixing.md", "a") as page:
        page.write("\n[a](../examples/nowhere.py) [b](readers.md#nowhere)\n")
    done = build(repository, tmp_path / "site")
    assert done.returncode == 1 and "2 warnings in strict mode" in done.stdout + done.stderr, done
    for part in "'../examples/nowhere.py'", "'readers.md#nowhere'":
        assert part in done.stderr, done.stderr


def test_the_reference_has_all_public_names(site):
    import horovod_data

    text = (site / "api.html").read_text()
    for name in set(horovod_data.__all__) - {"__version__", "callbacks"}:
        assert f'id="horovod_data.{name}"' in text, name
    assert 'id="horovod_data.callbacks.DeliveryCallback"' in text


def test_pages_fetch_only_what_is_in_the_site(site):
    fetched = re.compile(
        r"""<(?:img|script|source|iframe|link rel="?(?:stylesheet|icon)"?)\b[^>]*?\b(?:src|href)="?([^"\s>]+)"""
    )
    pictures = 0
    for page in site.rglob("*.html"):
        for target in fetched.findall(page.read_text()):
            folder = site if target.startswith("/") else page.parent
            path = re.sub(r"[#?].*", "", target).lstrip("/")
            assert (folder / path).is_file(), (page.name, target)
            pictures += target.endswith((".png", ".svg"))
    assert pictures > 3
