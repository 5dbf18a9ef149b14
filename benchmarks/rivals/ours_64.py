# SPDX-License-Identifier: Apache-2.0
import horovod_data as hvdata

WINDOW = 64
LARGEST = 1 << 20  # bytes of a rank's batch; with larger batches the window alone would take gigabytes
NAME, KIND, MOVES = f"horovod_data, per_rank, prefetch={WINDOW}", "ours", True
CUTS = False
ABOUT = f'`distribute_dataset(..., batch="per_rank", prefetch={WINDOW})`, up to 1 MiB'


def ahead(batch):
    return WINDOW


def steps(job, batch):
    yield from hvdata.distribute_dataset(batch.own, batch="per_rank", prefetch=WINDOW)
