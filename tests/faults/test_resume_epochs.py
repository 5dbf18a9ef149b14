# SPDX-License-Identifier: Apache-2.0
"""A pipeline that depends on the epoch, interrupted in the middle of its second epoch: another job, of as many ranks or not,
is told the same number and goes on."""

import json

import pytest
from jobs import run_job

pytestmark = [pytest.mark.limit(180), pytest.mark.slow]

SCRIPT = """
import json, sys
import tensorflow as tf
import horovod_data as hvdata

hvdata.init()
what, folder, kind = sys.argv[1:]
rank = hvdata.rank()

def make(epoch):
    print("CALLED", epoch, flush=True)
    numbers = range(1000 * epoch, 1000 * epoch + 48)
    if kind == "generator":
        return tf.data.Dataset.from_generator(lambda: iter(numbers), output_signature=tf.TensorSpec([], tf.int64))
    dataset = tf.data.Dataset.range(numbers.start, numbers.stop).shuffle(16, seed=7)
    if kind == "random":  # can't be saved: made again from its front, with the same shuffle
        dataset = dataset.map(lambda i: i + tf.cast(tf.random.uniform([], maxval=1, dtype=tf.int32), tf.int64))
    return dataset

ds = hvdata.distribute_dataset(make, batch="per_rank", prefetch=3)
hvdata.serve()
it = iter(ds)
got = []
if what == "save":
    for x in it: pass
    it = iter(ds)
    got = [int(next(it)) for _ in range(4)]
    if rank == 0:
        tf.train.Checkpoint(iterator=it).write(folder + "/state")
    hvdata.scatter(tf.range(hvdata.size()) if rank == 0 else None, dtype=tf.int32)
else:
    if rank == 0:
        tf.train.Checkpoint(iterator=it).read(folder + "/state").assert_consumed()
    hvdata.scatter(tf.range(hvdata.size()) if rank == 0 else None, dtype=tf.int32)
    got = [int(x) for x in it]
print("GOT " + json.dumps(got))
if what == "restore":
    print("NEXT " + json.dumps([int(x) for x in ds]))
"""


def _order(job, word):
    per_rank = [
        json.loads(line[len(word) :]) for out in job.stdout for line in out.splitlines() if line.startswith(word)
    ]
    return [row for step in zip(*per_rank) for row in step]


def _calls(job):
    return [[int(line.split()[1]) for line in out.splitlines() if line.startswith("CALLED")] for out in job.stdout]


@pytest.mark.parametrize("kind, before, after, readers", [
    ("shuffled", 2, 2, 0), ("shuffled", 2, 3, 0), ("random", 2, 2, 0), ("generator", 3, 2, 0), ("shuffled", 2, 2, 1),
])  # fmt: skip
def test_in_the_middle_of_epoch_2(tmp_path, kind, before, after, readers):
    saved = run_job(SCRIPT, before, "save", str(tmp_path), kind, readers=readers, timeout=120)
    assert saved.returncode == 0, saved.describe()
    restored = run_job(SCRIPT, after, "restore", str(tmp_path), kind, readers=readers, timeout=120)
    assert restored.returncode == 0, restored.describe()
    head, tail = _order(saved, "GOT "), _order(restored, "GOT ")
    assert len(head) == 4 * before and len(tail) == (48 - len(head)) // after * after, restored.describe()
    lost = (48 - len(head)) % after  # remainder="drop"
    assert len(set(head + tail)) == 48 - lost and set(head + tail) <= set(range(2000, 2048)), (head, tail)
    if kind == "generator":
        assert head + tail == list(range(2000, 2048 - lost)), (head, tail)
    assert set(_order(restored, "NEXT ")) == set(range(3000, 3048)), restored.describe()
    calls_before, calls_after = _calls(saved), _calls(restored)
    where = before if readers else 0
    assert calls_before[where] == [1, 2] and calls_after[after if readers else 0] == [1, 2, 3], (
        calls_before,
        calls_after,
    )
    assert sum(map(len, calls_before + calls_after)) == 5  # on readers only
