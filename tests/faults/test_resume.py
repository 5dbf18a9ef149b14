# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of one job continued by another, of another size: the same global order, nothing lost, nothing twice."""

import json

import pytest
import tensorflow as tf
from jobs import run_job

SCRIPT = """
import json, sys
import tensorflow as tf
import horovod_data as hvdata

hvdata.init()
what, folder, batch = sys.argv[1:]
rank = hvdata.rank()

def source():
    numbers = tf.data.Dataset.range(48).shuffle(16, seed=7)
    return numbers.batch(12, drop_remainder=True) if batch == "global" else numbers.batch(2, drop_remainder=True)

ds = hvdata.distribute_dataset(source, batch=batch, prefetch=3)
it = iter(ds)
checkpoint = tf.train.Checkpoint(iterator=it)
if what == "save":
    got = [next(it).numpy().tolist() for _ in range(2)]
    if rank == 0:
        checkpoint.write(folder + "/state")
else:
    if rank == 0:
        checkpoint.read(folder + "/state").assert_consumed()
    # A collective behind the restore, as every Horovod script has one.
    hvdata.scatter(tf.range(hvdata.size()) if rank == 0 else None, dtype=tf.int32)
    got = [x.numpy().tolist() for x in it]
print("GOT " + json.dumps(got))
"""


def _order(job):
    """The job's global order: rank 0's share of step 0, rank 1's, ... then step 1."""
    per_rank = [json.loads(line[4:]) for out in job.stdout for line in out.splitlines() if line.startswith("GOT ")]
    return [row for step in zip(*per_rank) for share in step for row in share]


@pytest.mark.parametrize("batch, before, after", [("global", 2, 4), ("per_rank", 3, 2)])
def test_another_number_of_ranks(tmp_path, batch, before, after):
    whole = [int(x) for x in tf.data.Dataset.range(48).shuffle(16, seed=7)]
    first = run_job(SCRIPT, before, "save", str(tmp_path), batch)
    assert first.returncode == 0, first.describe()
    second = run_job(SCRIPT, after, "restore", str(tmp_path), batch)
    assert second.returncode == 0, second.describe()
    head, tail = _order(first), _order(second)
    assert head == whole[:len(head)] and len(head) == (24 if batch == "global" else 4 * before)
    assert tail == whole[len(head):][:len(tail)]
    # drop: of per-rank batches the last incomplete group is left out
    assert len(head) + len(tail) > 48 - 2 * after
