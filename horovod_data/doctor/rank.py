# SPDX-License-Identifier: Apache-2.0
"""A rank of the doctor's job. It delivers with both values of `batch`, checks the rows, and measures each lane.

    python -m horovod_data.doctor.rank PAYLOAD SECONDS [FINDINGS]

FINDINGS are given only if the doctor is itself a rank of a job. Then this process takes the doctor's place, and the
job's readers read. In the self-test rank 0 reads. Rank 0, which always trains, sends the results of all ranks. Ranks
are those of MPI_COMM_WORLD. This module sets the variables that the job needs, because a launcher may not pass on the
doctor's environment.
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
from . import children, inside

SMALL, LARGE = 4 << 10, 4 << 20  # bytes of a batch: to measure steps per second, and bytes per second
_WARM_UP = 3  # elements that are not counted
_STEPS, _ROWS = 5, 7
# Variables for files and log lines of the training whose place the doctor takes.
_OF_TRAINING = [f"HOROVOD_DATA_{name}" for name in ("TIMELINE", "CERTIFICATE", "AUDIT", "REPORT", "PROGRESS")]
_MOST_LANES = 16
# A wait ends before the doctor's time limit.
_SETTINGS = {"HOROVOD_DATA_TIMEOUT": "60", "HOROVOD_DATA_STALL_SECONDS": "10"}


def main() -> None:
    """Runs this rank. After a failure, sends the failure and exits with status 1."""
    payload, seconds, *findings = sys.argv[1:]
    if not findings:
        for name in [name for name in os.environ if name.startswith("HOROVOD_DATA_")]:
            del os.environ[name]  # the self-test's job has its own settings; the user's settings are checked elsewhere
    for name in _OF_TRAINING:
        os.environ.pop(name, None)
    os.environ.update({**_SETTINGS, "HOROVOD_DATA_PAYLOAD": payload})
    if findings:  # otherwise a launcher ends the ranks
        children.end_with_parent()
    try:
        everything(float(seconds), json.loads(findings[0]) if findings else [])
    except Exception as failure:
        children.say(failed=f"{type(failure).__name__}: {failure}", host=socket.gethostname())
        if findings:
            os._exit(1)  # not by MPI_Abort, which would end the doctors before they have reported
        raise SystemExit(1) from failure


def everything(seconds: float, findings: list[dict[str, Any]]) -> None:
    """Does the work of a rank. Collective over the job. `seconds`: for all measurements together."""
    if findings:
        inside.look_at_core()
    began = time.monotonic()
    init()
    job = state.current("the doctor")
    rank, size, layout = job.comm_rank, len(job.hosts), job.layout
    mine: dict[str, Any] = {
        "rank": rank,
        "findings": findings,
        "trains": roles.is_trainer(),
        "host": socket.gethostname(),
        "cores_present": os.cpu_count() or 1,
        "init_seconds": time.monotonic() - began,
        "yields": yields(os.environ),
    }
    if rank == 0:
        children.say(started=True, size=size)
    mine["wrong"] = check_delivery(rank, layout)
    lanes, index = lanes_of(layout), layout.reader_index
    mine["lanes"] = [measure_lane(rank, index[reader], reader, to, seconds / 2 / len(lanes)) for reader, to in lanes]
    sizes = {"small": SMALL, "large": LARGE}
    mine["steps_per_second"] = {name: measure_together(name, sizes[name], seconds / 4) for name in sizes}
    everybody = _of_all_ranks(mine, "the doctor's report")
    if rank == 0:
        children.say(ranks=[everybody[other] for other in range(size)])
    shutdown.shutdown()
    children.say(done=True)


def yields(environ: Mapping[str, str]) -> bool:
    """Says whether a rank of Open MPI that waits gives its core to others. mpirun sets the second variable by itself."""
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
            yield np.full(LARGE // 64, i), str(i)

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
    _, said = bindings.agree(json.dumps(mine).encode(), what)
    return {rank: json.loads(one.payload) for one in said for rank in one.ranks}


def lanes_of(layout: Layout) -> list[tuple[int, int]]:
    """The lanes to measure, as (reader, rank): all, or some that are evenly spread."""
    lanes = [(reader, to) for reader in layout.readers for to in layout.group_trainers(reader) if to != reader]
    count = min(len(lanes), _MOST_LANES)
    return [lanes[i * len(lanes) // count] for i in range(count)]


def measure_lane(rank: int, number: int, reader: int, to: int, seconds: float) -> dict[str, Any]:
    """Measures batches from one reader to one rank, without other batches. Collective. `number`: of the reader.

    The rank returns its bytes per second. The reader returns the bytes that it sent each way.
    """

    def elements(context: Any) -> Any:
        return _ready_made(LARGE) if context.input_pipeline_id == number else ()

    shares = loader(elements, batch="per_rank", schedule="dynamic", name=f"doctor lane {reader} {to}")
    before = stats()
    rate = _bytes_per_second(shares, seconds) if rank == to else None
    del shares
    bindings.agree(b"", f"the doctor's lane from {reader} to {to}")
    ways = {way: stats()[f"payload_bytes_{way}"] - before[f"payload_bytes_{way}"] for way in ("arena", "message")}
    return {"reader": reader, "to": to, "rate": rate, **ways}


def measure_together(name: str, length: int, seconds: float) -> float:
    """Measures steps per second of all ranks, each with a batch of `length` bytes. 0 if none arrive. Collective."""
    shares = loader(lambda: _ready_made(length), batch="per_rank", name=f"doctor {name}")
    rate = _bytes_per_second(shares, seconds) if roles.is_trainer() else 0.0
    del shares
    bindings.agree(b"", f"the doctor's {name} batches")
    return rate / length


def _iterated(shares: Loader) -> Any:
    """The shares to iterate over. A dedicated reader gets none."""
    return shares if roles.is_trainer() else ()


def _ready_made(length: int) -> Iterator[Any]:
    return itertools.repeat(np.zeros(length, np.uint8))


def _bytes_per_second(shares: Loader, seconds: float) -> float:
    iterator = iter(shares)
    for _ in range(_WARM_UP):
        next(iterator)
    began, received = time.monotonic(), 0
    while (took := time.monotonic() - began) < seconds:
        received += next(iterator).nbytes
    return received / took


if __name__ == "__main__":
    main()
