# SPDX-License-Identifier: Apache-2.0
"""All ways to deliver ready-made batches.

Settings: bytes of one rank's batch (a list), only (names of rivals), horovod (False: the job runs without it).
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
    wanted = [
        r
        for r in rivals.ALL
        if (not given["only"] or r.__name__.rsplit(".", 1)[1] in given["only"])
        and (with_horovod or not r.NAME.startswith("hvd."))
    ]
    results = []
    for size in given["bytes"]:
        batch = Batch(size)
        taking_part = [rival for rival in wanted if rivals.takes_part(rival, size)]
        contestants = [
            Contestant(job, rival.steps(job, batch), rival.CUTS, getattr(rival, "ahead", lambda _: 2)(batch))
            for rival in taking_part
        ]
        take_turns(job, contestants, given["rounds"], given["seconds"])
        results += [
            {"name": r.NAME, "kind": r.KIND, "moves": r.MOVES, "ranks": job.size, "bytes": size, **c.told()}
            for r, c in zip(taking_part, contestants)
        ]
        if job.reads:
            tell(given, results)
            print(f"[bench] {job.size} ranks, {size} bytes: done", file=sys.stderr, flush=True)
    hvdata.shutdown()


if __name__ == "__main__":
    main()
