# SPDX-License-Identifier: Apache-2.0
"""Jobs with callbacks.BackupAndRestore that are killed, and go on as other jobs, also with other numbers of ranks."""

import os

import pytest
import restarted
from jobs import run_program


def test_a_killed_job_goes_on_with_other_ranks(tmp_path):
    """4 ranks, then 3, then 4."""
    restarted.run(tmp_path, 1, 4, "1:3:6:SIGKILL", "0", status=None)
    restarted.run(tmp_path, 2, 3, "2:2:9:SIGKILL", "0", status=None)
    restarted.run(tmp_path, 3, 4, "", "0")
    restarted.check(tmp_path, {1: 0, 2: 4, 3: 8})


@pytest.mark.parametrize("before, after, first, of_epoch", [
    (4, 3, range(5, 13), 14),  # 4 steps of 4 batches are 5 steps of 3 and a rest
    (1, 2, range(2, 20), 20),
])  # fmt: skip
def test_a_killed_job_with_batches_of_each_rank(tmp_path, before, after, first, of_epoch):
    """`first`: Keras' numbers of the steps of the resumed epoch. `of_epoch`: the steps of a whole one."""
    restarted.run(tmp_path, 1, before, f"1:{before - 1}:6:SIGKILL", "0", "per_rank", status=None)
    restarted.run(tmp_path, 2, after, "", "0", "per_rank")
    one, two = (restarted.trained(tmp_path, of_epoch)[attempt] for attempt in (1, 2))
    assert sorted(two) == [*first, *range(of_epoch, 2 * of_epoch)]
    steps = [one[step] for step in range(restarted.OFTEN)] + list(two.values())
    rows = [row for ranks in steps for share in ranks.values() for row in share]
    assert sorted(rows) == sorted(list(range(480)) * 2), "each epoch has trained each row once"


def test_a_job_that_was_killed_in_the_middle_of_a_write(tmp_path):
    """All parts of the second set are there. It was not made current, so the job goes on with the first."""
    restarted.run(tmp_path, 1, 2, "1:0:set-00000002:SIGKILL", "0", status=None)
    assert sorted(os.listdir(tmp_path / "state")) == ["set-00000001", "set-00000002.writing"]
    restarted.run(tmp_path, 2, 2, "", "0")
    restarted.check(tmp_path, {1: 0, 2: 4})


ENDS_EARLY = """
from horovod_data.backup import sets, together

folder, end = sys.argv[1:]
together.EXIT_SECONDS, make_folder = 0.1, sets.Sets.folder

def slow(self, number, part):
    time.sleep(1.5)
    return make_folder(self, number, part)

sets.Sets.folder = slow
data = hvdata.loader(lambda epoch: [np.arange(4)] * 20, batch="global")
try:
    try:
        with hvdata.Backup(folder, every=3, seconds=None) as backup:
            for batch in backup.steps(data):
                if backup.step == 3:
                    raise InterruptedError
    except InterruptedError:
        if end == "error":
            raise
        if end == "shutdown during an exit":
            sys.exit(0)
finally:
    if end != "exit":
        hvdata.shutdown()
"""


@pytest.mark.commit("exit")
@pytest.mark.parametrize("end", ["shutdown", "shutdown during an exit", "exit", "error"])
def test_a_job_that_ends_while_a_set_is_written(tmp_path, end):
    """An end without an error waits for the set. After an error a line says that the set is lost."""
    job = run_program(ENDS_EARLY, 2, str(tmp_path / "sets"), end, status=None)
    assert (job.returncode == 0) == (end != "error"), job.describe()
    assert os.path.exists(tmp_path / "sets" / "set-00000001") == (end != "error"), job.describe()
    lost = [text.count("the set that is being written is lost") for text in job.stderr]
    assert lost == [int(end == "error"), 0], job.describe()
