# SPDX-License-Identifier: Apache-2.0
"""Who waits for whom, in jobs that were built so that the answer is known; over a slow link: tests/cluster/."""

import ast
import functools
import re

import pytest
from jobs import run_job

STEPS = """
import sys
import time
import tensorflow as tf
import horovod_data as hvdata

kind = sys.argv[1]
hvdata.init()
slow = 0.06 if kind == "pipeline" else 0.0

def numbers(context):
    def elements():
        for i in range(90 // context.num_input_pipelines):
            time.sleep(slow)  # of a rank's batch
            yield [float(i)] * 256
    return tf.data.Dataset.from_generator(elements, output_signature=tf.TensorSpec([256]))

dataset = hvdata.distribute_dataset(numbers, batch="per_rank", name="train")
hvdata.serve()
if hvdata.rank() == 0:
    hvdata.report()
for epoch in range(2):
    hvdata.stats(reset=True)  # the first epoch warms up
    elements = iter(dataset)
    began = time.monotonic()
    for x in elements:
        time.sleep(0.005 if kind == "pipeline" else 0.05)  # beside which a step's other work is little
        if kind == "slow rank" and hvdata.rank() == 1:
            time.sleep(0.15)
    wall = time.monotonic() - began
got = hvdata.stats()
parts = [got[f"train/{what}_seconds"] for what in ("wait", "receive", "step")]
print("TIMES", [wall, *parts])
hvdata.shutdown()
try:
    hvdata.report()
except RuntimeError as error:
    print("AFTER", error)
"""
LAYOUTS = {"embedded": 0, "dedicated": 1, "two readers": 2}


@functools.cache
def run(kind, readers):
    """The seconds of a step, and the job: one for all tests, unless it has to be run again."""
    job = run_job(STEPS, 3, kind, readers=readers, env={"HOROVOD_DATA_REPORT": "1"}, timeout=150)
    assert job.returncode == 0, job.describe()
    measured = []
    for text in job.stdout[:3]:
        (line,) = [line for line in text.splitlines() if line.startswith("TIMES")]
        wall, *parts = ast.literal_eval(line[6:])
        assert sum(parts) == pytest.approx(wall, rel=0.02, abs=0.1), "the parts are not the whole"
        measured.append(wall / 30)
        assert "report() was called after horovod_data.shutdown(). Call it before" in text, job.describe()
    # Unless the others were so much quicker than rank 0 that they have their first ones.
    assert re.search(
        r"^horovod_data report: (no batch has been delivered yet|channel train: 3 ranks, .*\b\d batches)",
        job.stdout[0],
        re.MULTILINE,
    ), job.describe()
    return max(measured), job


def verdict_of(job, readers):
    reader = 3 if readers else 0
    lines = job.stderr[reader].splitlines()
    assert (
        sum("horovod_data report: channel train: 3 ranks" in line for text in job.stderr for line in text.splitlines())
        == 1
    )
    (begin,) = [i for i, line in enumerate(lines) if line.startswith("horovod_data report: channel train: 3 ranks")]
    table = lines[begin : begin + 6 + max(1, readers) + 1]
    assert [" ".join(line.split()[:2]) for line in table[2:5]] == ["rank 0", "rank 1", "rank 2"], table
    return table[-1].strip()


@pytest.mark.commit("trainers-trainer-bound: delivery costs -dedicated")
@pytest.mark.limit(200)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "kind, says",
    [
        ("pipeline", "reader-bound: ranks wait "),
        ("trainers", "trainer-bound: delivery costs "),
        ("slow rank", "rank 1 on "),
    ],
)
def test_the_sentence_is_right(kind, says, layout):
    """A rank from which other work takes its core is slow indeed, and the sentence is about it: one of three."""
    for _ in range(3):
        _, job = run(kind, LAYOUTS[layout])
        text = verdict_of(job, LAYOUTS[layout])
        if text.startswith(says):
            break
        run.cache_clear()
    assert text.startswith(says), text + "\n" + job.describe()
    if kind == "slow rank":
        assert " is slow: the others wait " in text and " ms of each step for it" in text, text


