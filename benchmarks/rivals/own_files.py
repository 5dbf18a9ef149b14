# SPDX-License-Identifier: Apache-2.0
NAME, KIND, MOVES = "limit: each reads its own files", "limit", False
CUTS = False
ABOUT = "every rank reads every N-th file, and nothing is delivered. This is DLIO's own way. It needs N files, and a pipeline on every rank"


def steps(job, batch):
    yield from batch.part(job.size, job.rank)
