# SPDX-License-Identifier: Apache-2.0
NAME, KIND, MOVES = "limit: reader alone", "limit", False
CUTS = False
ABOUT = "one process takes the N elements of each step from the pipeline, and the other ranks sleep"


def steps(job, batch):
    return _steps(job, batch) if job.reads else None


def _steps(job, batch):
    elements = iter(batch.own())
    while True:
        for _ in range(job.size - 1):
            next(elements)
        yield next(elements)
