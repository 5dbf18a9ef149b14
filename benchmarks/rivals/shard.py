# SPDX-License-Identifier: Apache-2.0
NAME, KIND, MOVES = "all read + shard", "rival", False
ABOUT = "every rank runs the whole pipeline and keeps every N-th element; nothing moves, and ready-made elements cost nothing to read N times"


def steps(job, batch):
    yield from batch.own().shard(job.size, job.rank)
