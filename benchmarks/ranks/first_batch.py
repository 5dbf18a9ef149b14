# SPDX-License-Identifier: Apache-2.0
"""The time from the start of a job to the first batch on all ranks, and what `import horovod_data` and init() take.

Settings: way, began (time.time() of the launcher).
"""

from __future__ import annotations

import json
import sys
import time

from mpi4py import MPI  # MPI_Init, which is not in the time of init()

ROWS = 32


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS"))


def main() -> None:
    given = json.loads(sys.argv[1])
    way = given["way"]
    if way == "tensorflow":
        import tensorflow  # noqa: F401  # as programs with TensorFlow do, before init()
    MPI.COMM_WORLD.Barrier()
    began = time.perf_counter()
    import horovod_data as hvdata

    sys.modules["horovod"] = None  # type: ignore[assignment]  # a job without Horovod
    hvdata.init()
    ready, memory = time.perf_counter() - began, resident()
    reads = not hvdata.is_trainer()
    together = MPI.COMM_WORLD.Split(int(reads))

    def dataset():
        import tensorflow as tf

        return tf.data.Dataset.range(1 << 20).map(lambda i: tf.fill([256], i)).batch(ROWS)

    def iterable():
        import numpy as np

        return [np.full([ROWS, 256], step) for step in range(64)]

    if way == "tensorflow":
        batches = hvdata.distribute_dataset(dataset, batch="per_rank")
    else:
        source = dataset if way == "tf.data" else iterable
        batches = hvdata.loader(source, batch="per_rank", to="torch" if way == "torch" else "numpy")
    hvdata.serve()
    first = next(iter(batches))
    assert first.shape == (ROWS, 256)
    took = time.time() - given["began"]
    told = together.allgather((took, ready, memory, "tensorflow" in sys.modules))
    if together.rank == 0:
        from ranks.start import tell

        took, ready, memory = (max(values) for values in list(zip(*told))[:3])
        with_tensorflow = sum(imported for *_, imported in told)
        tell(
            given, [{"way": way, "first": took, "init": ready, "resident": memory, "with_tensorflow": with_tensorflow}]
        )
    hvdata.shutdown()


if __name__ == "__main__":
    main()
