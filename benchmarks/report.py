# SPDX-License-Identifier: Apache-2.0
"""Tables and a plot of what delivery.py measured."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

OURS = "horovod_data, per_rank"


def size_name(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def rates(result: dict[str, Any]) -> list[float]:
    """Steps per second of each round."""
    return [result["steps"] / seconds for seconds in result["seconds"]]


def rate(result: dict[str, Any]) -> float:
    return statistics.median(rates(result))


def gigabytes(result: dict[str, Any]) -> float:
    """Per second, received by all ranks together."""
    return rate(result) * result["ranks"] * result["bytes"] / 1e9


def cells(results: list[dict[str, Any]]) -> list[tuple[int, int, list[dict[str, Any]]]]:
    """(ranks, bytes, what was measured there), in the order of measuring."""
    keys = dict.fromkeys((r["ranks"], r["bytes"]) for r in results)
    return [(n, b, [r for r in results if (r["ranks"], r["bytes"]) == (n, b)]) for n, b in keys]


def best_rival(group: list[dict[str, Any]]) -> dict[str, Any] | None:
    rivals = [r for r in group if r["kind"] == "rival" and r["moves"] and not r["error"]]
    return max(rivals, key=rate, default=None)


def markdown(report: dict[str, Any], about: dict[str, str]) -> str:
    machine = report["machine"]
    lines = [
        f"Measured on {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['kernel']}; "
        f"{machine['mpi']}, TensorFlow {machine['tensorflow']}, Horovod {machine['horovod']}, "
        f"mpi4py {machine['mpi4py']}, Python {machine['python']}. "
        f"Load average {machine['load_before']:.1f} before and {machine['load_after']:.1f} after.",
        "",
        f"Medians of {report['rounds']} rounds of about {report['seconds']:g} s (24 steps at least), all "
        "contestants in turn in one job; in "
        "brackets the slowest and the fastest round. A step: every rank has its batch (float32, ready-made on the "
        "reader) in hand, in eager iteration. GB/s: received by all ranks together. "
        f"HOROVOD_CYCLE_TIME={report['cycle_time']:g} ms, "
        "which favours Horovod's operations over all others here.",
        "",
    ]
    lines += [f"- **{name}**: {text}" for name, text in about.items()]
    for ranks, count, group in cells(report["results"]):
        ours = next((rate(r) for r in group if r["name"] == OURS and not r["error"]), None)
        lines += ["", f"**{ranks} ranks, {size_name(count)} per rank**", "",
                  "| | steps/s | GB/s | horovod_data is |", "|---|--:|--:|--:|"]
        for r in group:
            if r["error"]:
                lines.append(f"| {r['name']} | failed: {' '.join(r['error'].split())[:120]} | | |")
                continue
            speed = f"{rate(r):,.0f} ({min(rates(r)):,.0f}-{max(rates(r)):,.0f})"
            moved = f"{gigabytes(r):.3g}" if r["moves"] else ""
            ratio = f"{ours / rate(r):.2f}x" if ours and r["name"] != OURS else ""
            lines.append(f"| {r['name']} | {speed} | {moved} | {ratio} |")
        best = best_rival(group)
        if ours and best:
            lines += ["", f"Best way to deliver otherwise: {best['name']}; "
                          f"horovod_data does {ours / rate(best):.2f} times its steps."]
    return "\n".join(lines) + "\n"


def plot(report: dict[str, Any], path: Path) -> bool:
    """False if matplotlib is not there."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    groups = cells(report["results"])
    sizes = list(dict.fromkeys(count for _, count, _ in groups))
    ranks = list(dict.fromkeys(n for n, _, _ in groups))
    colours = {"ours": "#1b7837", "rival": "#9970ab", "limit": "#bbbbbb"}
    figure, axes = pyplot.subplots(len(ranks), len(sizes), figsize=(4.6 * len(sizes), 3.2 * len(ranks)), squeeze=False)
    for n, count, group in groups:
        axis = axes[ranks.index(n)][sizes.index(count)]
        good = [r for r in group if not r["error"]][::-1]
        middle = [rate(r) for r in good]
        spread = [[m - min(rates(r)) for m, r in zip(middle, good)],
                  [max(rates(r)) - m for m, r in zip(middle, good)]]
        axis.barh([r["name"] for r in good], middle, xerr=spread, color=[colours[r["kind"]] for r in good],
                  ecolor="#555555")
        axis.set_xscale("log")
        axis.xaxis.set_minor_formatter(ticker.NullFormatter())
        axis.set_title(f"{n} ranks, {size_name(count)} per rank")
        axis.set_xlabel("steps/s")
        axis.tick_params(labelleft=sizes.index(count) == 0)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    return True
