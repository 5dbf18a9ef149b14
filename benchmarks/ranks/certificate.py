# SPDX-License-Identifier: Apache-2.0
"""Steps of a given time with a batch, verified and not verified, in turns.

Settings: bytes (a list), milliseconds (of a step; 0: none), steps (of a round and way). The step is a sleep, because a
step on a GPU leaves the processor free.
"""

from __future__ import annotations

import time

import horovod_data as hvdata
from ranks.setting import Batch
from ranks.start import meet, start, tell_so_far

WAYS = {"off": False, "on": True}


def main() -> None:
    job, given = start()
    results = []
    nap = given["milliseconds"] / 1e3
    for size in given["bytes"]:
        elements = {
            way: iter(hvdata.distribute_dataset(Batch(size).own, batch="per_rank", verify=verify))
            for way, verify in WAYS.items()
        }
        rounds: dict[str, list[float]] = {way: [] for way in WAYS}
        for turn in range(1 + given["rounds"]):  # the first warms up
            for way in list(WAYS)[:: 1 if turn % 2 else -1]:
                meet(job.comm)
                began = time.perf_counter()
                for _ in range(given["steps"]):
                    next(elements[way])
                    if nap:
                        time.sleep(nap)
                took = max(job.comm.allgather(time.perf_counter() - began))
                if turn:
                    rounds[way].append(took / given["steps"])
        elements.clear()
        results.append({"ranks": job.size, "bytes": size, "milliseconds": given["milliseconds"], **rounds})
        tell_so_far(job, given, results)
    hvdata.shutdown()


if __name__ == "__main__":
    main()
