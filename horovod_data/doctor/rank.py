# SPDX-License-Identifier: Apache-2.0
"""A rank of the doctor's job. It delivers with both values of `batch`, checks the rows, and measures steps per second.

    python -m horovod_data.doctor.rank PAYLOAD SECONDS

In the self-test rank 0 reads. If the doctor is itself a rank of a job, it calls join() and measure(), and the job's
readers read. Rank 0, which always trains, gets the results of all ranks. Ranks are those of MPI_COMM_WORLD. This module
sets the variables that the job needs, because a launcher may not pass on the doctor's environment.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import sys
import time
from typing import Any, Iterator, Mapping

import numpy as np

from ..ending import shutdown
from ..job import roles, state
from ..job.layout import Layout
from ..loading.loader import Loader, loader
from ..native import bindings
from ..observe.stats import stats
from ..start import init
from . import children

_SIZES = {"small": 4 << 10, "large": 4 << 20}  # bytes of a batch
_WARM_UP = 3  # elements that are not counted
_STEPS, _ROWS = 5, 7
# Variables for files and log lines of the training whose place the doctor takes.
_OF_TRAINING = [f"HOROVOD_DATA_{name}" for name in ("TIMELINE", "CERTIFICATE", "AUDIT", "REPORT", "PROGRESS")]
# A wait ends before the doctor's time limit.
_SETTINGS = {"HOROVOD_DATA_TIMEOUT": "60", "HOROVOD_DATA_STALL_SECONDS": "10"}


def main() -> None:
    """Runs a rank of the self-test. After a failure, sends the failure and exits with status 1."""
    payload, seconds = sys.argv[1:]
    for name in [name for name in os.environ if name.startswith("HOROVOD_DATA_")]:
        del os.environ[name]  # the self-test's job has its own settings; the user's settings are checked elsewhere
    os.environ["HOROVOD_DATA_PAYLOAD"] = payload
    try:
        init_seconds = join()
        if roles.rank() == 0:
            children.send(started=True)
        if ranks := measure(init_seconds, float(seconds)):
            children.send(ranks=ranks)
    except Exception as failure:
        children.send(failed=f"{type(failure).__name__}: {failure}", host=socket.gethostname())
        raise SystemExit(1) from failure


def join() -> float:
    """Calls init(). Returns how many seconds it took. Collective over the job."""
    for name in _OF_TRAINING:
        os.environ.pop(name, None)
    os.environ.update(_SETTINGS)
    began = time.monotonic()
    init()
    return time.monotonic() - began


def measure(init_seconds: float, seconds: float) -> list[dict[str, Any]]:
    """Delivers, and shuts the job down. Returns the results of all ranks on rank 0, otherwise nothing.

    Collective over the job. `init_seconds`: the result of join(). `seconds`: for all measurements together.
    """
    job = state.current("the doctor")
    rank, layout = job.comm_rank, job.layout
    mine: dict[str, Any] = {
        "rank": rank,
        "trains": roles.is_trainer(),
        "serves": [to for to in layout.group_trainers(rank) if to != rank] if rank in layout.readers else [],
        "host": socket.gethostname(),
        "cores_present": os.cpu_count() or 1,
        "init_seconds": init_seconds,
        "yields": yields(os.environ),
        "wrong": check_delivery(rank, layout),
        "steps_per_second": {name: _steps_per_second(name, size, seconds / 2) for name, size in _SIZES.items()},
    }
    mine |= {way: stats()[f"payload_bytes_{way}"] for way in ("arena", "message")}
    everybody = _of_all_ranks(mine, "the doctor's report")
    shutdown.shutdown()
    return [everybody[other] for other in sorted(everybody)] if rank == 0 else []


def yields(environ: Mapping[str, str]) -> bool:
    """Says whether a rank of Open MPI that waits gives its core to others. mpirun sets the second variable by
    itself."""
    names = ("OMPI_MCA_mpi_yield_when_idle", "OMPI_MCA_mpi_oversubscribe")
    return next((environ[name] for name in names if name in environ), "0") in ("1", "true")


def check_delivery(rank: int, layout: Layout) -> str:
    """Checks the rows that arrive with batch="per_rank" and "global". Returns what is wrong, or "". Collective."""
    served, of_all = layout.group_trainers(rank), len(layout.readers)
    readers = [layout.reader_index[other] for other in layout.readers if layout.group[other] == layout.group[rank]]

    def numbers(count: int, context: Any) -> Any:
        """`count` numbers that only this reader yields."""
        return np.arange(count) * of_all + context.input_pipeline_id

    def elements(context: Any) -> Iterator[Any]:
        # The largest number of elements that make no further step.
        left_over = len(served) - 1 if context.input_pipeline_id == readers[0] else 0
        for i in numbers(_STEPS * len(served) + left_over, context):
            yield np.full(1 << 16, i), str(i)

    shares = loader(elements, batch="per_rank", name="doctor per_rank")
    got = [(int(x[0]), bool((x == x[0]).all()), y.item()) for x, y in _iterated(shares)]
    turns = [turn * len(served) + served.index(rank) for turn in range(_STEPS)] if rank in served else []
    mine = [turn * of_all + reader for turn in turns for reader in readers]
    wanted = [(i, True, str(i)) for i in mine]
    wrong = "" if got == wanted else f'batch="per_rank": rank {rank} got {got}, not {wanted}'

    batch = _ROWS * len(served)
    rows = _STEPS * batch + 3

    def batches(context: Any) -> Any:
        return np.split(numbers(rows, context), range(batch, rows, batch))

    shares = loader(batches, batch="global", remainder="partial", name="doctor global")
    by_rank = _of_all_ranks([share.tolist() for share in _iterated(shares)], "the doctor's rows")
    order = [row for step in zip(*(by_rank[other] for other in served)) for share in step for row in share]
    begins = [(begin, reader) for begin in range(0, rows, batch) for reader in readers]
    if order != [row * of_all + reader for a, reader in begins for row in range(a, min(a + batch, rows))]:
        wrong += f' batch="global": the ranks together got {order[:50]}..., not {rows} rows of each reader in order'
    return wrong.strip()


def _of_all_ranks(mine: Any, what: str) -> dict[int, Any]:
    """The values of all ranks, by rank. Collective. JSON must be able to represent a value."""
    _, answers = bindings.agree(json.dumps(mine).encode(), what)
    return {rank: json.loads(one.payload) for one in answers for rank in one.ranks}


def _steps_per_second(name: str, length: int, seconds: float) -> float:
    """Measures steps of all ranks, each with a batch of `length` bytes. A dedicated reader returns 0. Collective."""
    shares = loader(lambda: itertools.repeat(np.zeros(length, np.uint8)), batch="per_rank", name=f"doctor {name}")
    rate = _rate(iter(shares), seconds) if roles.is_trainer() else 0.0
    del shares
    bindings.agree(b"", f"the doctor's {name} batches")
    return rate


def _rate(shares: Iterator[Any], seconds: float) -> float:
    for _ in range(_WARM_UP):
        next(shares)
    began, steps = time.monotonic(), 0
    while (took := time.monotonic() - began) < seconds:
        next(shares)
        steps += 1
    return steps / took


def _iterated(shares: Loader) -> Any:
    """The shares to iterate over. A dedicated reader gets none."""
    return shares if roles.is_trainer() else ()


if __name__ == "__main__":
    main()
