# SPDX-License-Identifier: Apache-2.0
"""Measures what it costs that ranks wait for each other, without delivery."""

from ranks.in_step import InStep

APART = 2
NAME, KIND, MOVES = f"limit: local datasets, {APART} steps apart", "limit", False
CUTS = False
ABOUT = (
    f"local datasets, but no rank may be more than {APART} steps ahead of another, as with `prefetch={APART}`. A rank that is "
    "further ahead sleeps on a futex in shared memory"
)


def steps_apart(job, batch, apart):
    ranks = InStep(job.comm)
    for step, element in enumerate(batch.own()):
        ranks.wait(step - apart)
        ranks.reach(step)
        yield element


def steps(job, batch):
    yield from steps_apart(job, batch, APART)
