# SPDX-License-Identifier: Apache-2.0
import horovod_data as hvdata

AHEAD = 16
NAME, KIND, MOVES = f"horovod_data, per_rank, prefetch={AHEAD}", "ours", True
CUTS = False
ABOUT = f'`distribute_dataset(..., batch="per_rank", prefetch={AHEAD})`: for small batches, of which many may be under way'


def steps(job, batch):
    yield from hvdata.distribute_dataset(batch.own, batch="per_rank", prefetch=AHEAD)
