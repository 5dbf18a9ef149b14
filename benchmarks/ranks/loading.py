# SPDX-License-Identifier: Apache-2.0
"""Ready-made batches for ranks of PyTorch or NumPy, from hvdata.loader() and from other ways. Contestants take turns.

Settings: bytes of one rank's batch (a list), directory.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
import warnings
from collections.abc import Iterator
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


def contestants(job: Job, batch: Batch, folder: Path) -> dict[str, tuple[str, bool, Any]]:
    """By name: the kind, whether batches go from one process to all ranks, and the steps, or the package that is missing."""

    def needing(package: str, make: Any) -> Any:
        return make() if importlib.util.find_spec(package) else package

    def loader(source: Any, to: str = "numpy") -> Steps:
        return arrays(hvdata.loader(source, batch="per_rank", to=to))

    python = Endless(ready(batch))
    return {
        "loader, numpy, tf.data": ("ours", True, loader(batch.own)),
        "loader, torch, tf.data": ("ours", True, needing("torch", lambda: loader(batch.own, "torch"))),
        "loader, numpy, Python": ("ours", True, loader(python)),
        "distribute_dataset, tf.data": ("limit", True, iter(dataset(batch.own))),
        "distribute_dataset, from_generator": ("limit", True, iter(dataset(lambda: generator(batch)))),
        "broadcast + slice": ("rival", True, broadcast(job, batch)),
        "Accelerate, dispatch_batches": ("rival", True, needing("accelerate", lambda: accelerate(job, batch))),
        "DataLoader + DistributedSampler": ("rival", False, needing("torch", lambda: sampler(job, batch))),
        "Grain": ("rival", False, needing("grain", lambda: grain(job, batch))),
        "Streaming": ("rival", False, needing("streaming", lambda: streaming(job, batch, folder))),
    }


def dataset(source: Any) -> Steps:
    yield from hvdata.distribute_dataset(source, batch="per_rank")


def main() -> None:
    job, given = start()
    if join_torch(job.comm):
        torch.set_num_threads(1)
    results = []
    for size in given["bytes"]:
        found = contestants(job, Batch(size), Path(given["directory"]))
        ahead = max(2, min(64, (64 << 20) // (job.size * size)))  # of the default window
        runs = {
            name: Contestant(job, steps, ahead=ahead if kind != "rival" else 2)
            for name, (kind, _, steps) in found.items()
            if not isinstance(steps, str)
        }
        take_turns(job, list(runs.values()), given["rounds"], given["seconds"])
        for name, (kind, moves, steps) in found.items():
            if isinstance(steps, str):
                told = {"seconds": [], "error": "", "about": f"{steps} is not installed"}
            else:
                told = {**runs[name].told(), "about": runs[name].error}
            results.append({"name": name, "kind": kind, "moves": moves, "ranks": job.size, "bytes": size, **told})
        if job.reads:
            print(f"[bench] loading, {size} bytes: done", file=sys.stderr, flush=True)
    finish(job, given, results)


if __name__ == "__main__":
    main()
