# SPDX-License-Identifier: Apache-2.0
"""What is broken in a built site: links within it, anchors, pictures, and whatever a page would fetch from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

_FETCHED = {
    "img": ("src",),
    "script": ("src",),
    "link": ("href",),
    "source": ("src",),
    "iframe": ("src",),
    "image": ("href",),
}
_NAMES = {"canonical", "next", "prev"}  # of a link: not fetched


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors, self.links, self.fetched = {"", "top"}, set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.anchors |= {named[name] for name in ("id", "name") if named.get(name)}
        if tag == "a" and named.get("href"):
            self.links.add(named["href"])
        if named.get("rel") not in _NAMES:
            self.fetched |= {named[name] for name in _FETCHED.get(tag, ()) if named.get(name)}


def broken(site: Path) -> list[str]:
    pages = {path: _Page(path.read_text()) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        at = path.relative_to(site)
        for target in sorted(page.links | page.fetched):
            if urlsplit(target).scheme or target.startswith("//"):
                if target in page.fetched and not target.startswith("data:"):
                    found.append(f"{at}: fetches {target}")
                continue
            there, anchor = _resolved(site, path, target)
            if not there.is_file():
                found.append(f"{at}: nothing at {target}")
            elif there in pages and anchor not in pages[there].anchors:
                found.append(f"{at}: no anchor {target}")
    for path in site.rglob("*.css"):
        for target in re.findall(r"""url\(["']?([^"')]+)""", path.read_text()):
            if not target.startswith(("data:", "#")) and not _resolved(site, path, target)[0].is_file():
                found.append(f"{path.relative_to(site)}: nothing at {target}")
    return found


def _resolved(site: Path, page: Path, target: str) -> tuple[Path, str]:
    target, anchor = urldefrag(target)
    path = unquote(urlsplit(target).path)
    there = site / path.lstrip("/") if path.startswith("/") else page.parent / path if path else page
    there = there.resolve()
    return there / "index.html" if there.is_dir() else there, unquote(anchor)
