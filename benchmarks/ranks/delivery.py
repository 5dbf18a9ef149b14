# SPDX-License-Identifier: Apache-2.0
"""All ways to deliver ready-made batches.

Settings: bytes of one rank's batch (a list), only (names in rivals.py; none: all), horovod (False: the job runs without
it).
"""

from __future__ import annotations

import json
import sys

import rivals

import horovod_data as hvdata
from ranks.setting import Batch
from ranks.start import start, tell
from ranks.turns import Contestant, take_turns


def main() -> None:
    with_horovod = json.loads(sys.argv[1])["horovod"]
    job, given = start(horovod=with_horovod)
    wanted = [rivals.ALL[key] for key in given["only"] or rivals.ALL]
    wanted = [way for way in wanted if with_horovod or not way.name.startswith("hvd.")]
    results = []
    for size in given["bytes"]:
        batch = Batch(size)
        ways = [way for way in wanted if size <= way.largest]
        contestants = [Contestant(job, way.steps(job, batch), way.cuts, way.ahead(batch)) for way in ways]
        take_turns(job, contestants, given["rounds"], given["seconds"])
        results += [
            {
                "name": way.name,
                "kind": way.kind,
                "moves": way.moves,
                "ranks": job.size,
                "bytes": size,
                **contestant.told(),
            }
            for way, contestant in zip(ways, contestants)
        ]
        if job.reads:
            tell(given, results)
            print(f"[bench] {job.size} ranks, {size} bytes: done", file=sys.stderr, flush=True)
    hvdata.shutdown()


if __name__ == "__main__":
    main()
