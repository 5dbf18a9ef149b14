# SPDX-License-Identifier: Apache-2.0
"""`--minutes`: after so many no further test begins; those are skipped, and say so. Which file comes first is a matter of the
commit, so that with every commit others are left out."""

from __future__ import annotations

import subprocess
import time

import pytest

BEGAN = pytest.StashKey[float]()


def add_options(parser: pytest.Parser) -> None:
    parser.addoption(
        "--minutes",
        type=float,
        default=None,
        help="begin no test later than this, and with another file at each commit",
    )


def first_file(config: pytest.Config, files: int) -> int:
    """The number of the file to begin with."""
    if config.getoption("minutes") is None or files == 0:
        return 0
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=config.rootpath, capture_output=True, text=True
        ).stdout.strip()
        return int(commit, 16) % files
    except (OSError, ValueError):  # there is no git here, or this is none of its checkouts
        return 0


def is_over(config: pytest.Config) -> bool:
    minutes = config.getoption("minutes")
    return minutes is not None and time.monotonic() - config.stash.setdefault(BEGAN, time.monotonic()) >= 60 * minutes


def skipped(item: pytest.Item) -> list[pytest.TestReport]:
    where, line, _ = item.location
    why = (where, (line or 0) + 1, f"Skipped: not begun within --minutes={item.config.getoption('minutes'):g}")
    now = time.time()
    return [
        pytest.TestReport(
            item.nodeid, item.location, dict.fromkeys(item.keywords, 1), outcome, longrepr, when, [], 0.0, now, now
        )
        for when, outcome, longrepr in (("setup", "skipped", why), ("teardown", "passed", None))
    ]
