# SPDX-License-Identifier: Apache-2.0
"""The rows that the table of deliveries compares."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))
import delivery_report as report  # noqa: E402


def result(name, ranks=4, size=4 << 10, rounds=(1.0,), switches=(6000,)):
    kind = "limit" if name.startswith("limit") else "ours"
    measured = dict(steps=1000, seconds=list(rounds), cpu_steps=1000, switches=list(switches), error="")
    return dict(name=name, kind=kind, moves=True, ranks=ranks, bytes=size, cycle_time=1, **measured)


@pytest.mark.parametrize(
    "ranks, size, apart",
    [(4, 4 << 10, 64), (4, 64 << 10, 64), (4, 1 << 20, 16), (8, 1 << 20, 16), (2, 16 << 20, 2), (4, 16 << 20, 2)],
)
def test_default_stands_beside_ranks_as_far_apart_as_its_window(ranks, size, apart):
    two, ahead = (report.IN_STEP.format(steps) for steps in (2, report.AHEAD))
    group = [result(two, ranks, size), result(ahead, ranks, size)]
    for name in (report.OURS, report.GLOBAL):
        beside, steps = report.in_step(group, result(name, ranks, size))
        assert (beside["name"], steps) == (two if apart == 2 else ahead, apart)


def test_summary_says_how_far_apart_and_counts_their_switches():
    ahead = result(report.IN_STEP.format(report.AHEAD), rounds=[0.8], switches=[500])
    two = result(report.IN_STEP.format(2), rounds=[4.0], switches=[9000])
    told = {"results": [result(report.OURS, switches=[700]), two, ahead]}
    (line,) = [line for line in report.summary(told) if line.startswith("| 4 ranks")]
    assert "| 0.80 (64) |" in line and "| 0.70, 0.50 |" in line, line
