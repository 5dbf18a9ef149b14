# SPDX-License-Identifier: Apache-2.0
"""The site's pages are the files of the repository as they are. MkDocs reads only docs/, so these hooks add the other files.

README.md and similar files become pages. Each file that a page links to becomes a page with its text. Links between files of
the repository become links between pages of the site.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File
from pymdownx.slugs import slugify

ROOT = Path(__file__).resolve().parents[2]
HERE = "packaging/site"
# Files outside of docs/, by their path in the repository. security.md is there, and some file systems take no capitals.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "vulnerabilities.md",
    f"{HERE}/api.md": "api.md",
    f"{HERE}/site.css": "site.css",
}
# A code block, or the target of a link outside of code blocks.
_LINK = re.compile(r"^(?P<fence>```+).*?^(?P=fence)$|\]\((?P<to>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)", re.M | re.S)
_LEXERS = {
    ".cc": "cpp",
    ".h": "cpp",
    ".py": "python",
    ".sh": "bash",
    ".sbatch": "bash",
    ".yaml": "yaml",
    ".yml": "yaml",
}


def on_config(config):
    # Headings get the anchors that repository hosts give them. Those leave out dots and slashes.
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")


def on_files(files, config):
    docs = Path(config.docs_dir)
    wanted = [*PAGES, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    seen = set(wanted)
    for path in wanted:  # the loop adds to it
        if not path.startswith("docs/"):
            files.append(_file(path, config))
        if path.endswith(".md"):
            links = [link for link in _LINK.finditer((ROOT / path).read_text()) if link["to"]]
            new = {there for link in links if (there := _resolve(path, link["to"]))}
            wanted += sorted(there for there in new - seen if not (ROOT / there).is_relative_to(docs))
            seen |= new
    return files


def on_page_markdown(markdown, page, config, files):
    at = next((path for path, place in PAGES.items() if place == page.file.src_uri), None)
    if page.file.src_uri.startswith("source/"):
        at = page.file.src_uri.removeprefix("source/")
        if not (ROOT / at).is_file():
            return markdown  # a page that these hooks made
    at = at or f"docs/{page.file.src_uri}"

    def turned(link):
        there = _resolve(at, link["to"]) if link["to"] else None
        if there is None:
            return link[0]
        target = posixpath.relpath(_place(there), posixpath.dirname(page.file.src_uri) or ".")
        return f"]({target}{link['anchor'] or ''})"

    return _LINK.sub(turned, markdown)


def _resolve(page, target):
    """The path in the repository of the file to which `page` links, if it exists. MkDocs reports a link to a missing file."""
    if ":" in target or target.startswith("/"):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    return path if not path.startswith("..") and (ROOT / path).exists() else None


def _place(path):
    """Where in the site it is."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path}" + ("" if path.endswith(".md") else ".md")


def _file(path, config):
    there = ROOT / path
    place = _place(path)
    if path in PAGES or path.endswith(".md"):
        return File.generated(config, place, content=there.read_text())
    # The search finds pages of prose only.
    head = f"---\ntitle: {there.name}\nsearch: {{exclude: true}}\n---\n\n# {path}\n\n"
    if there.is_dir():
        names = sorted(each.name for each in there.iterdir() if each.is_file())
        return File.generated(config, place, content=head + "".join(f"- `{name}`\n" for name in names))
    fence = "`" * 8
    return File.generated(
        config, place, content=f"{head}{fence}{_LEXERS.get(there.suffix, 'text')}\n{there.read_text()}{fence}\n"
    )
