# SPDX-License-Identifier: Apache-2.0
"""The cost of the certificate: the time of a training step with verify=True, and without.

    python benchmarks/certificate.py                 # 2 and 4 ranks; about two minutes
    python benchmarks/certificate.py --docs          # and publish it in docs/

Writes certificate.json, .md and .png to --out. Status 1: something failed.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import launch
import machine
from page import COLOURS, prose, size_name, table, write

CASES = [(1 << 20, 10.0), (4 << 10, 10.0), (1 << 20, 0.0), (4 << 10, 0.0)]  # bytes per rank, milliseconds of a step


def ratio(result: dict[str, Any]) -> float:
    """The median of the rounds' ratios.

    Ratios are needed because the machine's own pace drifts by more than the cost.
    """
    return float(statistics.median(on / off for on, off in zip(result["on"], result["off"])))


def main() -> int:
    parser = launch.options(__doc__, seconds=1.0)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    arguments = launch.parsed(parser, ranks=[2])
    told: dict[str, Any] = {"machine": machine.describe(), "rounds": arguments.rounds}
    results: list[dict[str, Any]] = []
    for ranks in arguments.ranks:
        for milliseconds in (10.0, 0.0):
            steps = max(5, round(arguments.seconds / ((milliseconds or 0.5) / 1e3)))
            results += launch.run(
                "certificate",
                ranks,
                arguments,
                {
                    "bytes": [size for size, step in CASES if step == milliseconds],
                    "milliseconds": milliseconds,
                    "steps": steps,
                },
            )
    told["results"] = results

    def named(result: dict[str, Any]) -> str:
        step = f"a step of {result['milliseconds']:g} ms" if result["milliseconds"] else "no step"
        return f"{result['ranks']} ranks, {size_name(result['bytes'])}, {step}"

    rows = [
        [named(r), *[f"{statistics.median(r[way]) * 1e3:.3f}" for way in ("off", "on")], f"{ratio(r) - 1:+.1%}"]
        for r in results
    ]
    text = [
        prose(f"""
        The table has milliseconds from batch to batch of the slowest rank, with `verify=True` and without, in turns. These are medians
        of {arguments.rounds} rounds, and the median of the rounds' ratios. Elements are ready-made, with `batch="per_rank"`. Rank 0
        reads. The step of a rank is a sleep. With *no step* ranks take batches as fast as they come. No training does that, but it
        shows the bare cost of a share."""),
        *table(["", "off", "on", "on beside off"], rows),
    ]

    def draw(pyplot: Any) -> Any:
        figure, axis = pyplot.subplots(figsize=(8, 3))
        real = [r for r in results if r["milliseconds"]][::-1]
        axis.barh([named(r) for r in real], [100 * (ratio(r) - 1) for r in real], color=COLOURS["ours"])
        axis.axvline(3, color=COLOURS["rival"])
        axis.set_xlabel("per cent of a step that the certificate adds; the line: 3 %")
        return figure

    summary = table(["", "off, ms", "on, ms", "on beside off"], rows)
    write("certificate", told, text, summary, arguments, draw)
    return 0 if len(results) == 4 * len(arguments.ranks) else 1


if __name__ == "__main__":
    sys.exit(main())
