# SPDX-License-Identifier: Apache-2.0
"""Steps of a given time with a batch, verified and not verified, in turns.

Settings: bytes (a list), milliseconds (of a step; 0: none), steps (of a round and way). The step is a sleep, because a
step on a GPU leaves the processor free.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import horovod_data as hvdata
from ranks.setting import Batch
from ranks.start import finish, in_turns, start


def main() -> None:
    job, given = start()
    results = []
    nap = given["milliseconds"] / 1e3

    def step(elements: Iterator[Any]) -> None:
        next(elements)
        if nap:
            time.sleep(nap)

    for size in given["bytes"]:
        off, on = (
            iter(hvdata.distribute_dataset(Batch(size).own, batch="per_rank", verify=verify))
            for verify in (False, True)
        )
        ways = {"off": lambda: step(off), "on": lambda: step(on)}
        rounds = in_turns(job, given["rounds"], given["steps"], ways)
        del off, on
        results.append({"ranks": job.size, "bytes": size, "milliseconds": given["milliseconds"], **rounds})
    finish(job, given, results)


if __name__ == "__main__":
    main()
