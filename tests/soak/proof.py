# SPDX-License-Identifier: Apache-2.0
"""The common part of the programs whose figures the docs publish.

Each program starts itself on the ranks of its jobs.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))
from ranks.launch import DEFAULTS  # noqa: E402

Job = tuple[int, list[Any], Mapping[str, str]]  # ranks, the arguments of every_rank, and further environment variables


def main(
    doc: str, file: str, every_rank: Callable[..., None], jobs: Callable[..., Iterable[Job]], **options: Any
) -> int:
    """On a rank, calls every_rank(). Otherwise runs jobs(options) one after another, up to the first bad status."""
    if "HVDATA_PROOF" in os.environ:
        every_rank(*json.loads(os.environ["HVDATA_PROOF"]))
        return 0
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in options.items():
        several = {"nargs": "+"} if isinstance(default, list) else {}
        parser.add_argument(f"--{name}", type=int, default=default, **several)
    parser.add_argument("--mpirun", default="mpirun")
    given = vars(parser.parse_args())
    mpirun = shlex.split(given.pop("mpirun"))
    for ranks, words, env in jobs(**given):
        done = subprocess.run(
            [*mpirun, "-np", str(ranks), sys.executable, file],
            env={**DEFAULTS, **os.environ, **env, "HVDATA_PROOF": json.dumps(words)},
        )
        if done.returncode:
            return done.returncode
    return 0
