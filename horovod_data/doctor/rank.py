# SPDX-License-Identifier: Apache-2.0
"""One rank of the self-test's job: starts, delivers in both ways, checks what arrives, measures each lane.

    python -m horovod_data.doctor.rank PAYLOAD SECONDS [FINDINGS]

FINDINGS come from a doctor whose place in a job this process takes. Rank 0, which reads, says what all ranks have seen.
What the job needs in the environment is set here, on every rank: a launcher need not hand the doctor's environment on.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import Any, Callable, Optional

from .. import core, loader, roles
from . import children, inside, mpi_variables

SMALL, LARGE = 4 << 10, 4 << 20  # bytes of a batch: for steps per second, and for bytes per second
_WARM_UP = 3  # elements that are not counted
_STEPS, _ROWS = 5, 7
_MOST_LANES = 16
# Open MPI then says on stderr which transport it takes to which rank; UCX, to which kinds of places.
_VERBOSE = {"OMPI_MCA_btl_base_verbose": "1", "OMPI_MCA_pml_base_verbose": "10", "UCX_LOG_LEVEL": "info",
            "UCX_LOG_FILE": "stderr"}
# A wait ends before the doctor's patience; libraries are quiet, and leave the devices alone.
_SETTINGS = {"HOROVOD_DATA_TIMEOUT": "60", "HOROVOD_DATA_STALL_SECONDS": "10", "TF_CPP_MIN_LOG_LEVEL": "3",
             "CUDA_VISIBLE_DEVICES": ""}


def main() -> None:
    """The whole of it. Status 1: something failed, and has been said."""
    began = time.monotonic()
    payload, seconds, *findings = sys.argv[1:]
    for name in [name for name in os.environ if name.startswith("HOROVOD_DATA_")]:
        del os.environ[name]  # the job is ours, so are its settings; the user's are looked at elsewhere
    os.environ.update({**_VERBOSE, **_SETTINGS, "HOROVOD_DATA_PAYLOAD": payload})
    if findings:
        children.end_with_parent()
    try:
        everything(float(seconds), json.loads(findings[0]) if findings else [], began)
    except Exception as failure:
        children.say(failed=f"{type(failure).__name__}: {failure}", host=socket.gethostname(), pid=os.getpid())
        raise SystemExit(1) from failure


def everything(seconds: float, findings: list[dict[str, Any]], began: float) -> None:
    """Collective over the job. `seconds`: for measuring; `findings`: for rank 0."""
    if findings:
        inside.look_at_core()
    loader.load()
    began_init = time.monotonic()
    roles.init(readers=0)
    rank, size = roles.rank() or 0, roles.size() or 1
    mine: dict[str, Any] = {
        "rank": rank, "findings": findings, "host": socket.gethostname(), "pid": os.getpid(),
        "cores": len(os.sched_getaffinity(0)), "cores_present": os.cpu_count() or 1,
        "import_seconds": began_init - began, "init_seconds": time.monotonic() - began_init,
        "thread_level": core.mpi_query().thread_level.name, "horovod_threads": _horovod_threads(),
        "variables": mpi_variables.read(("btl_vader_single_copy_mechanism", "mpi_yield_when_idle")),
    }
    if rank == 0:
        children.say(started=True, size=size)
    mine["wrong"] = check_delivery(rank, size)
    targets = lanes_of(size)
    mine["lanes"] = [measure_lane(rank, to, seconds / 2 / len(targets)) for to in targets]
    mine["together"] = {name: measure_together(name, length, seconds / 4)
                        for name, length in (("small", SMALL), ("large", LARGE))}
    everybody: list[dict[str, Any]] = [{}] * size
    for one in core.agree(json.dumps(mine).encode(), "the doctor's report"):
        for other in one.ranks:
            everybody[other] = json.loads(one.payload)
    if rank == 0:
        children.say(ranks=everybody)
    roles.shutdown()
    children.say(done=True)


def check_delivery(rank: int, size: int) -> str:
    """What arrived wrong with batch="per_rank" and "global"; empty if nothing did. Collective."""
    import tensorflow as tf

    def elements() -> Any:
        numbers = tf.data.Dataset.range(_STEPS * size + 1)  # one more than there are steps for
        return numbers.map(lambda i: (tf.fill([LARGE // 64], i), tf.strings.as_string(i)))

    got = [(int(x[0]), bool(tf.reduce_all(x == x[0])), y.numpy().decode())
           for x, y in _distribute(elements, batch="per_rank", name="doctor per_rank")]
    wanted = [(i, True, str(i)) for i in range(rank, _STEPS * size, size)]
    wrong = "" if got == wanted else f'batch="per_rank": rank {rank} got {got}, not {wanted}'

    rows = _STEPS * _ROWS * size + 3
    dataset = _distribute(lambda: tf.data.Dataset.range(rows).batch(_ROWS * size), batch="global", remainder="partial",
                          name="doctor global")
    shares = core.agree(json.dumps([share.numpy().tolist() for share in dataset]).encode(), "the doctor's rows")
    by_rank: list[Any] = [[]] * size
    for one in shares:
        for other in one.ranks:
            by_rank[other] = json.loads(one.payload)
    order = [row for step in zip(*by_rank) for share in step for row in share]
    if order != list(range(rows)):
        wrong += f' batch="global": the ranks together got {order[:50]}..., not {rows} rows in order'
    return wrong.strip()


def lanes_of(size: int) -> list[int]:
    """The ranks whose lanes are measured: all but rank 0; of many, some that lie as far from each other as can be."""
    others = size - 1
    return [1 + i * others // min(others, _MOST_LANES) for i in range(min(others, _MOST_LANES))]


def measure_lane(rank: int, to: int, seconds: float) -> dict[str, Any]:
    """Batches to one rank alone. That one returns its bytes per second, the reader what it sent in which way."""
    dataset = _distribute(lambda: _ready_made(LARGE), batch="per_rank", schedule="dynamic", name=f"doctor lane {to}")
    before = core.stats()
    rate = _bytes_per_second(dataset, seconds) if rank == to else None
    del dataset
    core.agree(b"", f"the doctor's lane {to}")
    ways = {way: core.stats()[f"payload_bytes_{way}"] - before[f"payload_bytes_{way}"] for way in ("arena", "message")}
    return {"to": to, "rate": rate, **ways}


def measure_together(name: str, length: int, seconds: float) -> dict[str, float]:
    """Steps per second of all ranks, each with a batch of `length` bytes. Collective."""
    dataset = _distribute(lambda: _ready_made(length), batch="per_rank", name=f"doctor {name}")
    rate = _bytes_per_second(dataset, seconds)
    del dataset
    core.agree(b"", f"the doctor's {name} batches")
    return {"steps_per_second": rate / length}


def _distribute(make: Callable[[], Any], **arguments: Any) -> Any:
    from ..dataset import distribute_dataset  # here, because it imports TensorFlow, which may fail

    return distribute_dataset(make, **arguments)


def _ready_made(length: int) -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensors(tf.zeros([length // 4], tf.float32)).repeat()


def _bytes_per_second(dataset: Any, seconds: float) -> float:
    iterator = iter(dataset)
    for _ in range(_WARM_UP):
        next(iterator)
    began, received = time.monotonic(), 0
    while (took := time.monotonic() - began) < seconds:
        received += int(next(iterator).shape[0]) * 4
    return received / took


def _horovod_threads() -> Optional[bool]:
    """Whether Horovod says that MPI may be used from several threads; None: there is no Horovod."""
    horovod: Any = sys.modules.get("horovod.tensorflow")
    return bool(horovod.mpi_threads_supported()) if horovod is not None and horovod.is_initialized() else None


if __name__ == "__main__":
    main()
