# SPDX-License-Identifier: Apache-2.0
NAME, KIND, MOVES = "all read + shard", "rival", False
CUTS = False
ABOUT = (
    "every rank runs the whole pipeline and keeps every N-th element; nothing moves, and reading N times costs "
    "nothing where the elements are ready-made"
)


def steps(job, batch):
    yield from batch.own().shard(job.size, job.rank)