ENDS_EARLY = """
import pathlib
import sys
import time
import tensorflow as tf
import horovod_data as hvdata

hvdata.init()
dataset = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(8).batch(1), batch="per_rank", name="train")
hvdata.serve()
ended = pathlib.Path(sys.argv[1])
for x in dataset:
    pass
if hvdata.rank() == 1:
    hvdata.shutdown()
    ended.touch()
else:
    while not ended.exists():
        time.sleep(0.01)
    began = time.monotonic()
    hvdata.report()
    print("TOOK", time.monotonic() - began)
"""


@pytest.mark.commit
@pytest.mark.limit(100)
def test_a_rank_that_has_ended_is_in_the_report(tmp_path):
    """Reader 0 keeps its times. They vanished from the reports of all other processes, which waited 5 s for an answer."""
    job = run_job(ENDS_EARLY, 2, str(tmp_path / "ended"), readers=1, timeout=80)
    assert job.returncode == 0, job.describe()
    assert re.search(r"channel train: 2 ranks, 1 reader, 8 batches", job.stdout[0]), job.describe()
    assert re.search(r"^  rank 1 on \S+ +4 ", job.stdout[0], re.MULTILINE), job.describe()
    (took,) = re.findall(r"^TOOK ([\d.]+)", job.stdout[0], re.MULTILINE)
    assert float(took) < 4, "no rank answers for one that has ended"


@pytest.mark.slow
@pytest.mark.limit(600)
@pytest.mark.parametrize(
    "kind, readers, advised, pattern",
    [
        ("pipeline", 0, ("pipeline", 2), r"; two readers would give ([\d.]+)x"),
        ("pipeline", 1, ("pipeline", 2), r"; two readers would give ([\d.]+)x"),
        ("slow rank", 0, ("trainers", 0), r"\(([\d.]+)x\)"),
        ("slow rank", 1, ("trainers", 1), r"\(([\d.]+)x\)"),
        ("slow rank", 2, ("trainers", 2), r"\(([\d.]+)x\)"),
    ],
)
def test_the_gain_is_what_was_predicted(kind, readers, advised, pattern):
    """What other work on the machine takes comes on top: the best of three."""
    tries = []
    for _ in range(3):
        before, job = run(kind, readers)
        text = verdict_of(job, readers)
        found = re.search(pattern, text)
        assert found, text
        after, _ = run(*advised)
        tries.append((before, after, before / after, float(found[1])))
        if tries[-1][2] == pytest.approx(tries[-1][3], rel=0.15):
            return
        run.cache_clear()
    pytest.fail(f"seconds of a step before and after, measured and predicted gain: {tries}")


ASKED_BY_SIGNALS = """
import os, signal, threading, time
import tensorflow as tf
import horovod_data as hvdata
hvdata.init()
pid = int(hvdata.scatter(tf.constant([os.getpid()] * 2), root=1).numpy()[0])
if hvdata.rank() == 0:
    made = []
    signal.signal(signal.SIGUSR1, lambda *_: made.append(hvdata.report()))
    os.kill(pid, signal.SIGSTOP)  # rank 1, so that an answer takes long
    def ask():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(1)
    asking = threading.Thread(target=ask)
    asking.start()
    deadline = time.monotonic() + 40
    while len(made) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(pid, signal.SIGCONT)
    print("MADE", len(made))
"""


@pytest.mark.limit(120)
def test_a_signal_that_asks_while_another_one_does():
    job = run_job(ASKED_BY_SIGNALS, 2, timeout=100)
    assert job.returncode == 0, job.describe()
    assert "MADE 2" in job.stdout[0], job.describe()


@pytest.mark.limit(100)
def test_without_stderr_the_report_is_nobodys_output():
    job = run_job(
        "import sys; sys.stderr = None\n" + STEPS, 2, "trainers", env={"HOROVOD_DATA_REPORT": "1"}, timeout=90
    )
    assert job.returncode == 0, job.describe()
    assert "TIMES" in job.stdout[0] and job.stdout[0].count("horovod_data report:") == 1, (
        "of report() alone\n" + job.describe()
    )
