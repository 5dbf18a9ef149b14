# SPDX-License-Identifier: Apache-2.0
"""`-n 2` (pytest-xdist): two workers share the tests, on two cores in two thirds of the time: much of it waits. Three take longer.
Each worker runs as a whole what shares a job, or what takes long to set up and a machine has once."""

from __future__ import annotations

import re
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

WORLD = re.compile(r"/mpi/[^\[]*\[(np=[^\]-]*)")
FOLDERS = ("cluster", "slurm")  # whose tests share hosts, and a Slurm


class Shares(LoadScopeScheduling):
    def __init__(self, config: pytest.Config, log: Any) -> None:
        config.option.loadscopereorder = False  # in our order small ones come last, so that both workers end at a time
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        if world := WORLD.search(nodeid):
            return world[1]
        file = nodeid.partition("::")[0]
        return next((folder for folder in FOLDERS if f"/{folder}/" in file), file)
