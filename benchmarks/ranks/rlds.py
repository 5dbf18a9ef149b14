# SPDX-License-Identifier: Apache-2.0
"""One epoch of an RLDS-like pipeline (examples/rlds_data.py), delivered to ranks of PyTorch. Each way has jobs of its own.

Settings: way, folder, rows (of one rank's batch), buffer, steps. Without PyTorch, ranks take NumPy arrays.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI  # first, because it requests MPI_THREAD_MULTIPLE

from ranks.broadcasts import Broadcasts
from ranks.start import meet, start, tell

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "..", "examples"))
ARRAYS = ("id", "image", "state", "action")
TO = "torch" if importlib.util.find_spec("torch") else "numpy"
if TO == "torch":
    import torch

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


def frames(given: dict[str, Any], rows: int, shard: tuple[int, int] | None = None) -> Any:
    from rlds_data import frames  # imports TensorFlow

    return frames(given["folder"], given["buffer"], shard=shard).batch(rows, drop_remainder=True)


def ours(given: dict[str, Any], comm: Any) -> Iterable[Any]:
    import horovod_data as hvdata

    loader = hvdata.loader(lambda: frames(given, given["rows"]), batch="per_rank", to=TO)
    hvdata.serve()
    return loader


def every_rank(given: dict[str, Any], comm: Any) -> Iterable[Any]:
    """Every rank runs the pipeline with its own buffer, and keeps every N-th frame of all."""
    return frames(given, given["rows"], (comm.size, comm.rank)).as_numpy_iterator()


def broadcast(given: dict[str, Any], comm: Any) -> Iterable[Any]:
    """Rank 0 runs the pipeline, and sends the arrays of all ranks to each rank. Texts stay on rank 0."""
    everybody, first = given["rows"] * comm.size, given["rows"] * comm.rank
    source = frames(given, everybody).as_numpy_iterator() if comm.rank == 0 else None
    send = Broadcasts(comm)

    def steps() -> Iterator[Any]:
        shapes = None
        for _ in range(given["steps"]):
            whole = None if source is None else next(source)
            if shapes is None:
                shapes = comm.bcast(whole and {name: (whole[name].shape, whole[name].dtype) for name in ARRAYS})
            arrays = {
                name: send(whole[name] if whole else np.empty(*shape_and_type))
                for name, shape_and_type in shapes.items()
            }
            yield {name: array[first : first + given["rows"]] for name, array in arrays.items()}

    return steps()


def alone(given: dict[str, Any], comm: Any) -> Iterable[Any]:
    """Rank 0 runs the pipeline for all ranks, and sends nothing. The other ranks have no pipeline."""
    rows = given["rows"]
    if comm.rank > 0:
        return itertools.repeat({"image": np.zeros([rows, 1, 1, 1])}, given["steps"])
    whole = frames(given, rows * comm.size).as_numpy_iterator()
    return ({"image": batch["image"][:rows]} for batch in whole)


WAYS = {"ours": ours, "every_rank": every_rank, "broadcast": broadcast, "alone": alone}


def sums(path: str, name: str, pids: list[int]) -> int:
    """The sum over processes of a field of /proc, such as `rchar: 12` or `Pss: 12 kB`."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/{path}") as file:
            total += next(int(line.split()[1]) for line in file if line.startswith(f"{name}:"))
    return total


def main() -> None:
    given = json.loads(sys.argv[1])
    comm = MPI.COMM_WORLD
    reads = False
    if given["way"] == "ours":
        start()
        import horovod_data as hvdata

        reads = not hvdata.is_trainer()
    pids = comm.allgather(os.getpid())
    together = comm.Split(int(reads), comm.rank)
    batches = WAYS[given["way"]](given, comm)  # a dedicated reader does not return
    meet(together)
    before, began, memory, step = sums("io", "rchar", pids), time.monotonic(), 0, 0
    for step, batch in enumerate(batches, 1):
        image = batch["image"]
        assert len(image) == given["rows"] and image[-1, -1, -1, -1] >= 0
        if step in (1, given["steps"] // 2):
            meet(together)
            memory = max(memory, sums("smaps_rollup", "Pss", pids) if together.rank == 0 else 0)
            meet(together)
    meet(together)
    assert step == given["steps"], f"{step} steps of {given['steps']}"
    imported = together.allgather("tensorflow" in sys.modules)
    if together.rank == 0:
        seconds = time.monotonic() - began
        read = sums("io", "rchar", pids) - before
        result = {"seconds": seconds, "read": read, "memory": memory << 10, "with_tensorflow": sum(imported)}
        tell(given, [{"way": given["way"], "to": TO, "steps": step, **result}])
    if given["way"] == "ours":
        hvdata.shutdown()


if __name__ == "__main__":
    main()
