# SPDX-License-Identifier: Apache-2.0
from rivals.local_in_step import steps_apart
from rivals.ours_ahead import AHEAD

NAME, KIND, MOVES = f"limit: local datasets, {AHEAD} steps apart", "limit", False
CUTS = False
ABOUT = f"the same, but {AHEAD} steps"


def steps(job, batch):
    yield from steps_apart(job, batch, AHEAD)
