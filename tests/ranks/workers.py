# SPDX-License-Identifier: Apache-2.0
"""`-n 2` (pytest-xdist): two workers share the tests, which takes two thirds of the time on two cores. Three workers take longer.

One worker runs all tests of a job, and one all tests that share something a machine has once, such as simulated hosts.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

WORLD = re.compile(r"/mpi/[^\[]*\[(np=[^\]-]*)")
FOLDERS = ("cluster", "slurm")  # the tests of a folder share simulated hosts or a Slurm


class Shares(LoadScopeScheduling):
    def __init__(self, config: pytest.Config, log: Any) -> None:
        config.option.loadscopereorder = (
            False  # in our order small scopes come last, so that both workers end at the same time
        )
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        if world := WORLD.search(nodeid):
            return world[1]
        file = nodeid.partition("::")[0]
        return next((folder for folder in FOLDERS if f"/{folder}/" in file), file)
