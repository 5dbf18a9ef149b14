# SPDX-License-Identifier: Apache-2.0
"""Ways to feed N ranks from one pipeline: ours, and others.

The steps of a way take ranks.setting.Job and a batch (ranks.setting.Batch, or one of ranks/profile_data.py). They are
an endless generator of this rank's tensors, one per step. None: this rank takes no part. A generator that is closed
frees what it holds.

This module imports neither MPI nor TensorFlow, because the launcher reads it, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ranks.setting import READER

import horovod_data as hvdata

SMALL = 64 << 10
APART = 2


class Way(NamedTuple):
    name: str  # begins with "hvd." if it is an operation of Horovod
    # "ours". "rival": it delivers, or does the work that delivery saves. "limit": it can't feed a training loop from
    # one pipeline, and shows the limit for such ways.
    kind: str
    about: str  # one line on what it does
    steps: Callable[[Any, Any], Any]
    moves: bool = True  # the batches go from the reader to the ranks
    cuts: bool = False  # batches are cut from Batch.whole(), so they must hold the number of their rank
    ahead: Callable[[Any], int] = lambda batch: 2  # the most steps on their way
    largest: float = float("inf")  # the largest bytes of a rank's batch with which it takes part


ALL: dict[str, Way] = {}


def way(name: str, kind: str, about: str, **more: Any) -> Callable[[Any], Way]:
    """Makes a Way of its steps, and puts it into ALL under the name of the function."""

    def made(steps: Any) -> Way:
        return ALL.setdefault(steps.__name__, Way(name, kind, about, steps, **more))

    return made


# ---- Ours.


def ours(
    key: str, batch: str, prefetch: str, also: str, window: Callable[[Any], int] | None = None, **more: Any
) -> Way:
    """`prefetch`: its text for tables, and "" for default settings. `window`: the steps for a batch."""

    def steps(job, given):
        source = (lambda: given.whole(job.size)) if batch == "global" else given.own
        how = {"prefetch": window(given)} if window else {}
        yield from hvdata.distribute_dataset(source, batch=batch, **how)

    def widest(given):
        """Of the default. So many steps are excluded from a round, because buffered steps must not count."""
        return max(2, min(64, (64 << 20) // given.bytes))

    shown = f", prefetch={prefetch}" if prefetch else ""
    argument = f'batch="{batch}"{shown}'.partition(" or")[0]
    name, about = f"horovod_data, {batch}{shown}", f"`distribute_dataset(..., {argument})`, {also}"
    ALL[key] = Way(name, "ours", about, steps, cuts=batch == "global", ahead=window or widest, **more)
    return ALL[key]


def ahead(batch):
    return 64 if batch.bytes <= SMALL else 16


ours_per_rank = ours("ours_per_rank", "per_rank", "", "default settings")
ours("ours_2", "per_rank", "2", "for all sizes", lambda _: 2)
ours("ours_16", "per_rank", "16", "for all sizes", lambda _: 16)
# With larger batches the window alone would take gigabytes.
ours("ours_64", "per_rank", "64", "up to 1 MiB", lambda _: 64, largest=1 << 20)
ours("ours_ahead", "per_rank", "16 or 64", "or 64 if a rank's batch has up to 64 KiB", ahead)
ours("ours_global", "global", "", "default settings")


# ---- Others that deliver.


@way(
    "hvd.broadcast + slice", "rival", "the reader broadcasts the global batch, and every rank keeps its rows", cuts=True
)
def broadcast(job, batch):
    import horovod.tensorflow as hvd

    source = iter(batch.whole(job.size)) if job.reads else None
    room = batch.zeros(job.size * batch.rows)
    first = job.rank * batch.rows
    while True:
        whole = next(source) if source else room
        yield hvd.broadcast(whole, root_rank=READER, name=f"broadcast.{batch.bytes}")[first : first + batch.rows]


@way(
    "hvd.alltoall",
    "rival",
    "with `splits`: the reader sends each rank its rows, and the other ranks send nothing",
    cuts=True,
)
def alltoall(job, batch):
    import horovod.tensorflow as hvd
    import tensorflow as tf

    source = iter(batch.whole(job.size)) if job.reads else None
    nothing = batch.zeros(0)
    splits = tf.fill([job.size], batch.rows if job.reads else 0)
    while True:
        mine, _ = hvd.alltoall(next(source) if source else nothing, splits, name=f"alltoall.{batch.bytes}")
        yield mine


@way(
    "tf.data service",
    "rival",
    "a dispatcher and a worker in the reader's process, one job shared by all ranks (dynamic sharding, gRPC)",
)
def service(job, batch):
    import tensorflow as tf

    service = tf.data.experimental.service
    address = None
    if job.reads:
        dispatcher = service.DispatchServer()
        address = dispatcher.target.split("://")[1]
        worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
    address = job.comm.bcast(address, root=READER)
    dataset = batch.own().apply(
        service.distribute(
            processing_mode=service.ShardingPolicy.DYNAMIC,
            service=f"grpc://{address}",
            job_name="delivery",
            data_transfer_protocol="grpc",
        )
    )
    try:
        yield from dataset
    finally:
        if job.reads:
            worker._stop()
            dispatcher._stop()


def scattered(job, batch, again: bool):
    """The shares of mpi4py's Scatter. `again`: every step uses the same buffers, and there is no pipeline."""
    import numpy as np

    comm = job.comm.Dup()
    source = iter(batch.whole(job.size)) if job.reads else None
    whole = np.asarray(memoryview(next(source))).copy() if again and source else None
    mine = np.empty([batch.rows, batch.columns], np.float32)
    while True:
        if not again:
            whole = np.asarray(memoryview(next(source))) if source else None  # no copy
            mine = np.empty_like(mine)
        comm.Scatter(whole, mine, root=READER)
        yield mine


