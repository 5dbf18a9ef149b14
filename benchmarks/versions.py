# SPDX-License-Identifier: Apache-2.0
"""Compares checkouts, or settings of one checkout, in turn: what does a change cost?

    python benchmarks/versions.py before=../before after=.
    python benchmarks/versions.py off=. on=.,HOROVOD_DATA_TIMELINE=/tmp/trace.json
    python benchmarks/versions.py before=../before after=. --bytes 1048576 16777216 --ranks 2 4
    python benchmarks/versions.py --quick one=. other=.      # tries if it runs

Each argument is NAME=FOLDER[,VARIABLE=VALUE...], with the library built in FOLDER/horovod_data. Every round runs all
versions, one after the other. Prints the medians of the rounds in microseconds. Also prints the median of the rounds'
differences from the first version.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

import launch
import machine
from page import size_name, table


def version(text: str) -> tuple[str, dict[str, str]]:
    name, _, rest = text.partition("=")
    folder, *variables = rest.split(",")
    package = Path(folder).resolve() / "horovod_data"
    if not package.joinpath("_core.so").exists():
        raise argparse.ArgumentTypeError(f"{text!r}: no library in {package}: build it there, or name another folder")
    return name, {"PYTHONPATH": str(package.parent), **dict(variable.split("=", 1) for variable in variables)}


def measure(arguments: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """The figures of each round, by what was measured and by version."""
    figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    windows = [None if window == "default" else int(window) for window in arguments.windows]
    of_steps = {"settings": [[size, window] for size in arguments.bytes for window in windows]}
    for _ in range(arguments.rounds):
        for name, env in arguments.versions:
            for result in launch.run("iteration", 2, arguments, {"rounds": 10}, env=env):
                if result["name"] == "horovod_data":
                    what = f"{size_name(result['bytes'])}, 2 ranks, an element that is there"
                    figures[what][name].append(median(result["microseconds"]))
        for ranks in arguments.ranks:
            for name, env in arguments.versions:
                for result in launch.run("steps", ranks, arguments, of_steps, env=env):
                    window = "default window" if result["prefetch"] is None else f"prefetch={result['prefetch']}"
                    what = f"{size_name(result['bytes'])}, {ranks} rank{'s'[: ranks - 1]}, {window}"
                    figures[f"{what}: a step"][name].append(result["microseconds"])
                    figures[f"{what}: processor time of a rank"][name].append(result["processor"])
    return figures


def main() -> int:
    # bytes: per rank's batch. steps: for 4 KiB; ranks/steps.py chooses the number for larger elements. burst: 0 is as
    # many as the window's memory holds.
    settings = {
        "bytes": [4 << 10, 1 << 20],
        "ranks": [1, 4],
        "windows": ["default", "2", "64"],
        "steps": 20000,
        "burst": 0,
    }
    quick = {"steps": 50, "ranks": [1], "burst": 4}
    parser = launch.options(__doc__, quick, **{"rounds": 9, "limit": 120.0, **settings})
    parser.add_argument("versions", nargs="+", type=version, metavar="NAME=FOLDER[,VARIABLE=VALUE...]")
    arguments = parser.parse_args()
    arguments.burst = arguments.burst or (64 if max(arguments.bytes) <= 1 << 20 else 8)
    names = [name for name, _ in arguments.versions]
    figures = measure(arguments)

    def value(name: str):
        return lambda what: f"{median(figures[what][name]):.2f}" if figures[what][name] else "failed"

    def difference(name: str):
        return lambda what: (
            f"{median(b - a for a, b in zip(figures[what][names[0]], figures[what][name])):+.2f}"
            if not launch.FAILED
            else ""
        )

    columns = {"microseconds": str, names[0]: value(names[0])}
    for name in names[1:]:
        columns |= {name: value(name), f"{name} - {names[0]}": difference(name)}
    told = {**arguments.machine, "load_after": machine.load()}
    print(f"{machine.sentence(told)} Medians of {arguments.rounds} rounds.\n")
    print("\n".join(table(figures, columns)))
    return 1 if launch.FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
