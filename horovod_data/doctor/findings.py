# SPDX-License-Identifier: Apache-2.0
"""The finding of a check, and the report of all findings."""

from __future__ import annotations

import dataclasses
import json
import re
import textwrap
from typing import Any, Iterable, Sequence

from .._version import __version__

# An error stops horovod_data from working. A warning costs speed or comfort, or is an error for some programs.
LEVELS = ("ok", "warning", "error")
_MARKS = {"ok": "  ", "warning": "! ", "error": "X "}
_NAME_WIDTH = 20


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report. `advice` says in one sentence what to do. It is empty only for an "ok"."""

    name: str  # the section and the subject: "mpi.thread level"
    value: str  # what was found
    level: str = "ok"
    advice: str = ""

    def __post_init__(self) -> None:
        if self.level not in LEVELS or (self.level != "ok" and not self.advice):
            raise ValueError(f"{self}: a problem needs its advice")


def ok(name: str, value: object) -> Finding:
    """A finding without a problem."""
    return Finding(name, str(value))


def warning(name: str, value: object, advice: str) -> Finding:
    """A finding that costs speed or comfort."""
    return Finding(name, str(value), "warning", advice)


def error(name: str, value: object, advice: str) -> Finding:
    """A finding that stops horovod_data from working."""
    return Finding(name, str(value), "error", advice)


def sentences(text: str) -> tuple[str, str]:
    """Splits an error text of ours into two parts: what happened, and what to do."""
    what, *to_do = re.split(r"\.\s+(?=[A-Z])", text, maxsplit=1)
    return what.rstrip("."), " ".join(to_do).rstrip(".")


def status(findings: Iterable[Finding]) -> int:
    """The exit status: 1 if there is an error, otherwise 0, also with warnings."""
    return int(any(finding.level == "error" for finding in findings))


def as_json(findings: Sequence[Finding]) -> str:
    """The report for programs."""
    told: dict[str, Any] = {
        "version": __version__,
        "status": status(findings),
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }
    return json.dumps(told, indent=1)


def as_text(findings: Sequence[Finding], width: int = 120) -> str:
    """The report for people: sections, with the advice below each problem, and the number of problems."""
    lines = [f"horovod_data {__version__}: doctor"]
    section = ""
    sections = list(dict.fromkeys(_section(finding) for finding in findings))
    for finding in sorted(findings, key=lambda finding: sections.index(_section(finding))):
        name = finding.name[len(_section(finding)) + 1 :]
        if _section(finding) != section:
            section = _section(finding)
            lines += ["", section]
        first = f"{_MARKS[finding.level]}{name:<{_NAME_WIDTH}} "
        lines += _wrapped(finding.value, first, " " * len(first), width)
        if finding.advice:
            lines += _wrapped(finding.advice, f"{'':<{_NAME_WIDTH + 3}}-> ", " " * (_NAME_WIDTH + 6), width)
    counts = [sum(finding.level == level for finding in findings) for level in ("error", "warning")]
    told = [f"{count} {level}{'s' * (count != 1)}" for count, level in zip(counts, ("error", "warning")) if count]
    lines += ["", f"Found: {', '.join(told)}." if told else "All is well."]
    return "\n".join(lines)


def _section(finding: Finding) -> str:
    return finding.name.partition(".")[0]


def _wrapped(text: str, first: str, rest: str, width: int) -> list[str]:
    """The text in lines of this width. It keeps its own line breaks, and does not break paths and commands."""
    lines: list[str] = []
    for line in text.splitlines() or [""]:
        lines += textwrap.wrap(
            line,
            width,
            initial_indent=rest if lines else first,
            subsequent_indent=rest,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [first.rstrip()]
    return lines
