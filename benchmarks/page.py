# SPDX-License-Identifier: Apache-2.0
"""Writes the results of a benchmark: JSON and a Markdown page. With --docs they go into docs/."""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import launch
import machine

DOCS = Path(__file__).resolve().parent.parent / "docs"
Result = dict[str, Any]


# ---- Figures.


def size_name(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of the rounds' ratios. The machine's own pace drifts by more than many differences."""
    return float(statistics.median(a / b for a, b in zip(above, below)))


def spread(values: Sequence[float], digits: int = 0) -> str:
    """The median, and in brackets the lowest and the highest value."""
    middle, low, high = (f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({low}-{high})"


# The next functions take a result of ranks/turns.py.


def rates(result: Result) -> list[float]:
    """Steps per second of each round."""
    return [result["steps"] / seconds for seconds in result["seconds"]]


def rate(result: Result) -> float:
    return float(statistics.median(rates(result)))


def cpu_per_gigabyte(result: Result) -> float:
    """Processor seconds of all ranks for each GB that all ranks received."""
    moved: float = result["cpu_steps"] * result["ranks"] * result["bytes"] / 1e9
    return float(statistics.median(result["cpu"])) / moved


def named(group: list[Result], name: str) -> Result | None:
    return next((r for r in group if r["name"] == name and not r["error"]), None)


# ---- Markdown.


def prose(text: str) -> str:
    """Joins the lines of a text into one paragraph."""
    return " ".join(text.split())


def defined(terms: dict[str, str]) -> list[str]:
    """The lines of a Markdown list that says what each term of a table means, between blank lines."""
    return ["", *[f"- *{term}*: {meaning}" for term, meaning in terms.items()], ""]


def table(results: Iterable[Any], columns: Mapping[str, Callable[[Any], str]]) -> list[str]:
    """The lines of a Markdown table, between blank lines. A column has a header and makes its cell of a result.

    The first column is aligned to the left, figures to the right.
    """
    rows = [[cell(result) for cell in columns.values()] for result in results]
    lines = [list(columns), ["---", *["--:"] * (len(columns) - 1)], *rows]
    return ["", *[f"| {' | '.join(cells)} |" for cells in lines], ""]


_MEANINGS = {  # by benchmark, if its page is not "Performance"
    "backup": "[My job is longer than my allocation](long-jobs.md)",
    "epoch_cache": "[A slow file system](slow-storage.md)",
}


def write(name: str, arguments: argparse.Namespace, text: list[str], **told: Any) -> int:
    """Writes the machine, the settings and `told` as JSON, and `text` as a page. Returns 1 if something has failed."""
    told = {"machine": {**arguments.machine, "load_after": machine.load()}, **launch.settings_of(arguments), **told}
    lines = "\n".join([machine.sentence(told["machine"]), "", *text])
    body = re.sub("\n{3,}", "\n\n", lines).strip() + "\n"
    folder, stem, head = arguments.out, name, ""
    if arguments.docs:
        folder, stem = DOCS, f"benchmark_{name}"
        head = (
            f"# Benchmark: {name}\n\nWritten by `python benchmarks/{name}.py --docs`. What it means for you: "
            f"{_MEANINGS.get(name, '[Performance](performance.md)')}. All rounds: [{stem}.json]({stem}.json).\n\n"
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{stem}.json").write_text(json.dumps(told, indent=1) + "\n")
    (folder / f"{stem}.md").write_text(head + body)
    print(body)
    return 1 if launch.FAILED else 0
