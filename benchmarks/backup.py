# SPDX-License-Identifier: Apache-2.0
"""What backups cost: the part of the training's time in which callbacks.BackupAndRestore saves.

    python benchmarks/backup.py                      # 1, 2 and 4 ranks; about 4 minutes
    python benchmarks/backup.py --docs               # and publish it in docs/

Writes backup.json and .md to --out. Status 1: something failed.
"""

from __future__ import annotations

import sys
from statistics import median

import launch
from page import Result, prose, table, write


def share(result: Result) -> float:
    """The part of a training's time: a save, divided by the steps from one save to the next with the save."""
    save = median(result["saves"])
    return save / (save + result["often"] * median(result["off"]))


COLUMNS = {
    "": lambda r: f"{r['ranks']} rank{'s' * (r['ranks'] > 1)}, a state of {r['mib']} MiB",
    "a save, ms": lambda r: f"{median(r['saves']) * 1e3:.1f}",
    "of rank 0, ms": lambda r: f"{median(r['of rank 0']) * 1e3:.1f}",
    "without a save, ms": lambda r: f"{median(r['none']) * 1e3:.1f}",
    "the longest, ms": lambda r: f"{max(r['saves']) * 1e3:.1f}",
    "part of the time": lambda r: f"{share(r):.2%}",
    "a step without, ms": lambda r: f"{median(r['off']) * 1e3:.3f}",
    "a step with, ms": lambda r: f"{median(r['on']) * 1e3:.3f}",
}


def main() -> int:
    settings = {"often": 200, "saves": 2, "mib": [2, 64], "milliseconds": 10.0}  # see ranks/backup.py
    arguments = launch.parsed(__doc__, {"often": 5}, rounds=3, ranks=[1, 2, 4], **settings)
    results = [result for ranks in arguments.ranks for result in launch.run("backup", ranks, arguments)]
    text = prose(f"""
        `fit` with steps of {arguments.milliseconds:g} ms and `BackupAndRestore(save_freq={arguments.often})`, and `fit`
        without, in turns; medians of {arguments.rounds} rounds with {arguments.saves} saves each. The step is a sleep. The
        state is that of the model and its optimizer, in tensors of 1 MiB, on the disk of this machine. A save is the time
        for which the slowest rank stands still: it takes its part into memory, and the next update copies the variables
        that are still being written. A thread writes beside the training. *Of rank 0*: the same for the one rank that saves
        the model. The other ranks save a position. *Without a save*: the time that is measured in the same way if no set is
        saved. It is not 0 if the ranks update their variables at once on fewer cores. *Part of the time*: the time of a
        save over the time from one save to the next.""")
    return write("backup", arguments, [text, *table(results, COLUMNS)], results=results)


if __name__ == "__main__":
    sys.exit(main())