@way(
    "limit: raw MPI_Scatter",
    "limit",
    "mpi4py's `Scatter` between two NumPy buffers, which every step uses again. There is no pipeline, no tensor, and no "
    "TensorFlow in the loop",
    cuts=True,
)
def mpi_scatter(job, batch):
    yield from scattered(job, batch, again=True)


@way(
    "limit: MPI_Scatter from a pipeline into tensors",
    "limit",
    "raw `Scatter` with the other work of a training loop. The reader takes each global batch from its pipeline without a copy. "
    "Every rank receives into new memory, and makes a tensor of it",
    cuts=True,
)
def mpi_scatter_tensors(job, batch):
    import tensorflow as tf

    yield from map(tf.convert_to_tensor, scattered(job, batch, again=False))


@way(
    "mpi4py Scatter",
    "rival",
    "`Scatter` of the global batch in the generator of a `from_generator` on every rank",
    cuts=True,
)
def mpi4py_scatter(job, batch):
    import tensorflow as tf

    # TensorFlow would prefetch, and so call Scatter ahead. Some ranks would call it once more than others, and hang at
    # the end.
    lock_step = tf.data.Options()
    lock_step.experimental_optimization.inject_prefetch = False
    spec = tf.TensorSpec([batch.rows, batch.columns], tf.float32)
    shares = tf.data.Dataset.from_generator(lambda: scattered(job, batch, again=False), output_signature=spec)
    yield from shares.with_options(lock_step)


# ---- Ways in which nothing moves.


@way(
    "all read + shard",
    "rival",
    "every rank runs the whole pipeline and keeps every N-th element. Nothing moves. If elements are ready-made, reading "
    "them N times costs nothing",
    moves=False,
)
def shard(job, batch):
    yield from batch.own().shard(job.size, job.rank)


@way(
    "limit: local datasets",
    "limit",
    "every rank iterates over its own ready-made elements, and nothing is read or delivered",
    moves=False,
)
def local(job, batch):
    yield from batch.own()


def apart(job, batch, steps):
    from ranks.in_step import InStep

    ranks = InStep(job.comm)
    for step, element in enumerate(batch.own()):
        ranks.wait(step - steps)
        ranks.reach(step)
        yield element


@way(
    f"limit: local datasets, {APART} steps apart",
    "limit",
    f"local datasets, but no rank may be more than {APART} steps ahead of another, as with `prefetch={APART}`. A rank that is "
    "further ahead sleeps on a futex in shared memory",
    moves=False,
)
def local_in_step(job, batch):
    yield from apart(job, batch, APART)


@way(
    "limit: local datasets, 16 or 64 steps apart",
    "limit",
    "the same with 16 steps, or with 64 steps if a rank's batch has up to 64 KiB",
    moves=False,
)
def local_in_step_ahead(job, batch):
    yield from apart(job, batch, ahead(batch))


def whole_steps(job, batch):
    elements = iter(batch.own())
    while True:
        for _ in range(job.size - 1):
            next(elements)
        yield next(elements)


@way(
    "limit: reader alone",
    "limit",
    "one process takes the N elements of each step from the pipeline, and the other ranks sleep",
    moves=False,
)
def reader_alone(job, batch):
    return whole_steps(job, batch) if job.reads else None


def _own_files(job, batch):
    yield from batch.part(job.size, job.rank)


# Not in ALL, because it needs files.
own_files = Way(
    "limit: each reads its own files",
    "limit",
    "every rank reads every N-th file, and nothing is delivered. This is DLIO's own way. It needs N files, and a pipeline on every rank",
    _own_files,
    moves=False,
)
