# SPDX-License-Identifier: Apache-2.0
"""Whole jobs with cache="job" on two hosts: a restore with another number of ranks, and the ends of processes that keep
rows."""

import numpy as np
import pytest
from jobs import program, run_program, start_job
from oracle import cached_epoch, deliver, in_order
from ranks.worlds import CAN_NAME_HOSTS

pytestmark = [
    pytest.mark.limit(200),
    pytest.mark.skipif(not CAN_NAME_HOSTS, reason="only root can give a process a host name of its own"),
]
TWO_HOSTS = {"HVDATA_TEST_HOSTS": "2"}
ROWS, BATCH, SEED = 144, 12, 5

SOURCE = """
def rows():
    say("STARTED")
    for first in range(0, 144, 12):
        yield np.arange(first, first + 12)

ds = {call}, batch={batch}, remainder="partial", cache="job", shuffle=True, seed=5)
hvdata.serve()
"""
OF_TF_DATA = "train(lambda: tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec([None], tf.int64))"

RESUMED = (
    """
what, folder, batch, epoch = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
"""
    + SOURCE.format(call=OF_TF_DATA, batch="batch")
    + """
def meet():
    hvdata.scatter(tf.range(size) if rank == 0 else None, dtype=tf.int32)

if what == "save":
    for _ in range(epoch - 1):
        for x in ds: pass
it = iter(ds)
checkpoint = tf.train.Checkpoint(iterator=it)
if what == "save":
    got = [next(it).numpy().tolist() for _ in range(2)]
    meet()
    if rank == 0: checkpoint.write(folder + "/state")
    meet()
    say("SIZE", os.path.getsize(folder + "/state.data-00000-of-00001") if rank == 0 else 0)
else:
    if rank == 0: checkpoint.read(folder + "/state").assert_consumed()
    meet()
    got = [x.numpy().tolist() for x in it]
    say("NEXT " + json.dumps([x.numpy().tolist() for x in ds]))
say("GOT " + json.dumps(got))
"""
)


def whole(epoch, batch):
    elements = [np.arange(first, first + BATCH) for first in range(0, ROWS, BATCH)]
    return [int(row) for element in cached_epoch(elements, batch, epoch, SEED) for row in element]


@pytest.mark.parametrize("epoch", [1, 3])
@pytest.mark.parametrize("batch", ["global", "per_rank"])
def test_another_number_of_ranks_goes_on(tmp_path, batch, epoch):
    """The same order goes on. The job loads once more. The state has no rows."""
    saved, restored = (
        run_program(RESUMED, ranks, what, str(tmp_path), batch, str(epoch), env=TWO_HOSTS)
        for what, ranks in (("save", 3), ("restore", 2))
    )
    assert in_order(saved.told("GOT")) + in_order(restored.told("GOT")) == whole(epoch, batch), restored.describe()
    assert in_order(restored.told("NEXT")) == whole(epoch + 1, batch), restored.describe()
    for job in saved, restored:
        assert [out.count("STARTED") for out in job.stdout] == [1] + [0] * (len(job.stdout) - 1), job.describe()
    (size,) = filter(None, saved.told("SIZE"))
    assert size < 2048, size


ENDS = SOURCE.format(call="load(rows", batch="'global'") + """
for epoch in 1, 2, 3:
    if epoch > 1 and rank == first: break
    got = []
    for x in ds:
        got.append(x.tolist())
        if epoch > 1: time.sleep(0.02)
    say(f"EPOCH{epoch} " + json.dumps(got))
say("DONE")
"""  # fmt: skip


@pytest.mark.commit("0-1")
@pytest.mark.parametrize("first, readers", [(0, 1), (1, 0)])
def test_a_keeper_is_done_first(first, readers):
    """The rows of this keeper's host still come. With a dedicated reader on the other host, rank 0 trains and keeps."""
    job = run_program(f"first = {first}\n" + ENDS, 3, readers=readers, env=TWO_HOSTS)
    elements = [np.arange(at, at + BATCH) for at in range(0, ROWS, BATCH)]
    for epoch in 1, 2, 3:
        want = [
            [share.tolist() for share in mine]
            for mine in deliver(cached_epoch(elements, "global", epoch, SEED), 3, "global", remainder="partial")
        ]
        stays = [rank for rank in range(3) if epoch == 1 or rank != first]
        assert job.told(f"EPOCH{epoch}") == [want[rank] for rank in stays], job.describe()


KILLED = SOURCE.format(call="load(rows", batch="'global'") + """
for epoch in range(1000):
    for x in ds: time.sleep(0.01)
    if epoch == 1: say("RUNNING")
"""  # fmt: skip


@pytest.mark.parametrize("keeper", [0, 1])
def test_a_killed_keeper_ends_the_job(keeper):
    with start_job(program(KILLED), 4, env=TWO_HOSTS) as job:
        job.wait_for("RUNNING", rank=2)
        job.kill_rank(keeper)
        assert job.finish_soon() != 0, job.describe()
        assert "has died" in "".join(job.stderr), job.describe()
