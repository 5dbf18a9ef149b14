# SPDX-License-Identifier: Apache-2.0
"""The cost of the certificate: the time of a training step with verify=True, and without.

    python benchmarks/certificate.py                 # 2 and 4 ranks; about two minutes
    python benchmarks/certificate.py --docs          # and publish it in docs/

Writes certificate.json and .md to --out. Status 1: something failed.
"""

from __future__ import annotations

import sys
from statistics import median

import launch
from page import Result, prose, ratio, size_name, table, write


def name(result: Result) -> str:
    step = f"a step of {result['milliseconds']:g} ms" if result["milliseconds"] else "no step"
    return f"{result['ranks']} ranks, {size_name(result['bytes'])}, {step}"


COLUMNS = {
    "": name,
    "off": lambda r: f"{median(r['off']) * 1e3:.3f}",
    "on": lambda r: f"{median(r['on']) * 1e3:.3f}",
    "on beside off": lambda r: f"{ratio(r['on'], r['off']) - 1:+.1%}",
}


def main() -> int:
    arguments = launch.parsed(__doc__, {"ranks": [2]}, seconds=1.0, ranks=[2, 4], bytes=[1 << 20, 4 << 10])
    results: list[Result] = []
    for ranks in arguments.ranks:
        for milliseconds in (10.0, 0.0):
            steps = max(5, round(arguments.seconds / ((milliseconds or 0.5) / 1e3)))
            results += launch.run("certificate", ranks, arguments, {"milliseconds": milliseconds, "steps": steps})
    text = prose(f"""
        The table has milliseconds from batch to batch of the slowest rank, with `verify=True` and without, in turns. These
        are medians of {arguments.rounds} rounds, and the median of the rounds' ratios. Elements are ready-made, with
        `batch="per_rank"`. Rank 0 reads. The step of a rank is a sleep. With *no step* ranks take batches as fast as they
        come. No training does that, but it shows the bare cost of a share.""")
    return write("certificate", arguments, [text, *table(results, COLUMNS)], results=results)


if __name__ == "__main__":
    sys.exit(main())
