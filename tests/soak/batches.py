# SPDX-License-Identifier: Apache-2.0
"""Delivers a million verified batches. Verification must not report a correct batch as wrong.

    python tests/soak/batches.py [--batches 1000000] [--ranks 4] [--mpirun mpirun]

Batches are small, with batch="per_rank" and prefetch=64, so that as many as possible are under way at once. Each batch
is compared with its expected number. --batches is rounded down to a multiple of --ranks. Status 1: an epoch was not
complete, or a batch was wrong.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import proof


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


def jobs(batches: int, ranks: int) -> Iterator[proof.Job]:
    yield ranks, [batches // ranks * ranks], {}


if __name__ == "__main__":
    sys.exit(proof.main(__doc__, __file__, every_rank, jobs, batches=1_000_000, ranks=4))
