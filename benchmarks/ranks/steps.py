# SPDX-License-Identifier: Apache-2.0
"""Steps of ready-made elements, as fast as delivery makes them. Settings: settings (a list of [bytes, prefetch or
None]), steps.

Larger elements than 4 KiB get steps for the same total of bytes, but at least 1,000. A window's memory is new to the
machine when it is first filled. With 79 steps of 1 MiB, that was half of the measured time.

Uses only what every version of horovod_data has.
"""

from __future__ import annotations

import time

import horovod_data as hvdata
from ranks.setting import Batch
from ranks.start import finish, meet, start


def main() -> None:
    job, given = start()
    results = []
    for size, prefetch in given["settings"]:
        window = {} if prefetch is None else {"prefetch": prefetch}
        elements = iter(hvdata.distribute_dataset(Batch(size).own, batch="per_rank", **window))
        steps = max(given["steps"] * 4096 // max(size, 4096), min(given["steps"], 1000))
        for _ in range(steps // 10 + 1):
            next(elements)
        meet(job.comm)
        began, spent = time.perf_counter(), time.process_time()
        for _ in range(steps):
            next(elements)
        took, spent = time.perf_counter() - began, time.process_time() - spent
        processor = job.comm.allreduce(spent)
        slowest = max(job.comm.allgather(took))
        results.append(
            {
                "bytes": size,
                "prefetch": prefetch,
                "microseconds": slowest / steps * 1e6,
                "processor": processor / steps / job.size * 1e6,
            }
        )
        del elements
    finish(job, given, results)


if __name__ == "__main__":
    main()
