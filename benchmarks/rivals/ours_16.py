# SPDX-License-Identifier: Apache-2.0
import horovod_data as hvdata

WINDOW = 16
NAME, KIND, MOVES = f"horovod_data, per_rank, prefetch={WINDOW}", "ours", True
CUTS = False
ABOUT = f'`distribute_dataset(..., batch="per_rank", prefetch={WINDOW})`, for all sizes'


def ahead(batch):
    return WINDOW


def steps(job, batch):
    yield from hvdata.distribute_dataset(batch.own, batch="per_rank", prefetch=WINDOW)
