# SPDX-License-Identifier: Apache-2.0
import horovod_data as hvdata

SMALL = 64 << 10
NAME, KIND, MOVES = "horovod_data, per_rank, prefetch=16 or 64", "ours", True
CUTS = False
ABOUT = '`distribute_dataset(..., batch="per_rank", prefetch=16)`, or 64 if a rank\'s batch has up to 64 KiB'


def ahead(batch):
    return 64 if batch.bytes <= SMALL else 16


def most_ahead(batch):
    """The most steps on their way with default settings. They are excluded, because buffered steps must not count."""
    return max(2, min(64, (64 << 20) // batch.bytes))


def steps(job, batch):
    yield from hvdata.distribute_dataset(batch.own, batch="per_rank", prefetch=ahead(batch))
