# SPDX-License-Identifier: Apache-2.0
"""A million verified batches: not one of them is to be called wrong that is right.

    python tests/soak/batches.py [--batches 1000000] [--ranks 4] [--mpirun mpirun]

Small ones, batch="per_rank", prefetch=64: as many as possible under way at once. Each is compared with what it must be, too.
Status 1: an epoch that is not complete, or a batch that is not what it should be.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))


def every_rank(batches: int) -> None:
    import tensorflow as tf

    import horovod_data as hvdata
    from horovod_data.certificate import last

    hvdata.init()
    dataset = hvdata.distribute_dataset(
        lambda: tf.data.Dataset.range(batches), batch="per_rank", prefetch=64, name="batches", verify=True
    )
    begin = time.monotonic()
    taken = 0
    for number in dataset:
        if int(number) != taken * hvdata.size() + hvdata.rank():
            raise AssertionError(f"step {taken} of rank {hvdata.rank()} is element {int(number)}")
        taken += 1
    if hvdata.rank() == 0:
        record = last()["batches"]
        right = record["verdict"] == "complete" and record["rows"] == batches == taken * hvdata.size()
        print(
            f"[batches] {record['rows']:,} verified batches on {hvdata.size()} ranks, {record['lost']} lost, "
            f"{record['twice']} twice, {record['altered']} altered: {record['verdict']}; {time.monotonic() - begin:.0f} s",
            flush=True,
        )
        if not right:
            raise AssertionError(f"not {batches:,} right ones: {record}")
    hvdata.shutdown()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=1_000_000, help="a multiple of the ranks")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--mpirun", default="mpirun")
    arguments = parser.parse_args()
    if arguments.batches % arguments.ranks:
        parser.error("--batches must be a multiple of --ranks")
    from ranks.launch import DEFAULTS

    return subprocess.run(
        [*shlex.split(arguments.mpirun), "-np", str(arguments.ranks), sys.executable, __file__],
        env={**DEFAULTS, **os.environ, "HVDATA_BATCHES": str(arguments.batches)},
    ).returncode


if __name__ == "__main__":
    if "HVDATA_BATCHES" in os.environ:
        every_rank(int(os.environ["HVDATA_BATCHES"]))
    else:
        sys.exit(main())
