# SPDX-License-Identifier: Apache-2.0
"""Every row of the table of faults in guarantees.md names its tests, and they exist."""

import ast
import re

import pytest
from blocks import ROOT

PAGE = (ROOT / "docs" / "guarantees.md").read_text()
TABLE = [
    line for line in PAGE.partition("\n## Faults\n")[2].partition("\n## ")[0].splitlines() if line.startswith("|")
][2:]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.split("|")[1].strip()[:40])
def test_the_tests_of_a_fault_exist(row):
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row.split("|")[-2])
    assert named, row
    for path, name in named:
        tree = ast.parse((ROOT / path).read_text())
        functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        assert name in functions, (path, name)


def test_the_table_is_there():
    assert len(TABLE) > 10
