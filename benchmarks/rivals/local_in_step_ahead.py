# SPDX-License-Identifier: Apache-2.0
from rivals.local_in_step import steps_apart
from rivals.ours import ahead

NAME, KIND, MOVES = "limit: local datasets, 16 or 64 steps apart", "limit", False
CUTS = False
ABOUT = "the same with 16 steps, or with 64 steps if a rank's batch has up to 64 KiB"


def steps(job, batch):
    yield from steps_apart(job, batch, ahead(batch))
