# SPDX-License-Identifier: Apache-2.0
"""`make soak` runs for some seconds, and finds the faults of programs that are wrong on purpose."""

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
    kept = []
    def __init__(self):
        super().__init__()
        self.given["cases"], self.given["seconds"] = list(range(9)), 1e9
{method}
main(Wrong)
"""

METHODS = {
    r"step .* of rank 0 is not what it should be|elements too much": """
    def take(self, case, iterator, until):
        got = super().take(case, iterator, until)
        if got and self.rank == 0:  # the last byte of the last share
            flat = oracle.flatten(got[-1])[-1]
            array = np.array(flat)
            if array.size and array.dtype != object:
                array.view(np.uint8).reshape(-1)[-1] ^= 1
                got[-1] = oracle.map_nest(lambda one: array if one is flat else one, got[-1])
        return got
""",
    r"\d steps, not \d": """
    def take(self, case, iterator, until):
        got = super().take(case, iterator, until)
        return got[:-1] if until and case.schedule == "static" else got
""",
    "rows, but the certificate says": """
    def record(self):
        return {**super().record(), "rows": 1 << 40}
""",
    "process 0: allocated went from": """
    def tell(self, number):
        self.kept.append(np.ones(16 << 20, np.uint8))
        super().tell(number)
""",
    "process 0: files went from": """
    def tell(self, number):
        self.kept.append(open("/dev/null"))
        super().tell(number)
""",
}


@pytest.mark.slow
def test_a_short_one(tmp_path):
    words = ["--minutes", "0.1", "--processes", "2", "--seed", "1", "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, str(HERE / "soak.py"), *words], env=environment(tmp_path, 0, {}),
                          capture_output=True, text=True, timeout=290)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    seed, *counts = SUMMARY.findall(done.stdout)[-1]
    assert seed == "1" and all(int(count.replace(",", "")) > 0 for count in counts), done.stdout
    assert not list(tmp_path.iterdir())  # output is kept only if something was found


@pytest.mark.slow
@pytest.mark.parametrize("said", METHODS)
def test_what_is_wrong_is_found_and_can_be_repeated(tmp_path, capsys, said):
    """The soak has rank 0 alone."""
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG.format(folders=[str(HERE), str(HERE.parent)], method=METHODS[said]))
    words = ["--processes", "1", "--minutes", "0.01", "--seed", "5", "--out", str(tmp_path)]
    status, output = soak.main(words, wrong), capsys.readouterr().out
    assert status == 1, output
    assert re.search(f"FOUND in job 0 .*({said})", output), output
    assert re.search(r"to repeat it: python tests/soak/soak.py --seed 5 --processes 1 .*--job 0", output), output
