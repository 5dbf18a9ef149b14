# SPDX-License-Identifier: Apache-2.0
"""Measures what it costs that ranks wait for each other, without delivery."""

from ranks.in_step import InStep

APART = 2
NAME, KIND, MOVES = f"limit: local datasets, {APART} steps apart", "limit", False
CUTS = False
ABOUT = (
    f"as the first limit, but no rank gets more than {APART} steps ahead of another, as with `prefetch={APART}`: one that is "
    "sleeps (on a futex in memory that all share) until it is woken"
)


def steps_apart(job, batch, apart):
    ranks = InStep(job.comm)
    for step, element in enumerate(batch.own()):
        ranks.wait(step - apart)
        ranks.reach(step)
        yield element


def steps(job, batch):
    yield from steps_apart(job, batch, APART)
