# SPDX-License-Identifier: Apache-2.0
"""docs/environment.md has every environment variable of the code, docs/commands.md every option of every command."""

from __future__ import annotations

import argparse
import importlib
import re

import pytest
from blocks import ROOT

SOURCES = [path for folder in ("horovod_data", "csrc") for path in (ROOT / folder).rglob("*")]
VARIABLES = {
    name
    for path in SOURCES
    if path.suffix in {".py", ".cc", ".h"}
    for name in re.findall(r"HOROVOD_DATA_[A-Z_]+", path.read_text())
}
COMMANDS = [f"python -m horovod_data.{name}" for name in ("doctor", "plan", "certificate", "timeline")]


def rows(text: str) -> list[list[str]]:
    """The cells of all table rows that begin with a name in code marks."""
    lines = re.findall(r"^\| (`.*) \|$", text, re.MULTILINE)
    return [[cell.strip() for cell in line.split(" | ")] for line in lines]


def options(parser: argparse.ArgumentParser) -> set[str]:
    """The options of a parser and of its commands, without --help."""
    found = set()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                found |= options(command)
        elif not isinstance(action, argparse._HelpAction):
            found |= set(action.option_strings)
    return found


def parser_of(command: str, monkeypatch: pytest.MonkeyPatch) -> argparse.ArgumentParser:
    if command == "horovod-data-run":
        parser = argparse.ArgumentParser()
        importlib.import_module("horovod_data.launcher.options")._add_options(parser)
        return parser
    made = []

    def parse_args(parser, *_):
        made.append(parser)
        raise SystemExit

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
    module = command.rpartition(" ")[2]
    if (ROOT / module.replace(".", "/")).is_dir():
        module += ".__main__"
    with pytest.raises(SystemExit):
        importlib.import_module(module).main([])
    return made[0]


def test_every_environment_variable_has_a_row_with_its_default_and_unit():
    table = rows((ROOT / "docs" / "environment.md").read_text())
    names = [row[0].strip("`") for row in table]
    assert len(VARIABLES) > 10
    assert sorted(names) == sorted(VARIABLES)
    for row in table:
        assert len(row) == 4 and all(row), row


@pytest.mark.parametrize("command", ["horovod-data-run", *COMMANDS])
def test_every_option_has_a_row(command, monkeypatch):
    page = (ROOT / "docs" / "commands.md").read_text()
    section = page.partition(f"\n## {command}\n")[2].partition("\n## ")[0]
    assert section, command
    documented = {name for row in rows(section) for name in re.findall(r"`(-[\w-]+)`", row[0])}
    assert documented == options(parser_of(command, monkeypatch))
