# SPDX-License-Identifier: Apache-2.0
"""Ready-made batches for ranks of PyTorch or NumPy, from hvdata.loader() or another way. Each job has one way.

Settings: way, bytes of one rank's batch, ahead (the steps that the way may have on their way), directory.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import horovod_data as hvdata
from ranks.broadcasts import Broadcasts, join_torch
from ranks.setting import ROWS, Batch, Job
from ranks.start import finish, meet, start
from ranks.turns import Contestant, Steps, take_turns

try:
    import torch
    from torch.utils.data import DataLoader, Dataset, IterableDataset
    from torch.utils.data.distributed import DistributedSampler
except ImportError:  # the ways that need it are left out
    Dataset = IterableDataset = object

warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


class Endless(IterableDataset):  # type: ignore[misc]
    """One array again and again."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __iter__(self) -> Iterator[Any]:
        return itertools.repeat(self.array)


class Rows(Dataset):  # type: ignore[misc]
    """`count` rows in memory, as a dataset of torch or a source of Grain. They take the place of files, and share memory."""

    def __init__(self, batch: Batch, count: int) -> None:
        self._rows, self._count = np.ones([ROWS, batch.columns], np.float32), count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return self._rows[index % ROWS]


def arrays(batches: Any) -> Steps:
    for batch in batches:
        yield batch if isinstance(batch, np.ndarray) or not hasattr(batch, "detach") else batch.numpy()


def again(batches: Any) -> Steps:
    """Epoch after epoch."""
    while True:
        yield from arrays(batches)


def rows_of_an_epoch(job: Job, batch: Batch) -> int:
    """For ways that have rows, and not ready-made batches: 64 MiB for each rank, and at most 1024 steps."""
    return min(1024, max(1, (64 << 20) // batch.bytes)) * ROWS * job.size


def ready(batch: Batch) -> Any:
    return np.ones([ROWS, batch.columns], np.float32)


def generator(batch: Batch) -> Any:
    """The Python source as users of TensorFlow write it."""
    import tensorflow as tf

    spec = tf.TensorSpec([ROWS, batch.columns], tf.float32)
    return tf.data.Dataset.from_generator(lambda: itertools.repeat(ready(batch)), output_signature=spec)


def broadcast(job: Job, batch: Batch) -> Steps:
    send, first = Broadcasts(job.comm), job.rank * ROWS
    whole = np.ones([job.size * ROWS, batch.columns], np.float32)
    while True:
        yield send(whole if job.reads else np.empty_like(whole))[first : first + ROWS]


def accelerate(job: Job, batch: Batch) -> Steps:
    from accelerate import Accelerator
    from accelerate.data_loader import prepare_data_loader

    Accelerator(cpu=True)
    source = DataLoader(Endless(torch.ones([ROWS, batch.columns])), batch_size=1, collate_fn=lambda items: items[0])
    place = {"num_processes": job.size, "process_index": job.rank, "device": torch.device("cpu")}
    return arrays(prepare_data_loader(source, **place, put_on_device=True, dispatch_batches=True))


def sampler(job: Job, batch: Batch) -> Steps:
    rows = Rows(batch, rows_of_an_epoch(job, batch))
    return again(DataLoader(rows, batch_size=ROWS, sampler=DistributedSampler(rows, job.size, job.rank)))


def grain(job: Job, batch: Batch) -> Steps:
    import grain

    rows = grain.MapDataset.source(Rows(batch, rows_of_an_epoch(job, batch))).shuffle(seed=1)
    return arrays(rows[job.rank :: job.size].repeat().batch(ROWS, drop_remainder=True).to_iter_dataset())


def streaming(job: Job, batch: Batch, folder: Path) -> Steps:
    from streaming import MDSWriter, StreamingDataset

    folder = folder / f"mds-{batch.bytes}"
    if job.reads:
        with MDSWriter(out=str(folder), columns={"x": "ndarray"}) as out:
            for _ in range(rows_of_an_epoch(job, batch)):
                out.write({"x": np.ones(batch.columns, np.float32)})
    meet(job.comm)
    dataset = StreamingDataset(local=str(folder), batch_size=ROWS, shuffle=True, num_canonical_nodes=1)
    rows = DataLoader(dataset, batch_size=ROWS)
    while True:
        for batch_of_all in rows:
            yield batch_of_all["x"].numpy()


def loader(source: Any, to: str = "numpy") -> Steps:
    return arrays(hvdata.loader(source, batch="per_rank", to=to))


def dataset(source: Any) -> Steps:
    yield from hvdata.distribute_dataset(source, batch="per_rank")


def steps_of(way: str, job: Job, batch: Batch, folder: Path) -> Steps:
    """The endless steps of a way of torch_ranks.LOADING."""
    make: dict[str, Callable[[], Steps]] = {
        "loader, numpy, tf.data": lambda: loader(batch.own),
        "loader, torch, tf.data": lambda: loader(batch.own, "torch"),
        "loader, numpy, Python": lambda: loader(Endless(ready(batch))),
        "distribute_dataset, tf.data": lambda: dataset(batch.own),
        "distribute_dataset, from_generator": lambda: dataset(lambda: generator(batch)),
        "broadcast + slice": lambda: broadcast(job, batch),
        "Accelerate, dispatch_batches": lambda: accelerate(job, batch),
        "DataLoader + DistributedSampler": lambda: sampler(job, batch),
        "Grain": lambda: grain(job, batch),
        "Streaming": lambda: streaming(job, batch, folder),
    }
    return make[way]()


def main() -> None:
    job, given = start()
    if join_torch(job.comm):
        torch.set_num_threads(1)
    steps = steps_of(given["way"], job, Batch(given["bytes"]), Path(given["directory"]))
    contestant = Contestant(job, steps, ahead=given["ahead"])
    take_turns(job, [contestant], given["rounds_of_job"], given["seconds"])
    finish(job, given, [{"name": given["way"], **contestant.told()}])


if __name__ == "__main__":
    main()
