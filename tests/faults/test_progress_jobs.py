# SPDX-License-Identifier: Apache-2.0
"""With HOROVOD_DATA_PROGRESS exactly one process of a job reports how far the epochs are. Its figures are right."""

import re

import pytest
from jobs import run_program

pytestmark = pytest.mark.limit(200)

LOOP = """
kind = sys.argv[1]
trained = load(slowly(90, 0.01 if kind == "pipeline" else 0, 4))
valid = load([np.arange(6)] * 3, batch="global", remainder="partial", name="valid")
hvdata.serve()
for epoch in range(2):
    for step, x in enumerate(trained):
        time.sleep(0 if kind == "pipeline" else 0.02)
        if kind == "fork" and step == 10 and rank == 0 and epoch == 0:
            time.sleep(0.8)  # bars are there
            if (pid := os.fork()) == 0:
                time.sleep(1)
                sys.exit(0)
            os.waitpid(pid, 0)
        if kind == "error" and step == 20 and rank == 0:
            time.sleep(2)  # until it is shown
            raise KeyError("the program's own")
    for y in valid:
        time.sleep(0.3)
say("DONE", rank)
"""
ENDED = re.compile(
    r"horovod_data: channel (\w+), epoch (\d+) ended after (\d+) steps: (\d+) rows on rank 0 in ([\d.]+) s, "
    r"([\d,.]+) rows/s; rank 0 waits (\d+) % of the time"
)


def progress(seconds="0.5", **more):
    return {"HOROVOD_DATA_PROGRESS": "1", "HOROVOD_DATA_PROGRESS_SECONDS": seconds, **more}


def test_names_that_are_distributed_again_and_channels_without_one():
    """No epoch is lost between two looks, and no row of an epoch."""
    job = run_program("""
for epoch in range(5):
    assert len(list(train(tf.data.Dataset.range(20 * size).batch(2)))) == 10
for epoch in range(15):  # the numbers of so many deleted channels are kept
    assert len(list(train(tf.data.Dataset.range(4 * size).batch(2), name=None))) == 2
""", 2, env=progress("0.2"))  # fmt: skip
    lines = [line for line in job.stderr[0].splitlines() if " ended after " in line]
    ended = [re.search(r"channel (\w+), epoch (\d+) ended after (\d+) steps: (\d+) rows", line) for line in lines]
    assert all(ended), job.describe()
    assert [one.groups() for one in ended if one[1] == "train"] == [("train", "1", "10", "20")] * 5, job.describe()
    assert {one.groups()[1:] for one in ended if one[1] != "train"} == {("1", "2", "4")}, job.describe()


def as_it_is(name, waits):
    """Rank 0 waits in the one channel, and not in the other."""
    return (float(waits) > 70) == (name == "train")


@pytest.mark.limit(500)
@pytest.mark.parametrize("readers", [0, 1])
def test_a_loop_of_ones_own(readers):
    for _ in range(3):  # other work on the machine may change who waits for what
        job = run_program(LOOP, 3 - readers, "pipeline", readers=readers, env=progress(), timeout=150)
        said, mine = ([line for line in text.splitlines() if line.startswith("horovod_data: channel ")]
                      for text in ("".join(job.stderr + job.stdout), job.stderr[0]))  # fmt: skip
        assert said == mine, "one process, on stderr\n" + job.describe()
        ended = [ENDED.fullmatch(line).groups() for line in mine if " ended after " in line]
        if all(as_it_is(one[0], one[-1]) for one in ended):
            break
    steps = 90 // (3 - readers)
    assert [one[:4] for one in ended] == [
        (name, epoch, str(count), str(rows))
        for epoch in "12"
        for name, count, rows in (("train", steps, 4 * steps), ("valid", 3, 6 if readers == 0 else 9))
    ], job.describe()
    for name, _, _, rows, seconds, rate, waits in ended:
        assert float(rate.replace(",", "")) == pytest.approx(int(rows) / float(seconds), rel=0.1)
        assert float(seconds) >= (0.88 if name == "train" else 0.8), "the generator's sleep, or the loop's"
        assert as_it_is(name, waits), job.describe()
    # The reader's own part of the first steps counts, too.
    for says in (
        r"train, epoch 1: \d+ steps, [\d,.]+ rows/s on rank 0; rank 0 waits \d+ % of the time",
        rf"train, epoch 2: about \d+ %, \d+ steps \({steps} in the epoch before\), ",
        r"valid, epoch 2: (33|66|100) %, [123] of 3 steps, ",
    ):
        assert any(re.match(f"horovod_data: channel {says}", line) for line in mine), job.describe()


def test_a_forked_child_shows_nothing():
    """The child's end shows nothing either, and its parent's lines go on."""
    job = run_program(LOOP, 2, "fork", env=progress(), timeout=150)
    text = job.stderr[0]
    assert [one[0] + one[1] for one in ENDED.findall(text)] == ["train1", "valid1", "train2", "valid2"], job.describe()
    assert "Traceback" not in text and "Exception" not in text, text
    assert job.stdout[0].count("DONE") == 1 and not job.stderr[1].count("train, epoch 1")


@pytest.mark.commit
def test_an_error_of_the_program():
    """The error is as visible as without progress.

    The progress thread does not delay the job, and shows no traceback.
    """
    job = run_program(LOOP, 2, "error", env=progress(), timeout=150, status=1)
    job.assert_said('KeyError: "the program\'s own"', 0)
    job.assert_said("horovod_data: channel train, epoch 1: 21 steps, ", 0)
    assert job.stderr[0].count("Traceback") == 1 and "Fatal Python error" not in job.stderr[0], job.describe()


def test_stderr_that_is_closed():
    """The job goes on without progress."""
    run_program("sys.stderr.close()" + LOOP, 2, "pipeline", env=progress(), timeout=150).assert_said("DONE", 0, 1)
