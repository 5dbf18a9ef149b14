# SPDX-License-Identifier: Apache-2.0
"""The fenced code blocks of README.md and docs/*.md."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

DOCS_TESTS = Path(__file__).resolve().parent
ROOT = DOCS_TESTS.parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# python and bash are run or checked. text is the output of the python block before it. A map is a
# drawing. console is a command with its output, both written by packaging/site/gallery.py.
LANGUAGES = {"python", "bash", "text", "map", "console"}
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    output: str | None = None  # the text block that follows a python block, with no other block between

    @property
    def id(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    found = [Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2]) for match in _FENCE.finditer(text)]
    for i, block in enumerate(found[:-1]):
        if block.language == "python" and found[i + 1].language == "text":
            found[i] = dataclasses.replace(block, output=found[i + 1].text)
    return found


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def named(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]
