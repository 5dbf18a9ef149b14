# SPDX-License-Identifier: Apache-2.0
"""scripts/matrix.py: what it records of a cell, and the page that it writes."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("matrix", ROOT / "scripts" / "matrix.py")
matrix = importlib.util.module_from_spec(spec)
spec.loader.exec_module(matrix)

CELL = matrix.Cell("2.21.0", "3.12", "openmpi5")


def entry(**other: str) -> dict:
    told = {"date": "2026-01-02", "mpi": "Open MPI 5.0.1", "delivery": "258 passed, 1 skipped", "horovod": ""}
    return {**told, "commands": [], **other}


def test_the_page_is_what_the_record_says():
    record = json.loads(matrix.RECORD.read_text())
    assert matrix.PAGE.read_text() == matrix.page(record), "python scripts/matrix.py --page"
    assert set(record) <= {cell.name for cell in matrix.CELLS}
    for name, told in record.items():
        assert {"date", "mpi", "delivery", "horovod", "commands"} == set(told), name
        assert str(ROOT) not in json.dumps(told) and "/home/" not in json.dumps(told)


def test_a_cell_never_run_says_so_and_others_have_date_and_result():
    assert f"| {CELL.name} | never | - | - | - | `make matrix CELLS={CELL.name}` |" in matrix.page({})
    assert "passes" not in matrix.page({})
    page = matrix.page({CELL.name: entry()})
    assert f"| {CELL.name} | 2026-01-02 | Open MPI 5.0.1 | 258 passed, 1 skipped | - |" in page
    assert "| 2.21.0 | 3.12 | not run | passes |  |  |" in page


@pytest.fixture
def record(tmp_path, monkeypatch):
    monkeypatch.setattr(matrix, "RECORD", tmp_path / "matrix.json")
    monkeypatch.setattr(matrix, "PAGE", tmp_path / "matrix.md")
    return matrix.RECORD


def test_others_keep_their_last_entry(record):
    other = "tf2.15.1-py3.10-openmpi4"
    matrix.keep(CELL.name, entry())
    matrix.keep(other, entry(delivery="fails: 1 failed"))
    matrix.keep(CELL.name, entry(date="2026-02-03"))
    told = json.loads(record.read_text())
    assert told[CELL.name]["date"] == "2026-02-03" and told[other]["delivery"] == "fails: 1 failed"
    assert list(told) == [other, CELL.name], "in the order of the table"
    assert matrix.PAGE.read_text() == matrix.page(told)


def test_a_result_stays_if_a_cell_or_its_wheel_could_not_be_tried(record):
    matrix.keep(CELL.name, entry(horovod="0.28.1: 25 passed"))
    matrix.keep(CELL.name, entry(delivery="not run: no Python 3.12 here"))
    assert json.loads(record.read_text())[CELL.name] == entry(horovod="0.28.1: 25 passed")
    for date in "2026-02-03", "2026-03-04":
        matrix.keep(CELL.name, entry(date=date, horovod="not run: none is built for it here"))
        told = entry(date=date, horovod="0.28.1: 25 passed (on 2026-01-02)")
        assert json.loads(record.read_text())[CELL.name] == told and matrix.mark(told) == "passes"


def test_a_python_that_is_not_here_is_told(record, capsys):
    assert matrix.main([CELL.name, "--python", "3.12=/no/such/python"]) == 0
    assert "not run: no Python 3.12 here" in record.read_text() and "not run" in capsys.readouterr().out


def test_reasons_are_short_and_summaries_add_up():
    said = "collected\n257 passed, 1 skipped in 60.1s (0:01:00)\n...\n====== 3 passed in 2.0s ======\n"
    assert matrix.summary(said) == "260 passed, 1 skipped"
    assert matrix.reason(said + "== 1 failed, 2 passed in 3.0s ==\n") == "fails: 1 failed, 2 passed"
    built = "  error: subprocess-exited\na.cc:3: fatal error: mpi.h: No such file\nb.cc:1: error: other\nERROR: Failed to build\n"
    assert matrix.reason(built) == "fails: a.cc:3: fatal error: mpi.h: No such file"


def test_the_wheel_of_horovod_is_found_where_setup_keeps_it():
    """The name of the wheel's folder has the checksum of the patches for TensorFlow, without those for PyTorch."""
    (patches,) = re.findall(r"local patches=\((\S+)\)", (ROOT / "scripts" / "setup.sh").read_text())
    command = f"cat {patches} | cksum | cut -d' ' -f1"
    said = subprocess.run(["bash", "-c", command], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    folder = matrix.folder_of_wheel(CELL, "Open MPI 5.0.1")
    assert folder.name == f"openmpi-5.0.1-py312-tf2.21.0-patched{said}"
