# SPDX-License-Identifier: Apache-2.0
"""The training profiles of MLPerf Storage: how busy delivery keeps four simulated H100 accelerators, and how busy its
rivals do.

    python benchmarks/storage.py                     # CosmoFlow, ResNet-50, 3D U-Net; about 10 minutes
    python benchmarks/storage.py --docs              # and publish it in docs/

It follows two repositories:

- github.com/mlcommons/storage, commit caa90c9: the profiles (see profiles.py), and accelerator utilisation (section 4
  of Submission_guidelines.md)
- github.com/argonne-lcf/dlio_benchmark, commit e1919d7, the program that it runs: the loop and the formula (see
  ranks/storage.py), the files and the way to read them (see ranks/profile_data.py)

The page says what differs. One MPI job measures one profile after the other, and all ways take turns. Needs Horovod,
mpi4py, and 1.2 GB in the folder for temporary files (TMPDIR). The files are deleted at the end, and are read from the
page cache. Writes storage.json, .md and .png to --out. Status 1: something failed.
"""

from __future__ import annotations

import sys
from typing import Any

import launch
import machine
import page
import storage_report as report
from profiles import PROFILES


def main() -> int:
    parser = launch.options(__doc__, seconds=1.0, limit=1200)
    parser.set_defaults(rounds=4)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--profiles", nargs="+", choices=list(PROFILES), default=list(PROFILES))
    parser.add_argument("--least", type=int, default=2, help="timed steps of a round, where fewer fit in its seconds")
    parser.add_argument(
        "--shrink", type=int, default=1, help="samples and computation so many times smaller: no measurement"
    )
    arguments = launch.parsed(parser, ranks=2, least=1, shrink=512)
    told: dict[str, Any] = {"machine": machine.describe(), "rounds": arguments.rounds, "seconds": arguments.seconds}
    told["results"] = launch.run(
        "storage",
        arguments.ranks,
        arguments,
        {"profiles": arguments.profiles, "shrink": arguments.shrink, "least": arguments.least},
    )
    page.write("storage", told, report.text(told), report.summary(told), arguments, report.drawn(told))
    measured = [way for result in told["results"] for way in result["ways"]]
    complete = len(told["results"]) == len(arguments.profiles) and all(way["rounds"] for way in measured)
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
