# SPDX-License-Identifier: Apache-2.0
"""Tables and plots of contestants that took turns: for delivery.py, and in parts for other benchmarks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

from page import COLOURS, defined, prose, size_name, table

Result = dict[str, Any]
Cell = tuple[int, float, int]  # ranks, cycle time, bytes

OURS = "horovod_data, per_rank"
GLOBAL = "horovod_data, global"
LOCAL = "limit: local datasets"
ALONE = "limit: reader alone"
AHEAD = "16 or 64"
APART_AHEAD = {True: 64, False: 16}  # the steps that AHEAD means, by whether a rank's batch has up to SMALL bytes
SMALL = 64 << 10
# of the default's window: the most bytes of whole steps, the fewest and the most steps
BOUND, LEAST, MOST = 64 << 20, 2, 64
FIXED = "horovod_data, per_rank, prefetch={}"
WINDOWS = (2, 16, 64)
IN_STEP = "limit: local datasets, {} steps apart"


def rates(result: Result) -> list[float]:
    """Steps per second of each round."""
    return [result["steps"] / seconds for seconds in result["seconds"]]


def rate(result: Result) -> float:
    return float(statistics.median(rates(result)))


def gigabytes(result: Result) -> float:
    """GB per second that all ranks together received."""
    return float(rate(result) * result["ranks"] * result["bytes"] / 1e9)


def cpu_per_gigabyte(result: Result) -> float:
    """Processor seconds of all ranks for each GB that all ranks received."""
    moved: float = result["cpu_steps"] * result["ranks"] * result["bytes"] / 1e9
    return float(statistics.median(result["cpu"])) / moved


def switches(result: Result) -> float:
    """Context switches of all ranks together, per step."""
    return float(statistics.median(result["switches"]) / result["cpu_steps"])


def widest(ranks: int, count: int) -> int:
    """The most steps that the default may have on their way, for batches of `count` bytes."""
    return max(LEAST, min(MOST, BOUND // (ranks * count)))


def in_step(group: list[Result], ours: Result) -> tuple[Result | None, int]:
    """The limit to compare with this way, and its distance between ranks in steps.

    There are several limits whose ranks wait for each other. The chosen one has the distance nearest to this way's.
    """
    ahead = APART_AHEAD[ours["bytes"] <= SMALL]
    window = ahead if ours["name"].endswith(AHEAD) else widest(ours["ranks"], ours["bytes"])
    if abs(math.log(window / ahead)) <= abs(math.log(window / LEAST)):
        return named(group, IN_STEP.format(AHEAD)), ahead
    return named(group, IN_STEP.format(LEAST)), LEAST


def best_fixed(group: list[Result]) -> Result | None:
    """The best of the fixed windows."""
    fixed = [r for window in WINDOWS if (r := named(group, FIXED.format(window)))]
    return max(fixed, key=rate, default=None)


def named(group: list[Result], name: str) -> Result | None:
    return next((r for r in group if r["name"] == name and not r["error"]), None)


def best_rival(group: list[Result]) -> Result | None:
    rivals = [r for r in group if r["kind"] == "rival" and r["moves"] and not r["error"]]
    return max(rivals, key=rate, default=None)


def cells(results: list[Result]) -> dict[Cell, list[Result]]:
    """The results of each cell, in the order of measuring."""
    groups: dict[Cell, list[Result]] = {}
    for r in results:
        groups.setdefault((r["ranks"], r["cycle_time"], r["bytes"]), []).append(r)
    return groups


def title(cell: Cell) -> str:
    ranks, cycle, count = cell
    return f"{ranks} ranks, {size_name(count)} per rank, {cycle_name(cycle)}"


def cycle_name(cycle: float) -> str:
    return f"Horovod's cycle time {cycle:g} ms" if cycle > 0 else "without Horovod"


def text(told: dict[str, Any], about: dict[str, str]) -> list[str]:
    lines = [
        prose(f"""
            Figures are medians of {told["rounds"]} rounds, in brackets the slowest and the fastest round. A round takes about
            {told["seconds"]:.2g} s, and has at least 12 times as many steps as may be sent ahead. All ways run in turns in one job.
            Horovod's cycle time (`HOROVOD_CYCLE_TIME`) is 1 ms by default. With 0.1 ms its operations are faster here, but its threads
            take processor time from every way."""),
        *defined(
            {
                "A step": """every rank has its batch (float32, ready-made on the reader), in eager iteration""",
                "GB/s": "received by all ranks together",
                "Switches": "context switches of all ranks together, per step",
            }
        ),
        "The ways:",
        "",
        *[f"- **{name}**: {what}" for name, what in about.items()],
    ]
    for cell, group in cells(told["results"]).items():
        ours = named(group, OURS)
        rows = []
        for r in group:
            if r["error"]:
                rows.append([r["name"], f"failed: {' '.join(r['error'].split())[:120]}", "", "", ""])
                continue
            rows.append(
                [
                    r["name"],
                    f"{rate(r):,.0f} ({min(rates(r)):,.0f}-{max(rates(r)):,.0f})",
                    f"{gigabytes(r):.3g}" if r["moves"] else "",
                    f"{rate(ours) / rate(r):.2f}x" if ours and r["name"] != OURS else "",
                    f"{switches(r):.2f}",
                ]
            )
        lines += ["", f"**{title(cell)}**", *table(["", "steps/s", "GB/s", "per_rank / this way", "switches"], rows)]
        best = best_rival(group)
        if ours and best:
            lines.append(
                f"The best rival is {best['name']}; horovod_data makes {rate(ours) / rate(best):.2f} times its steps."
            )
    return lines


def summary(told: dict[str, Any]) -> list[str]:
    rows = []
    for (ranks, cycle, count), group in cells(told["results"]).items():
        best = best_rival(group)
        fixed_names = [FIXED.format(window) for window in WINDOWS]  # what the text about the default compares with
        for ours in (r for r in group if r["kind"] == "ours" and r["name"] not in fixed_names and not r["error"]):
            apart, steps = in_step(group, ours)
            together = f"{_times(ours, apart)} ({steps})" if apart else ""
            fixed = best_fixed(group) if ours["name"] == OURS else None
            of_switches = f"{switches(ours):.2f}, {switches(apart):.2f}" if apart else f"{switches(ours):.2f}"
            rows.append(
                [
                    f"{ranks} ranks, {size_name(count)}, " + (f"{cycle:g} ms" if cycle > 0 else "without Horovod"),
                    ours["name"].removeprefix("horovod_data, "),
                    f"{rate(ours):,.0f}",
                    f"{gigabytes(ours):.3g}",
                    _times(ours, named(group, LOCAL)),
                    together,
                    _times(ours, named(group, ALONE)),
                    _times(ours, fixed),
                    of_switches,
                    _times(ours, best),
                    best["name"] if best else "",
                ]
            )
    return table(
        [
            "ranks, each rank's batch, Horovod's cycle time",
            "way",
            "steps/s",
            "GB/s",
            "relative to local datasets",
            "relative to local datasets, k steps apart (k)",
            "relative to the reader alone",
            "relative to the best fixed window",
            "switches a step: this way, local datasets k steps apart",
            "relative to the best rival",
            "best rival",
        ],
        rows,
    )


def _times(ours: Result | None, other: Result | None) -> str:
    return f"{rate(ours) / rate(other):.2f}" if ours and other else ""


def drawn(told: dict[str, Any]) -> Callable[[Any], Any]:
    """Draws the steps per second, a panel for each cell."""
    groups = cells(told["results"])

    def draw(pyplot: Any) -> Any:
        sizes = list(dict.fromkeys(count for _, _, count in groups))
        settings = list(dict.fromkeys((ranks, cycle) for ranks, cycle, _ in groups))
        figure, axes = pyplot.subplots(
            len(settings), len(sizes), squeeze=False, figsize=(4.6 * len(sizes), 3.2 * len(settings))
        )
        for cell, group in groups.items():
            ranks, cycle, count = cell
            column = sizes.index(count)
            axis = axes[settings.index((ranks, cycle))][column]
            bars(axis, [r for r in group if not r["error"]])
            axis.set_title(
                f"{ranks} ranks, {size_name(count)}, " + (f"cycle {cycle:g} ms" if cycle > 0 else "no Horovod")
            )
            axis.tick_params(labelleft=column == 0)
        return figure

    return draw


def bars(axis: Any, group: list[Result]) -> None:
    group = group[::-1]  # because barh begins at the bottom
    middle = [rate(r) for r in group]
    spread = [[m - min(rates(r)) for m, r in zip(middle, group)], [max(rates(r)) - m for m, r in zip(middle, group)]]
    axis.barh(
        [r["name"] for r in group], middle, xerr=spread, color=[COLOURS[r["kind"]] for r in group], ecolor="#555555"
    )
    axis.set_xscale("log")
    axis.set_xlabel("steps/s")
