# SPDX-License-Identifier: Apache-2.0
"""`make soak` runs, and says so when something is wrong: with seconds for minutes, and with parts that go wrong."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import soak
from ranks.launch import environment

HERE = Path(__file__).resolve().parent
pytestmark = pytest.mark.limit(300)

SUMMARY = re.compile(
    r"seed (\w+): \S+ minutes, \d+ jobs, (\d+) cases, (\d+) epochs, ([\d,]+) steps and ([\d,]+) rows verified"
)

WRONG = """
import sys
sys.path[:0] = {folders!r}
import numpy as np
from soaking import Soak, hvdata, main, oracle

class Wrong(Soak):
    def __init__(self):
        super().__init__()
        self.given["cases"], self.given["seconds"] = list(range({cases})), 1e9
        self.kept = []
{method}
main(Wrong)
"""

ORACLE = """
    def take(self, case, iterator, until):
        got = super().take(case, iterator, until)
        if got and self.rank == 0:  # the last byte of the last share
            flat = oracle.flatten(got[-1])[-1]
            array = np.array(flat)
            if array.size and array.dtype != object:
                array.view(np.uint8).reshape(-1)[-1] ^= 1
                got[-1] = oracle.map_nest(lambda one: array if one is flat else one, got[-1])
        return got
"""
MEMORY = """
    def tell(self, number):
        self.kept.append(np.ones(16 << 20, np.uint8))
        super().tell(number)
"""
FILES = """
    def tell(self, number):
        self.kept.append(open("/dev/null"))
        super().tell(number)
"""
TOO_FEW = """
    def take(self, case, iterator, until):
        got = super().take(case, iterator, until)
        return got[:-1] if until and case.schedule == "static" else got
"""
HANDED_OUT = """
    def record(self, name):
        return {**super().record(name), "rows": 1 << 40}
"""


@pytest.fixture
def soaks(tmp_path, monkeypatch, capsys):
    """Runs a soak of rank 0 alone, or of more, with the program or one that goes wrong; status and output."""

    def run(*arguments, method="", cases=6, processes=1):
        program = soak.PROGRAM
        if method:
            program = tmp_path / "wrong.py"
            program.write_text(WRONG.format(folders=[str(HERE), str(HERE.parent)], method=method, cases=cases))
        status = soak.main(["--processes", str(processes), "--out", str(tmp_path), *arguments], program)
        return status, capsys.readouterr().out

    return run


@pytest.mark.slow
def test_a_short_one(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            str(HERE / "soak.py"),
            "--minutes",
            "0.1",
            "--processes",
            "2",
            "--seed",
            "1",
            "--out",
            str(tmp_path),
        ],
        env=environment(tmp_path, 0, {}),
        capture_output=True,
        text=True,
        timeout=290,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seed, *counts = SUMMARY.findall(done.stdout)[-1]
    assert seed == "1" and all(int(count.replace(",", "")) > 0 for count in counts), done.stdout
    assert not list(tmp_path.iterdir())  # nothing is left but where something was found


@pytest.mark.slow
@pytest.mark.parametrize(
    "method, said",
    [
        (ORACLE, "step .* of rank 0 is not what it should be|elements too much"),
        (HANDED_OUT, "rows, but the certificate says"),
        (TOO_FEW, r"\d steps, not \d"),
    ],
)
def test_a_wrong_share_is_found_and_can_be_repeated(soaks, method, said):
    status, output = soaks("--minutes", "0.01", "--seed", "5", method=method)
    assert status == 1, output
    assert re.search(rf"FOUND in job 0 .*: job 0, case \d+, epoch \d .*Found: .*({said})", output), output
    assert re.search(r"to repeat it: python tests/soak/soak.py --seed 5 --processes 1 .*--job 0", output), output


@pytest.mark.slow
@pytest.mark.parametrize("method, said", [(MEMORY, "allocated went from"), (FILES, "files went from")])
def test_what_is_not_given_back_is_found(soaks, method, said):
    status, output = soaks("--minutes", "0.01", "--seed", "5", method=method, cases=9)
    assert status == 1 and f"process 0: {said}" in output, output
