# SPDX-License-Identifier: Apache-2.0
"""The charts of docs/performance.md and README.md show what the committed docs/benchmark_*.json hold."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))
import charts  # noqa: E402

SHOWN = [(name, page) for name, (_, pages) in charts.CHARTS.items() for page in pages]


@pytest.mark.parametrize("name, page", SHOWN)
def test_the_page_has_the_numbers_of_the_benchmark(name, page):
    text = charts.PAGES[page].read_text()
    shown = text.partition(f"<!-- chart {name} -->\n")[2].partition("<!-- end -->")[0].strip()
    assert shown == charts.line(name, page)
    assert (charts.DOCS / f"chart_{name}.png").is_file()


@pytest.mark.parametrize("name", charts.CHARTS)
def test_our_bar_comes_first(name):
    for panel in charts.CHARTS[name][0]():
        assert panel.bars[0].colour == charts.OURS and len(panel.bars) > 1
        assert all(bar.value > 0 for bar in panel.bars)
