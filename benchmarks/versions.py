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
import shutil
import statistics
import sys
from collections import defaultdict
from pathlib import Path

import launch
import machine
from page import size_name, table

SIZES = (4 << 10, 1 << 20)
WINDOWS = (None, 2, 64)
RANKS = (1, 4)
STEPS = 20000  # for 4 KiB; ranks/steps.py chooses the number for larger elements


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
    for _ in range(arguments.rounds):
        for name, env in arguments.versions:
            for result in launch.run(
                "iteration", 2, arguments, {"bytes": arguments.bytes, "burst": arguments.burst, "rounds": 10}, env=env
            ):
                if result["name"] == "horovod_data":
                    what = f"{size_name(result['bytes'])}, 2 ranks, an element that is there"
                    figures[what][name].append(statistics.median(result["microseconds"]))
        for ranks in arguments.ranks:
            for name, env in arguments.versions:
                settings = [[size, window] for size in arguments.bytes for window in arguments.windows]
                for result in launch.run(
                    "steps", ranks, arguments, {"settings": settings, "steps": arguments.steps}, env=env
                ):
                    window = "default window" if result["prefetch"] is None else f"prefetch={result['prefetch']}"
                    what = f"{size_name(result['bytes'])}, {ranks} rank{'s'[: ranks - 1]}, {window}"
                    figures[f"{what}: a step"][name].append(result["microseconds"])
                    figures[f"{what}: processor time of a rank"][name].append(result["processor"])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", type=version, metavar="NAME=FOLDER[,VARIABLE=VALUE...]")
    parser.add_argument("--quick", action="store_true", help="whether it runs")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--bytes", type=int, nargs="+", default=SIZES, help="per rank's batch")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument(
        "--windows",
        type=lambda text: None if text == "default" else int(text),
        nargs="+",
        default=WINDOWS,
        help="default, or numbers of steps",
    )
    parser.add_argument("--limit", type=float, default=120, help="seconds for each job")
    parser.add_argument("--mpirun", default=shutil.which("mpirun") or "mpirun")
    arguments = parser.parse_args()
    arguments.seconds = 0.0
    arguments.burst = 64 if max(arguments.bytes) <= 1 << 20 else 8  # as many as the window's memory holds
    if arguments.quick:
        arguments.rounds, arguments.steps, arguments.ranks, arguments.burst = 1, 50, RANKS[:1], 4
    names = [name for name, _ in arguments.versions]
    load = machine.load()
    figures = measure(arguments)
    rows, complete = [], bool(figures)
    for what, by_name in figures.items():
        first = by_name[names[0]]
        row = [what]
        for name in names:
            values = by_name[name]
            complete &= len(values) == arguments.rounds == len(first)
            row.append(f"{statistics.median(values):.2f}" if values else "failed")
            if name != names[0] and complete:
                row.append(f"{statistics.median(b - a for a, b in zip(first, values)):+.2f}")
        rows.append(row)
    header = ["microseconds", names[0], *[column for name in names[1:] for column in (name, f"{name} - {names[0]}")]]
    told = {**machine.describe(), "load_before": load, "load_after": machine.load()}
    print(f"{machine.sentence(told)} Medians of {arguments.rounds} rounds.\n")
    print("\n".join(table(header, rows)))
    sys.exit(0 if complete else 1)


if __name__ == "__main__":
    main()
