# SPDX-License-Identifier: Apache-2.0
"""Draws the charts of docs/performance.md and README.md from the committed docs/benchmark_*.json.

    python benchmarks/charts.py        # draws docs/chart_*.png and writes the lines that show them into both pages

A chart answers one question. Its axis is linear and begins at 0, our bar comes first, and each bar has its number.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
from collections.abc import Callable, Iterable
from typing import Any

from page import DOCS, LIMIT, OURS, RIVAL, put

PAGES = {
    "even-steps.md": DOCS / "even-steps.md",
    "performance.md": DOCS / "performance.md",
    "README.md": DOCS.parent / "README.md",
}


@dataclasses.dataclass(frozen=True)
class Bar:
    name: str
    value: float
    colour: str = RIVAL


@dataclasses.dataclass(frozen=True)
class Panel:
    """Bars that share a title, a unit and an axis."""

    title: str
    unit: str
    bars: list[Bar]
    digits: int = 0

    def shown(self, bar: Bar) -> str:
        return f"{bar.value:,.{self.digits}f}"

    def sentence(self) -> str:
        figures = ", ".join(f"{bar.name} {self.shown(bar)}" for bar in self.bars)
        return f"{self.title}, {self.unit}: {figures}"


def told(benchmark: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCS / f"benchmark_{benchmark}.json").read_text())
    return found


def alternatives() -> list[Panel]:
    (profile,) = (result for result in told("storage")["results"] if result["profile"] == "resnet50")
    names = {
        "horovod_data, per_rank": ("horovod_data", OURS),
        "hvd.alltoall": ("hvd.alltoall", RIVAL),
        "hvd.broadcast + slice": ("hvd.broadcast + slice", RIVAL),
        "tf.data service": ("tf.data service", RIVAL),
        "all read + shard": ("all read + shard", RIVAL),
    }
    ways = {way["name"]: way for way in profile["ways"] if way["source"] == "files"}
    bars = [
        Bar(name, 100 * statistics.median(each["busy"] for each in ways[way]["rounds"]), colour)
        for way, (name, colour) in names.items()
    ]
    return [Panel("ResNet-50 from files, 4 ranks", "% of the time in which an accelerator computes", bars)]


def limits() -> list[Panel]:
    names = {
        "horovod_data, per_rank": ("horovod_data,\nto 4 ranks", OURS),
        "all read + shard": ("all read + shard,\nto 4 ranks", RIVAL),
        "pipeline alone": ("the same pipeline\nalone, 1 process", LIMIT),
    }
    results = {result["name"]: result for result in told("pipeline")["results"]}
    bars = [
        Bar(name, result["elements_per_step"] * result["steps"] / statistics.median(result["seconds"]), colour)
        for result, (name, colour) in ((results[way], shown) for way, shown in names.items())
    ]
    return [Panel("Batches of 1 MiB from files", "batches per second", bars)]


def scaling() -> list[Panel]:
    names = {
        "a reader on each host": ("horovod_data,\na reader on each host", OURS),
        "one reader": ("horovod_data,\none reader", OURS),
        "hvd.broadcast + slice": ("hvd.broadcast\n+ slice", RIVAL),
    }
    panels = []
    for hosts in (2, 4):
        results = {result["name"]: result for result in told("scaling")["over_hosts"] if result["hosts"] == hosts}
        bars = [
            Bar(name, results[way]["batches"] / statistics.median(results[way]["seconds"]), colour)
            for way, (name, colour) in names.items()
        ]
        panels.append(Panel(f"{hosts} hosts of 2 ranks, lines of 1 Gbit/s", "batches of 1 MiB per second", bars))
    return panels


def proof() -> list[Panel]:
    panels = []
    results = {
        (result["ranks"], result["milliseconds"]): result
        for result in told("certificate")["results"]
        if result["bytes"] == 1 << 20
    }
    for ranks in (2, 4):
        result = results[ranks, 10]
        bars = [
            Bar("verify=True", 1e3 * statistics.median(result["on"]), OURS),
            Bar("without", 1e3 * statistics.median(result["off"]), LIMIT),
        ]
        panels.append(
            Panel(f"{ranks} ranks, 1 MiB each, a step that computes for 10 ms", "ms per step", bars, digits=2)
        )
    return panels


def memory() -> list[Panel]:
    data = told("memory")
    mebibyte = float(1 << 20)
    bars = []
    for prefetch, name in ((0, "default"), (1, "prefetch=1"), (2, "prefetch=2"), (8, "prefetch=8")):
        (reader,) = (
            each
            for each in data["results"]
            if (each["rank"], each["pipeline"], each["prefetch"]) == (0, "batch", prefetch)
        )
        bars.append(Bar(name, (reader["private"] + reader["shared"]) / mebibyte, OURS))
        bars.append(Bar("the formula", (reader["widest"] + 3) * data["step"] / mebibyte, LIMIT))
    return [Panel("The reader, 4 ranks, steps of 16 MiB", "MiB", bars)]


def even() -> list[Panel]:
    names = {
        "even_batches, max_cost": ("even_batches,\nmax_cost", OURS),
        "even_batches, batch_size": ("even_batches,\nbatch_size", OURS),
        "buckets by length": ("buckets by length", RIVAL),
        "plain batches": ("plain batches", RIVAL),
    }
    panels = []
    for sigma in (1.0, 0.6):
        results = {result["name"]: result for result in told("even")["results"] if _is(result, sigma, ranks=8)}
        bars = [Bar(name, 100 / results[way]["faster"], colour) for way, (name, colour) in names.items()]
        panels.append(Panel(f"8 ranks, log-normal lengths, sigma {sigma:g}", "% of the epoch with plain batches", bars))
    return panels


def torch_ranks() -> list[Panel]:
    data = told("torch_ranks")
    names = {
        "ours": ("loader(),\na dedicated reader", OURS),
        "every_rank": ("every rank runs\nthe pipeline", RIVAL),
        "broadcast": ("rank 0 runs it,\nbroadcast + slice", RIVAL),
    }
    bars = []
    for way, (name, colour) in names.items():
        memory = statistics.median(each["memory"] for each in data["pipeline"] if each["way"] == way)
        bars.append(Bar(name, memory / (1 << 30), colour))
    buffer = data["buffer"] * data["side"] ** 2 * 3 / (1 << 30)
    title = f"{data['ranks']} ranks of PyTorch, a shuffle buffer of {buffer:.1f} GiB"
    return [Panel(title, "GiB of memory of the whole job", bars, digits=1)]


def _is(result: dict[str, Any], sigma: float, ranks: int) -> bool:
    return bool(result["sigma"] == sigma and result["ranks"] == ranks)


# By chart: the panels, and the pages that show the chart.
CHARTS: dict[str, tuple[Callable[[], list[Panel]], tuple[str, ...]]] = {
    "alternatives": (alternatives, ("README.md", "performance.md")),
    "limits": (limits, ("performance.md",)),
    "scaling": (scaling, ("performance.md",)),
    "proof": (proof, ("performance.md",)),
    "memory": (memory, ("performance.md",)),
    "torch_ranks": (torch_ranks, ("performance.md",)),
    "even": (even, ("even-steps.md",)),
}


def line(name: str, page: str) -> str:
    """The Markdown that shows the chart. Its alternative text has all numbers."""
    make, _ = CHARTS[name]
    text = "; ".join(panel.sentence() for panel in make()).replace("\n", " ")
    folder = "docs/" if page == "README.md" else ""
    return f"![{text}]({folder}chart_{name}.png)"


def draw(name: str, panels: list[Panel], pyplot: Any) -> None:
    height = 0.9 * len(panels) + 0.42 * sum(len(panel.bars) for panel in panels) + 0.1
    ratios = [len(panel.bars) + 0.6 for panel in panels]
    figure, axes = pyplot.subplots(
        len(panels), 1, squeeze=False, figsize=(8, height), gridspec_kw={"height_ratios": ratios}
    )
    most = max(bar.value for panel in panels for bar in panel.bars)
    for axis, panel in zip((row[0] for row in axes), panels):
        places = range(len(panel.bars))[::-1]  # because barh begins at the bottom
        axis.barh(places, [bar.value for bar in panel.bars], color=[bar.colour for bar in panel.bars], height=0.72)
        axis.set_yticks(list(places), [bar.name for bar in panel.bars], fontsize=12)
        for place, bar in zip(places, panel.bars):
            axis.text(bar.value + most / 100, place, panel.shown(bar), va="center", fontsize=13, fontweight="bold")
        axis.set_xlim(0, 1.12 * most)
        axis.set_title(panel.title, fontsize=13, loc="left")
        axis.set_xlabel(panel.unit, fontsize=12)
        axis.tick_params(axis="x", labelsize=11)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(DOCS / f"chart_{name}.png", dpi=150, metadata={"Software": None})
    pyplot.close(figure)


def main(names: Iterable[str]) -> int:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    for name in names or CHARTS:
        make, pages = CHARTS[name]
        draw(name, make(), pyplot)
        for page in pages:
            put(PAGES[page], f"chart {name}", line(name, page))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
