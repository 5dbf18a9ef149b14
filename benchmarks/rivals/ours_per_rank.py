# SPDX-License-Identifier: Apache-2.0
import horovod_data as hvdata
from rivals.ours_ahead import most_ahead

NAME, KIND, MOVES = "horovod_data, per_rank", "ours", True
CUTS = False
ABOUT = '`distribute_dataset(..., batch="per_rank")`, default settings'


def ahead(batch):
    return most_ahead(batch)


def steps(job, batch):
    yield from hvdata.distribute_dataset(batch.own, batch="per_rank")
