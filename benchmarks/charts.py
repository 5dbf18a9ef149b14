# SPDX-License-Identifier: Apache-2.0
"""Draws the charts of docs/performance.md and README.md from the committed docs/benchmark_*.json.

    python benchmarks/charts.py        # draws docs/chart_*.png and writes the lines that show them into both pages

A chart answers one question. Its axis is linear and begins at 0, our bar comes first, and each bar has its number. The
chart of epochs has lines.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any, NamedTuple

from page import DOCS, rate

# Ours, what others do, and what can't be done better.
OURS, RIVAL, LIMIT = "#1b7837", "#9970ab", "#bbbbbb"

PAGES = {
    "even-steps.md": DOCS / "even-steps.md",
    "performance.md": DOCS / "performance.md",
    "slow-storage.md": DOCS / "slow-storage.md",
    "README.md": DOCS.parent / "README.md",
}


class Bar(NamedTuple):
    name: str
    value: float
    colour: str
    each: tuple[float, ...] = ()  # a line, with a value for each epoch


@dataclasses.dataclass(frozen=True)
class Panel:
    """Bars that share a title, a unit and an axis."""

    title: str
    unit: str
    bars: list[Bar]
    digits: int = 0

    def shown(self, bar: Bar) -> str:
        return " ".join(f"{value:,.{self.digits}f}" for value in bar.each or [bar.value])

    def sentence(self) -> str:
        figures = ", ".join(f"{bar.name} {self.shown(bar)}" for bar in self.bars)
        return f"{self.title}, {self.unit}: {figures}"


def told(benchmark: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCS / f"benchmark_{benchmark}.json").read_text())
    return found


def bars(
    value: Callable[[str], float], ours: dict[str, str], rivals: dict[str, str], limits: dict[str, str] = {}
) -> list[Bar]:
    """Bars with the names of ways on the chart, by their names in the results."""
    colours = ((ours, OURS), (rivals, RIVAL), (limits, LIMIT))
    return [Bar(name, value(way), colour) for names, colour in colours for way, name in names.items()]


def alternatives() -> list[Panel]:
    (profile,) = (result for result in told("storage")["results"] if result["profile"] == "resnet50")
    ways = {way["name"]: way for way in profile["ways"] if way["source"] == "files"}
    rivals = ("hvd.alltoall", "hvd.broadcast + slice", "tf.data service", "all read + shard")
    shown = bars(
        lambda way: 100 * median(each["busy"] for each in ways[way]["rounds"]),
        ours={"horovod_data, per_rank": "horovod_data"},
        rivals={name: name for name in rivals},
    )
    return [Panel("ResNet-50 from files, 4 ranks", "% of the time in which an accelerator computes", shown)]


def limits() -> list[Panel]:
    results = {result["name"]: result for result in told("pipeline")["results"]}
    shown = bars(
        lambda way: results[way]["elements_per_step"] * rate(results[way]),
        ours={"horovod_data, per_rank": "horovod_data,\nto 4 ranks"},
        rivals={"all read + shard": "all read + shard,\nto 4 ranks"},
        limits={"pipeline alone": "the same pipeline\nalone, 1 process"},
    )
    return [Panel("Batches of 1 MiB from files", "batches per second", shown)]


def scaling() -> list[Panel]:
    panels = []
    for hosts in (2, 4):
        results = {result["name"]: result for result in told("scaling")["over_hosts"] if result["hosts"] == hosts}
        shown = bars(
            lambda way: results[way]["batches"] / median(results[way]["seconds"]),
            ours={
                "a reader on each host": "horovod_data,\na reader on each host",
                "one reader": "horovod_data,\none reader",
            },
            rivals={"hvd.broadcast + slice": "hvd.broadcast\n+ slice"},
        )
        panels.append(Panel(f"{hosts} hosts of 2 ranks, lines of 1 Gbit/s", "batches of 1 MiB per second", shown))
    return panels


def proof() -> list[Panel]:
    panels = []
    for result in told("certificate")["results"]:
        if (result["bytes"], result["milliseconds"]) == (1 << 20, 10):
            shown = bars(lambda way: 1e3 * median(result[way]), {"on": "verify=True"}, {}, {"off": "without"})
            title = f"{result['ranks']} ranks, 1 MiB each, a step that computes for 10 ms"
            panels.append(Panel(title, "ms per step", shown, digits=2))
    return panels


def memory() -> list[Panel]:
    data = told("memory")
    shown = []
    for result in data["results"]:
        if (result["rank"], result["pipeline"]) == (0, "batch"):
            name = f"prefetch={result['prefetch']}" if result["prefetch"] else "default"
            shown.append(Bar(name, (result["private"] + result["shared"]) / 2**20, OURS))
            shown.append(Bar("the formula", (result["widest"] + 3) * data["step"] / 2**20, LIMIT))
    return [Panel("The reader, 4 ranks, steps of 16 MiB", "MiB", shown)]


def even() -> list[Panel]:
    panels = []
    for sigma in (1.0, 0.6):
        results = {r["name"]: r for r in told("even")["results"] if (r["sigma"], r["ranks"]) == (sigma, 8)}
        shown = bars(
            lambda way: 100 / results[way]["faster"],
            ours={way: way.replace(", ", ",\n") for way in ("even_batches, max_cost", "even_batches, batch_size")},
            rivals={way: way for way in ("buckets by length", "plain batches")},
        )
        title = f"8 ranks, log-normal lengths, sigma {sigma:g}"
        panels.append(Panel(title, "% of the epoch with plain batches", shown))
    return panels


def torch_ranks() -> list[Panel]:
    data = told("torch_ranks")
    shown = bars(
        lambda way: median(each["memory"] for each in data["pipeline"] if each["way"] == way) / 2**30,
        ours={"ours": "loader(),\na dedicated reader"},
        rivals={"every_rank": "every rank runs\nthe pipeline", "broadcast": "rank 0 runs it,\nbroadcast + slice"},
    )
    buffer = data["buffer"] * data["side"] ** 2 * 3 / 2**30
    title = f"{data['ranks']} ranks of PyTorch, a shuffle buffer of {buffer:.1f} GiB"
    return [Panel(title, "GiB of memory of the whole job", shown, digits=1)]


def cache() -> list[Panel]:
    data = told("epoch_cache")
    ways = {way["name"]: way["seconds"] for way in data["results"]}
    shown = {
        'cache="job"': ('horovod_data, cache="job"', OURS),
        "cache() on the reader": ("Dataset.cache() on the reader", RIVAL),
        "cache() on each rank": ("a cache on each rank", RIVAL),
        "no cache": ("no cache", RIVAL),
        "ready-made batches": ("ready-made batches", LIMIT),
    }
    lines = [Bar(name, sum(ways[way]), colour, tuple(ways[way])) for way, (name, colour) in shown.items()]
    size = f"{data['rows'] * data['row_bytes'] / 1e6:,.0f} MB from a storage of {data['storage']:g} MB/s"
    title = f"{data['ranks']} ranks on {data['hosts']} hosts, {data['epochs']} epochs of {size}"
    return [Panel(title, "seconds of each epoch", lines, digits=1)]


# By chart: the panels, and the pages that show the chart.
CHARTS: dict[str, tuple[Callable[[], list[Panel]], tuple[str, ...]]] = {
    "alternatives": (alternatives, ("README.md", "performance.md")),
    "limits": (limits, ("performance.md",)),
    "scaling": (scaling, ("performance.md",)),
    "proof": (proof, ("performance.md",)),
    "memory": (memory, ("performance.md",)),
    "torch_ranks": (torch_ranks, ("performance.md",)),
    "even": (even, ("even-steps.md",)),
    "cache": (cache, ("README.md", "slow-storage.md")),
}


def line(name: str, page: str) -> str:
    """The Markdown that shows the chart. Its alternative text has all numbers."""
    make, _ = CHARTS[name]
    text = "; ".join(panel.sentence() for panel in make()).replace("\n", " ")
    folder = "docs/" if page == "README.md" else ""
    return f"![{text}]({folder}chart_{name}.png)"


def draw_lines(axis: Any, panel: Panel) -> None:
    epochs = range(1, 1 + len(panel.bars[0].each))
    for bar, marker in zip(panel.bars, "os^DX"):
        axis.plot(epochs, bar.each, color=bar.colour, marker=marker, label=f"{bar.name}: {bar.value:,.0f} s in all")
    axis.set_ylim(0)
    axis.set_xticks(epochs)
    axis.set_xlabel("epoch", fontsize=12)
    axis.set_ylabel(panel.unit, fontsize=12)
    axis.set_title(panel.title, fontsize=13, loc="left")
    axis.legend(fontsize=10, loc="center right", bbox_to_anchor=(1, 0.36))
    axis.spines[["top", "right"]].set_visible(False)


def draw(name: str, panels: list[Panel], pyplot: Any) -> None:
    height = 0.9 * len(panels) + 0.42 * sum(len(panel.bars) for panel in panels) + 0.1
    height += 0.9 * any(panel.bars[0].each for panel in panels)
    ratios = [len(panel.bars) + 0.6 for panel in panels]
    figure, axes = pyplot.subplots(
        len(panels), 1, squeeze=False, figsize=(8, height), gridspec_kw={"height_ratios": ratios}
    )
    most = max(bar.value for panel in panels for bar in panel.bars)
    for axis, panel in zip((row[0] for row in axes), panels):
        if panel.bars[0].each:
            draw_lines(axis, panel)
            continue
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


def main(names: Iterable[str]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    for name in names or CHARTS:
        make, pages = CHARTS[name]
        draw(name, make(), pyplot)
        marked = re.compile(f"(<!-- chart {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        for page in pages:
            shown = line(name, page)
            text = PAGES[page].read_text()
            PAGES[page].write_text(marked.sub(lambda marks: f"{marks[1]}\n{shown}\n{marks[2]}", text))


if __name__ == "__main__":
    main(sys.argv[1:])
