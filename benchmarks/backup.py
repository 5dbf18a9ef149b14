# SPDX-License-Identifier: Apache-2.0
"""What backups cost: the part of the training's time in which callbacks.BackupAndRestore saves.

    python benchmarks/backup.py                      # 1, 2 and 4 ranks; about 4 minutes
    python benchmarks/backup.py --docs               # and publish it in docs/

Writes backup.json, .md and .png to --out. Status 1: something failed.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import launch
import machine
from page import COLOURS, prose, table, write

MILLISECONDS = 10.0  # of a step
MIB = (2, 64)  # of the model and its optimizer
AIM = 1  # per cent


def share(result: dict[str, Any]) -> float:
    """The part of a training's time: a save, divided by the steps from one save to the next with the save."""
    save = statistics.median(result["saves"])
    return save / (save + result["often"] * statistics.median(result["off"]))


def main() -> int:
    parser = launch.options(__doc__)
    parser.set_defaults(rounds=3)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--often", type=int, default=200, help="steps from one save to the next")
    arguments = launch.parsed(parser, often=5)
    told: dict[str, Any] = {"machine": machine.describe(), "rounds": arguments.rounds}
    settings = {"mib": MIB, "milliseconds": MILLISECONDS, "often": arguments.often, "saves": 2}
    results: list[dict[str, Any]] = []
    for ranks in arguments.ranks:
        results += launch.run("backup", ranks, arguments, settings)
    told["results"] = results

    def named(result: dict[str, Any]) -> str:
        return f"{result['ranks']} rank{'s' * (result['ranks'] > 1)}, a state of {result['mib']} MiB"

    rows = [
        [
            named(r),
            f"{statistics.median(r['saves']) * 1e3:.1f}",
            f"{max(r['saves']) * 1e3:.1f}",
            f"{share(r):.2%}",
            *[f"{statistics.median(r[way]) * 1e3:.3f}" for way in ("off", "on")],
        ]
        for r in results
    ]
    header = ["", "a save, ms", "the longest, ms", "part of the time", "a step without, ms", "a step with, ms"]
    text = [
        prose(f"""
        `fit` with steps of {MILLISECONDS:g} ms and `BackupAndRestore(save_freq={arguments.often})`, and `fit` without, in turns;
        medians of {arguments.rounds} rounds with two saves each. The step is a sleep. The state is that of the model and its
        optimizer, in tensors of 1 MiB, on the disk of this machine. A save is the time for which the slowest rank stands still: it
        takes its part into memory, and the next update copies the variables that are still being written. A thread writes
        beside the training. *Part of the time*: the time of a save over the time from one save to the next."""),
        *table(header, rows),
    ]

    def draw(pyplot: Any) -> Any:
        figure, axis = pyplot.subplots(figsize=(8, 3))
        axis.barh([named(r) for r in results[::-1]], [100 * share(r) for r in results[::-1]], color=COLOURS["ours"])
        axis.axvline(AIM, color=COLOURS["rival"])
        axis.set_xlabel(f"per cent of the time in which a backup is saved; the line: {AIM} %")
        return figure

    summary = table(["", "a save, ms", "part of the time"], [[row[0], row[1], row[3]] for row in rows])
    write("backup", told, text, summary, arguments, draw)
    return 0 if len(results) == len(MIB) * len(arguments.ranks) else 1


if __name__ == "__main__":
    sys.exit(main())
