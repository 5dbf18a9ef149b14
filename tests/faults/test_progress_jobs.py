# SPDX-License-Identifier: Apache-2.0
"""HOROVOD_DATA_PROGRESS in whole jobs: exactly one process says how far the epochs are, and what it says is so."""

import re

import pytest
from jobs import run_job

pytestmark = pytest.mark.limit(200)

LOOP = """
import os, sys, time
import tensorflow as tf
import horovod_data as hvdata

kind = sys.argv[1]
hvdata.init()

def numbers(context):
    def elements():
        for i in range(90 // context.num_input_pipelines):
            time.sleep(0.01 if kind == "pipeline" else 0)  # of a rank's batch
            yield [float(i)] * 4
    return tf.data.Dataset.from_generator(elements, output_signature=tf.TensorSpec([4]))

train = hvdata.distribute_dataset(numbers, batch="per_rank", name="train")
valid = hvdata.distribute_dataset(tf.data.Dataset.range(18).batch(6, drop_remainder=True), batch="global", name="valid")
hvdata.serve()
for epoch in range(2):
    for step, x in enumerate(train):
        time.sleep(0 if kind == "pipeline" else 0.02)
        if kind == "fork" and step == 10 and hvdata.rank() == 0 and epoch == 0:
            time.sleep(0.8)  # bars are there
            if (pid := os.fork()) == 0:
                time.sleep(1)
                sys.exit(0)
            os.waitpid(pid, 0)
        if kind == "error" and step == 20 and hvdata.rank() == 0:
            time.sleep(4)  # until it is shown
            raise KeyError("the program's own")
    for y in valid:
        time.sleep(0.3)
print("DONE", hvdata.rank(), flush=True)
"""
ENDED = re.compile(
    r"horovod_data: channel (\w+), epoch (\d+) ended after (\d+) steps: (\d+) rows on rank 0 in ([\d.]+) s, "
    r"([\d,.]+) rows/s; (ranks wait \S+ % .*)"
)


def progress(seconds="0.5", **more):
    return {"HOROVOD_DATA_PROGRESS": "1", "HOROVOD_DATA_PROGRESS_SECONDS": seconds, **more}


AGAIN = """
import tensorflow as tf
import horovod_data as hvdata

hvdata.init()
for epoch in range(5):
    ds = hvdata.distribute_dataset(tf.data.Dataset.range(20 * hvdata.size()).batch(2), batch="per_rank", name="train")
    assert len(list(ds)) == 10
for epoch in range(15):  # of so many that are gone the numbers are kept
    assert len(list(hvdata.distribute_dataset(tf.data.Dataset.range(4 * hvdata.size()).batch(2), batch="per_rank"))) == 2
"""


@pytest.mark.commit
def test_names_that_are_distributed_again_and_channels_without_one():
    """None of their epochs is lost between two looks, nor a row of one."""
    job = run_job(AGAIN, 2, env=progress("0.2"), timeout=90)
    assert job.returncode == 0, job.describe()
    ended = [
        re.search(r"channel (\w+), epoch (\d+) ended after (\d+) steps: (\d+) rows", line)
        for line in job.stderr[0].splitlines()
        if " ended after " in line
    ]
    assert all(ended), job.describe()
    assert [one.groups() for one in ended if one[1] == "train"] == [("train", "1", "10", "20")] * 5, job.describe()
    assert {one.groups()[1:] for one in ended if one[1] != "train"} == {("1", "2", "4")}, job.describe()


def as_it_is(name, waits):
    """Ranks wait for the pipeline in the one channel, and not in the other."""
    return waits.endswith("for the pipeline") == (float(waits.split()[2]) > 70) == (name == "train")


@pytest.mark.limit(500)
@pytest.mark.parametrize("readers", [0, 1])
def test_a_loop_of_ones_own(readers):
    for _ in range(3):  # what other work on the machine takes may change who waits for what
        job = run_job(LOOP, 3 - readers, "pipeline", readers=readers, env=progress(), timeout=150)
        assert job.returncode == 0, job.describe()
        said = [
            line
            for text in job.stderr + job.stdout
            for line in text.splitlines()
            if line.startswith("horovod_data: channel ")
        ]
        mine = [line for line in job.stderr[0].splitlines() if line.startswith("horovod_data: channel ")]
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
    # What the first steps of all take is the reader's own, too.
    for says in (
        r"train, epoch 1: \d+ steps, [\d,.]+ rows/s on rank 0; ranks wait \d+ % for the (pipeline|reader, which copies)",
        rf"train, epoch 2: about \d+ %, \d+ steps \({steps} in the epoch before\), ",
        r"valid, epoch 2: (33|66|100) %, [123] of 3 steps, ",
    ):
        assert any(re.match(f"horovod_data: channel {says}", line) for line in mine), job.describe()


def test_a_forked_child_shows_nothing():
    """Nor does its end, and its parent's line goes on."""
    job = run_job(LOOP, 2, "fork", env=progress(HOROVOD_DATA_PROGRESS="bar"), timeout=150)
    assert job.returncode == 0, job.describe()
    text = job.stderr[0]
    assert [one[0] + one[1] for one in ENDED.findall(text)] == ["train1", "valid1", "train2", "valid2"], job.describe()
    assert "Traceback" not in text and "Exception" not in text, text
    assert "\rtrain 1: 11 steps, " in text and re.search(r"\rtrain 2: ~\d+ %", text) and "; ranks wait" in text, (
        job.describe()
    )
    assert job.stdout[0].count("DONE") == 1 and not job.stderr[1].count("train 1")


@pytest.mark.commit
def test_an_error_of_the_program():
    """It is as visible as without, and the thread neither holds the job up nor ends in a traceback of its own."""
    job = run_job(LOOP, 2, "error", env=progress(), timeout=150)
    assert job.returncode == 1 and 'KeyError: "the program\'s own"' in job.stderr[0], job.describe()
    assert job.stderr[0].count("Traceback") == 1 and "Fatal Python error" not in job.stderr[0], job.describe()
    assert "horovod_data: channel train, epoch 1: 21 steps, " in job.stderr[0], job.describe()


def test_stderr_that_is_closed():
    """The job goes on without."""
    script = LOOP.replace("hvdata.init()", "hvdata.init()\nsys.stderr.close()")
    job = run_job(script, 2, "pipeline", env=progress(), timeout=150)
    assert job.returncode == 0 and all("DONE" in text for text in job.stdout), job.describe()
