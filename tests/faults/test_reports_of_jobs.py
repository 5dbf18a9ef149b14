# SPDX-License-Identifier: Apache-2.0
"""The report says who waits for whom, in jobs for which the answer is known. tests/cluster/ has a slow link."""

import ast
import re

import pytest
from jobs import run_program

STEPS = """
kind = sys.argv[1]
dataset = load(slowly(90, 0.06 if kind == "pipeline" else 0, 256))
hvdata.serve()
if rank == 0:
    hvdata.report()
for epoch in range(2):
    hvdata.stats(reset=True)  # the first epoch warms up
    elements = iter(dataset)
    began = time.monotonic()
    for x in elements:
        time.sleep(0.005 if kind == "pipeline" else 0.05)  # a step's other work is little beside it
        if kind == "slow rank" and rank == 1:
            time.sleep(0.15)
    wall = time.monotonic() - began
got = hvdata.stats()
say("TIMES", [wall, *(got[f"train/{what}_seconds"] for what in ("wait", "receive", "step"))])
hvdata.shutdown()
try:
    hvdata.report()
except RuntimeError as error:
    say("AFTER", error)
"""
LAYOUTS = {"embedded": 0, "dedicated": 1, "two readers": 2}
REPORTED = "horovod_data report: channel train: 3 ranks"


def verdict(kind, readers):
    """The report's sentence at the end of a job, and the job."""
    job = run_program(STEPS, 3, kind, readers=readers, env={"HOROVOD_DATA_REPORT": "1"}, timeout=150)
    for text in job.stdout[:3]:
        wall, *parts = ast.literal_eval(re.search("^TIMES (.*)", text, re.MULTILINE)[1])
        assert sum(parts) == pytest.approx(wall, rel=0.02, abs=0.1), "the parts are not the whole"
    job.assert_said(r"report\(\) was called after horovod_data.shutdown\(\). Call it before", 0, 1, 2)
    # The other ranks may have their first batches already.
    job.assert_said(
        r"^horovod_data report: (no batch has been delivered yet|channel train: 3 ranks, .*\b\d batches)", 0
    )
    assert sum(line.startswith(REPORTED) for text in job.stderr for line in text.splitlines()) == 1, job.describe()
    lines = job.stderr[3 if readers else 0].splitlines()
    (begin,) = [i for i, line in enumerate(lines) if line.startswith(REPORTED)]
    table = lines[begin : begin + 6 + max(1, readers) + 1]
    assert [" ".join(line.split()[:2]) for line in table[2:5]] == ["rank 0", "rank 1", "rank 2"], table
    return table[-1].strip(), job


@pytest.mark.limit(500)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind, says", [
    ("pipeline", "reader-bound: ranks wait "), ("trainers", "trainer-bound: delivery costs "), ("slow rank", "rank 1 on "),
])  # fmt: skip
def test_the_sentence_is_right(kind, says, layout):
    """One of three attempts must be right. If other work takes a rank's core, the verdict names that rank as slow."""
    for _ in range(3):
        text, job = verdict(kind, LAYOUTS[layout])
        if text.startswith(says):
            break
    assert text.startswith(says), text + "\n" + job.describe()
    if kind == "slow rank":
        assert " is slow: the others wait " in text and " ms of each step for it" in text, text


@pytest.mark.commit
@pytest.mark.limit(100)
def test_a_rank_that_has_ended_is_in_the_report(tmp_path):
    """Reader 0 keeps the times of an ended rank. So a report shows them, and waits for no answer."""
    job = run_program("""
dataset = load([np.arange(1)] * 8)
hvdata.serve()
for x in dataset:
    pass
if rank == 1:
    hvdata.shutdown()
    open(sys.argv[1], "w").close()
else:
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    began = time.monotonic()
    hvdata.report()
    say("TOOK", time.monotonic() - began)
""", 2, str(tmp_path / "ended"), readers=1)  # fmt: skip
    job.assert_said(r"channel train: 2 ranks, 1 reader, 8 batches", 0)
    job.assert_said(r"^  rank 1 on \S+ +4 ", 0)
    (took,) = re.findall(r"^TOOK ([\d.]+)", job.stdout[0], re.MULTILINE)
    assert float(took) < 4, "no rank answers for one that has ended"


@pytest.mark.limit(120)
def test_a_signal_that_asks_while_another_one_does():
    job = run_program("""
pid = int(hvdata.scatter(tf.constant([os.getpid()] * 2), root=1).numpy()[0])
if rank == 0:
    made = []
    signal.signal(signal.SIGUSR1, lambda *_: made.append(hvdata.report()))
    os.kill(pid, signal.SIGSTOP)  # rank 1, so that an answer takes long
    def ask():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(1)
    threading.Thread(target=ask).start()
    deadline = time.monotonic() + 40
    while len(made) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(pid, signal.SIGCONT)
    say("MADE", len(made))
""", 2)  # fmt: skip
    job.assert_said("MADE 2", 0)


@pytest.mark.limit(100)
def test_without_stderr_there_is_no_report_at_the_end():
    env = {"HOROVOD_DATA_REPORT": "1"}
    job = run_program(STEPS, 2, "trainers", before="sys.stderr = None", env=env)
    assert "TIMES" in job.stdout[0] and job.stdout[0].count("horovod_data report:") == 1, (
        "of report() alone\n" + job.describe()
    )
