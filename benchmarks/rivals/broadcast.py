# SPDX-License-Identifier: Apache-2.0
import horovod.tensorflow as hvd
from ranks.setting import READER

NAME, KIND, MOVES = "hvd.broadcast + slice", "rival", True
CUTS = True
ABOUT = "the reader broadcasts the global batch, and every rank keeps its rows"


def steps(job, batch):
    source = iter(batch.whole(job.size)) if job.reads else None
    room = batch.zeros(job.size * batch.rows)
    first = job.rank * batch.rows
    while True:
        whole = next(source) if source else room
        yield hvd.broadcast(whole, root_rank=READER, name=f"broadcast.{batch.bytes}")[first : first + batch.rows]
