# SPDX-License-Identifier: Apache-2.0
"""The site, as `make docs` builds it: no link is broken, and a browser finds its pages by a word."""

import functools
import http.server
import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from blocks import ROOT
from site_links import broken

PYTHON = ROOT / ".venv-docs" / "bin" / "python"
pytestmark = pytest.mark.skipif(
    not (PYTHON.parent / "mkdocs").exists(),
    reason="what builds the site is not installed (scripts/setup.sh docs, or make test-site)",
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


def test_nothing_is_broken(site):
    assert broken(site) == []


def test_what_is_broken_is_found(site, tmp_path):
    folder = tmp_path / "site"
    shutil.copytree(site, folder)
    (folder / "batch_travels.svg").unlink()
    page = folder / "quickstart.html"
    wrong = """
      <a href="nowhere.html">1</a> <a href="which-mode.html#nowhere">2</a> <a href="#nowhere">3</a>
      <img src="//elsewhere.example/a.png"> <script src="https://elsewhere.example/b.js"></script></article>"""
    page.write_text(page.read_text().replace("</article>", wrong))
    assert sorted(broken(folder)) == [
        "index.html: nothing at batch_travels.svg",
        "quickstart.html: fetches //elsewhere.example/a.png",
        "quickstart.html: fetches https://elsewhere.example/b.js",
        "quickstart.html: no anchor #nowhere",
        "quickstart.html: no anchor which-mode.html#nowhere",
        "quickstart.html: nothing at nowhere.html",
    ]


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


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")),
    reason="there is no Chromium (scripts/setup.sh browser, or make test-site)",
)
def test_in_a_browser(site):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    words = ["TensorBoard", "distribute_datasets_from_function"]
    try:
        url = f"http://127.0.0.1:{server.server_port}/"
        command = [str(PYTHON), str(Path(__file__).with_name("site_browser.py")), url, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=170)
    finally:
        server.shutdown()
        server.server_close()
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert ["batch_travels.svg", True] in seen["pictures"] and all(shown for _, shown in seen["pictures"]), seen
    assert any(link.startswith("report.html") for link in seen["found"]["TensorBoard"]), seen
    assert any(link.startswith("api.html") for link in seen["found"]["distribute_datasets_from_function"]), seen
    assert all(seen["opened"].values()) and not seen["errors"] and not seen["elsewhere"], seen
