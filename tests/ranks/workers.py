# SPDX-License-Identifier: Apache-2.0
"""With `-n 2` (pytest-xdist) two workers share the tests. On two cores this takes two thirds of the time.

All tests of a job run on one worker. Tests that share a resource of the machine, such as simulated hosts, run on one
worker, too.
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
