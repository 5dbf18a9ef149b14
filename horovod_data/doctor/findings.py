# SPDX-License-Identifier: Apache-2.0
"""The finding of a check, and the report of all findings."""

from __future__ import annotations

import dataclasses
import json
import re
import textwrap
from typing import Iterable, Sequence

from .._version import __version__
from ..errors import counted

# An error stops horovod_data from working. A warning costs speed or comfort, or is an error for some programs.
_MARKS = {"ok": "  ", "warning": "! ", "error": "X "}
_NAME_WIDTH = 20


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report. `advice` says in one sentence what to do. It is empty only for an "ok"."""

    name: str  # the section and the subject: "mpi.thread level"
    value: str  # what was found
    level: str = "ok"
    advice: str = ""


def ok(name: str, value: object) -> Finding:
    return Finding(name, str(value))


def warning(name: str, value: object, advice: str) -> Finding:
    return Finding(name, str(value), "warning", advice)


def error(name: str, value: object, advice: str) -> Finding:
    return Finding(name, str(value), "error", advice)


def sentences(text: str) -> tuple[str, str]:
    """Splits an error text of ours into two parts: what happened, and what to do."""
    what, *to_do = re.split(r"\.\s+(?=[A-Z])", text, maxsplit=1)
    return what.rstrip("."), " ".join(to_do).rstrip(".")


def status(findings: Iterable[Finding]) -> int:
    return int(any(finding.level == "error" for finding in findings))


def as_json(findings: Sequence[Finding]) -> str:
    found = [dataclasses.asdict(finding) for finding in findings]
    return json.dumps({"version": __version__, "status": status(findings), "findings": found}, indent=1)


def as_text(findings: Sequence[Finding], width: int = 120) -> str:
    """The report for people: sections, with the advice below each problem, and the number of problems."""
    lines = [f"horovod_data {__version__}: doctor"]
    sections: dict[str, list[Finding]] = {}
    for finding in findings:
        sections.setdefault(finding.name.partition(".")[0], []).append(finding)
    for section, found in sections.items():
        lines += ["", section]
        for finding in found:
            first = f"{_MARKS[finding.level]}{finding.name[len(section) + 1 :]:<{_NAME_WIDTH}} "
            lines += _wrapped(finding.value, first, " " * len(first), width)
            if finding.advice:
                lines += _wrapped(finding.advice, f"{'':<{_NAME_WIDTH + 3}}-> ", " " * (_NAME_WIDTH + 6), width)
    counts = {level: sum(finding.level == level for finding in findings) for level in ("error", "warning")}
    problems = [counted(count, level) for level, count in counts.items() if count]
    lines += ["", f"Found: {', '.join(problems)}." if problems else "All is well."]
    return "\n".join(lines)


def _wrapped(text: str, first: str, rest: str, width: int) -> list[str]:
    """The text in lines of this width. Paths and commands are not broken."""
    wrap = textwrap.TextWrapper(width, first, rest, break_long_words=False, break_on_hyphens=False)
    return wrap.wrap(text) or [first.rstrip()]
