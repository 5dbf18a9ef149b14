# SPDX-License-Identifier: Apache-2.0
NAME, KIND, MOVES = "all read + shard", "rival", False
CUTS = False
ABOUT = (
    "every rank runs the whole pipeline and keeps every N-th element. Nothing moves. If elements are ready-made, reading "
    "them N times costs nothing"
)


def steps(job, batch):
    yield from batch.own().shard(job.size, job.rank)
