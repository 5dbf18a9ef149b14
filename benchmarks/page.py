# SPDX-License-Identifier: Apache-2.0
"""Writes the results of a benchmark: JSON, a Markdown page and a plot. With --docs it publishes them in docs/."""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import machine

DOCS = Path(__file__).resolve().parent.parent / "docs"
OURS, RIVAL, LIMIT = "#1b7837", "#9970ab", "#bbbbbb"
COLOURS = {"ours": OURS, "rival": RIVAL, "limit": LIMIT}


def size_name(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def prose(text: str) -> str:
    """Joins the lines of a text into one paragraph."""
    return " ".join(text.split())


def defined(terms: dict[str, str]) -> list[str]:
    """The lines of a Markdown list that says what each term of a table means, between blank lines."""
    return ["", *[f"- *{term}*: {prose(meaning)}" for term, meaning in terms.items()], ""]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table, between blank lines.

    The first column is aligned to the left, figures to the right.
    """
    lines = [header, ["---", *["--:"] * (len(header) - 1)], *rows]
    return ["", *[f"| {' | '.join(cells)} |" for cells in lines], ""]


def write(
    name: str,
    told: dict[str, Any],
    text: list[str],
    summary: list[str],
    arguments: argparse.Namespace,
    draw: Callable[[Any], Any],
) -> None:
    """Writes `told` as NAME.json, and `summary` and `text` as NAME.md.

    `draw` takes matplotlib.pyplot and returns the figure. Without matplotlib there is no picture.
    """
    arguments.out.mkdir(parents=True, exist_ok=True)
    told["machine"]["load_after"] = machine.load()
    body = _joined(
        [machine.sentence(told["machine"]), "", "## In short", "", *summary, "", "## All figures", "", *text]
    )
    (arguments.out / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n")
    (arguments.out / f"{name}.md").write_text(body)
    plotted = _plot(arguments.out / f"{name}.png", draw)
    if arguments.docs:
        _publish(name, arguments.out, body, plotted)
    print(body)


def _joined(lines: Iterable[str]) -> str:
    return re.sub("\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def _plot(path: Path, draw: Callable[[Any], Any]) -> bool:
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = draw(pyplot)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    return True


def _publish(name: str, out: Path, body: str, plotted: bool) -> None:
    """Copies the figures, the page and the plot into docs/. charts.py draws the charts of docs/performance.md from
    them."""
    page = f"benchmark_{name}"
    shutil.copy(out / f"{name}.json", DOCS / f"{page}.json")
    picture = ""
    if plotted:
        shutil.copy(out / f"{name}.png", DOCS / f"{page}.png")
        picture = f"\n![The plot of benchmarks/{name}.py]({page}.png)\n"
    (DOCS / f"{page}.md").write_text(
        f"# Benchmark: {name}\n\nWritten by `python benchmarks/{name}.py --docs`. What it means for you: "
        f"[Performance](performance.md). All rounds: [{page}.json]({page}.json).\n\n{body}{picture}"
    )


def put(page: Path, name: str, shown: str) -> None:
    """Writes `shown` between the two marks `<!-- name -->` and `<!-- end -->` of a page."""
    marked = re.compile(f"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    page.write_text(marked.sub(lambda marks: f"{marks[1]}\n{shown}\n{marks[2]}", page.read_text()))
