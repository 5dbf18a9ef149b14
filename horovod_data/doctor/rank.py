# SPDX-License-Identifier: Apache-2.0
"""A rank of the doctor's job. It delivers verified rows with both values of `batch`, and measures steps per second.

    python -m horovod_data.doctor.rank PAYLOAD SECONDS

In the self-test rank 0 reads. If the doctor is itself a rank of a job, it calls join() and measure(), and the job's
readers read. Rank 0, which always trains, gets the results of all ranks. Ranks are those of MPI_COMM_WORLD. This module
sets the variables that the job needs, because a launcher may not pass on the doctor's environment.
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
import time
from typing import Any, Iterator

import numpy as np

from ..ending import shutdown
from ..job import roles, state
from ..loading.loader import loader
from ..native import bindings
from ..observe.stats import stats
from ..start import init
from . import children

_SIZES = {"small": 4 << 10, "large": 4 << 20}  # bytes of a batch
_WARM_UP = 3  # elements that are not counted
_ROWS = 1001  # of each reader
# The doctor may run in place of a training, in its environment. These variables are for files and log lines of the
# training, so the doctor removes them.
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

    Collective over the job. Raises the error of a delivery that goes wrong.

    Args:
      init_seconds: the result of join().
      seconds: for all measurements together.
    """
    job = state.current("the doctor")
    rank, layout = job.comm_rank, job.layout
    for batch in ("per_rank", "global"):
        _deliver(batch, len(layout.trainers))
    mine: dict[str, Any] = {
        "rank": rank,
        "trains": roles.is_trainer(),
        "serves": [to for to in layout.group_trainers(rank) if to != rank] if rank in layout.readers else [],
        "host": socket.gethostname(),
        "init_seconds": init_seconds,
        "steps_per_second": {name: _steps_per_second(name, size, seconds / 2) for name, size in _SIZES.items()},
    }
    mine |= {way: stats()[f"payload_bytes_{way}"] for way in ("arena", "message")}
    everybody = _of_all_ranks(mine, "the doctor's report")
    shutdown.shutdown()
    return [everybody[other] for other in sorted(everybody)] if rank == 0 else []


def _deliver(batch: str, trainers: int) -> None:
    """Delivers an epoch. A verified channel raises an error unless each rank gets its own rows. Collective."""

    def rows(context: Any) -> Iterator[Any]:
        """Elements that only this reader yields. The last step lacks some of its rows or elements."""
        first = context.input_pipeline_id * _ROWS
        return iter(np.split(np.arange(first, first + _ROWS), range(2 * trainers, _ROWS, 2 * trainers)))

    shares = loader(rows, batch=batch, remainder="partial", verify=True, name=f"doctor {batch}")
    for _ in shares if roles.is_trainer() else ():
        pass


def _of_all_ranks(mine: Any, what: str) -> dict[int, Any]:
    """The values of all ranks, by rank. Collective. JSON must be able to represent a value."""
    _, answers = bindings.agree(mine, what)
    return {rank: value for ranks, value in answers for rank in ranks}


def _steps_per_second(name: str, length: int, seconds: float) -> float:
    """Measures steps of all ranks, each with a batch of `length` bytes. A dedicated reader returns 0. Collective."""
    shares = loader(lambda: itertools.repeat(np.zeros(length, np.uint8)), batch="per_rank", name=f"doctor {name}")
    rate = _rate(iter(shares), seconds) if roles.is_trainer() else 0.0
    del shares
    bindings.agree(None, f"the doctor's {name} batches")
    return rate


def _rate(shares: Iterator[Any], seconds: float) -> float:
    for _ in range(_WARM_UP):
        next(shares)
    began, steps = time.monotonic(), 0
    while (took := time.monotonic() - began) < seconds:
        next(shares)
        steps += 1
    return steps / took


if __name__ == "__main__":
    main()
