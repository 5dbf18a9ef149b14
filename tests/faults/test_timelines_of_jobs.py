# SPDX-License-Identifier: Apache-2.0
"""The timeline of whole jobs: its contents, the part that a killed job leaves, and Horovod's timeline beside it."""

import ast
import json
import re
import subprocess
import sys

import pytest
import tracing
from jobs import program, run_program, start_job
from launched import run_launcher

from horovod_data.timeline.parts import Part

STEPS = """
kind = sys.argv[1]
dataset = load(slowly(int(sys.argv[2]), 0.02 if kind == "pipeline" else 0, 256))
hvdata.serve()
wall = 0.0
for epoch in range(2):
    elements = iter(dataset)
    began = time.monotonic()
    for step, x in enumerate(elements):
        time.sleep(0.0 if kind == "pipeline" else 0.004)
        if kind == "slow rank" and rank == 1:
            time.sleep(0.1)
        say("step", step)
    wall += time.monotonic() - began
got = hvdata.stats()
say("TIMES", {"wall": wall, **{what: got[f"train/{what}_seconds"] for what in ("wait", "receive", "step")}})
"""
EPOCHS = [("epoch begins", 1), ("epoch ends", 1), ("epoch begins", 2), ("epoch ends", 2)]


def moments(events, row, role):
    """The begins and ends of epochs, with their numbers."""
    found = [event for event in events if event["ph"] == "i" and (event["pid"], event["cat"]) == (row, role)]
    return [(event["name"], event["args"]["epoch"]) for event in sorted(found, key=lambda event: event["ts"])]


@pytest.mark.commit("2-0-pipeline")
@pytest.mark.limit(150)
@pytest.mark.parametrize("ranks, readers, kind", [(4, 0, "slow rank"), (2, 0, "pipeline"), (2, 2, "slow rank")])
def test_who_did_what_when(tmp_path, ranks, readers, kind):
    path = tmp_path / "trace.json"
    env = {"HOROVOD_DATA_TIMELINE": str(path)}
    job = run_program(STEPS, ranks, kind, str(30 * ranks), readers=readers, env=env)
    events = tracing.load(path)
    assert tracing.left_out(events) == 0
    assert [one.name for one in tmp_path.iterdir()] == ["trace.json"], "the parts are merged"
    reading = {row: f"reader {row - ranks} on " for row in range(ranks, ranks + readers)}
    named = tracing.rows(events)
    assert set(named) == {*range(ranks), *reading}
    assert all(named[row].startswith(reading.get(row, f"rank {row} on ")) for row in named), named
    assert named[0].endswith(", reader 0") == (readers == 0), named

    for rank in range(ranks):
        phases = tracing.phases(events, rank, "trainer")
        sums = tracing.seconds(phases)
        said = ast.literal_eval(re.search("^TIMES (.*)", job.stdout[rank], re.MULTILINE)[1])
        for name, key in (("wait for data", "wait"), ("receive", "receive"), ("step", "step")):
            assert sums[name] == pytest.approx(said[key], rel=0.02, abs=0.01), (rank, name, said)
        assert sum(sums.values()) == pytest.approx(said["wall"], rel=0.02, abs=0.2), "what a rank does is all its time"
        steps = {(event["args"]["epoch"], event["args"]["step"]) for event in phases if event["name"] == "step"}
        assert steps == {(epoch, step) for epoch in (1, 2) for step in range(30)}
        assert moments(events, rank, "trainer") == EPOCHS
    deals = [tracing.phases(events, row, "reader") for row in reading or (0,)]
    for row in reading or (0,):
        assert moments(events, row, "reader") == EPOCHS, "to the end, also of the reader that is done last"
    for phases in deals:
        assert {event["args"]["epoch"] for event in phases if event["name"] == "pipeline"} == {1, 2}

    of_trainers = sum((tracing.phases(events, rank, "trainer") for rank in range(ranks)), [])
    waits = [event for event in of_trainers if event["name"] == "wait for data"]
    assert {event["args"]["reader"] for event in waits} == set(range(readers or 1))
    if kind == "pipeline":
        assert sum(tracing.seconds(phases)["pipeline"] for phases in deals) > 2 * 30 * ranks * 0.019
        slowest = [event["dur"] for event in waits if event["args"]["step"] > 1]
        assert sorted(slowest)[len(slowest) // 2] > 15_000, "ranks are seen to wait for the pipeline"
    else:
        full = [event for phases in deals for event in phases if event["name"] == "wait for room"]
        for_rank_1 = [event for event in full if event["args"].get("rank") == 1]
        assert full and sum(event["dur"] for event in for_rank_1) > 0.8 * sum(event["dur"] for event in full)


@pytest.mark.commit
@pytest.mark.limit(100)
def test_a_program_that_finalises_mpi_has_its_timeline(tmp_path):
    """The program ends our part in MPI_Finalize. The parts of the timeline are merged there."""
    path = tmp_path / "trace.json"
    run_program("""
from mpi4py import MPI
for x in load([np.arange(2)] * 4, batch="global"):
    pass
MPI.Finalize()
""", 2, env={"HOROVOD_DATA_TIMELINE": str(path)})  # fmt: skip
    assert set(tracing.rows(tracing.load(path))) == {0, 1}
    assert [one.name for one in tmp_path.iterdir()] == ["trace.json"], "the parts are merged"


def test_the_reader_ends_its_last_epoch(tmp_path):
    """Closing the pipeline may take longer than the ends of all ranks' programs."""
    path = tmp_path / "trace.json"
    run_program("""
def endless():
    try:
        while True:
            time.sleep(0.01)
            yield 0
    finally:
        time.sleep(0.4)

spec = tf.TensorSpec([], tf.int32)
for step, x in enumerate(train(lambda: tf.data.Dataset.from_generator(endless, output_signature=spec))):
    if step == 3:
        break
""", 2, env={"HOROVOD_DATA_TIMELINE": str(path)})  # fmt: skip
    assert moments(tracing.load(path), 0, "reader") == EPOCHS[:2]


def merge(*files):
    """Merges timelines into the last of these files, and returns what the command prints."""
    *sources, target = map(str, files)
    command = [sys.executable, "-m", "horovod_data.timeline", "merge", *sources, "-o", target]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert ran.returncode == 0, ran
    return ran.stdout


def steps_of(part):
    """The steps that a rank has written so far."""
    try:
        events = list(Part(part).events())
    except (OSError, ValueError):  # it has not begun
        return set()
    return {event["args"]["step"] for event in events if event.get("cat") == "trainer"}


@pytest.mark.limit(120)
@pytest.mark.parametrize("victims", [[1], [0, 1]], ids=str)
def test_a_killed_job_leaves_a_timeline(tmp_path, victims):
    path, merged = tmp_path / "trace.json", tmp_path / "out.json"
    with start_job(program(STEPS), 2, "slow rank", "4000", env={"HOROVOD_DATA_TIMELINE": str(path)}) as job:
        job.wait_for("step 30", rank=1)
        parts = [str(tmp_path / f"trace.json.rank{rank}") for rank in range(2)]
        # An event takes a quarter of a second to come into the file.
        written = lambda: all(steps_of(part) >= set(range(25)) for part in parts)
        job.wait_until(written, "the steps are not in the files")
        for victim in victims:
            job.kill_rank(victim)
        assert job.finish(60) != 0
    assert "the job was killed, or runs on" in merge(*parts, merged)
    events = tracing.load(merged)
    for rank in range(2):
        steps = {event["args"]["step"] for event in tracing.phases(events, rank, "trainer")}
        assert steps >= set(range(25)), job.describe()


ALLREDUCES = """
import horovod.tensorflow as hvd
for step, x in enumerate(train(lambda: tf.data.Dataset.range(40))):
    time.sleep(0.02)
    hvd.allreduce(tf.ones([1000]), name=f"grad_{step}")
    time.sleep(0.02)
"""


@pytest.mark.limit(150)
def test_horovods_own_stands_beside_it(tmp_path):
    """The allreduces of rank 0's program lie within its steps: both timelines, merged, show one time."""
    script = tmp_path / "train.py"
    script.write_text(program(ALLREDUCES))
    path, horovods, out = tmp_path / "trace.json", tmp_path / "trace.horovod.json", tmp_path / "both.json"
    words = ["-np", "2", "--timeline-filename", "trace.json", "--timeline-mark-cycles", sys.executable, str(script)]
    run_launcher(*words, cwd=tmp_path, timeout=120)
    merge(path, horovods, out)
    events = json.loads(out.read_text())
    named = tracing.rows([event for event in events if "name" in event.get("args", {})])
    assert any(name.startswith("Horovod: HorovodAllreduce") for name in named.values()), named
    begins, ends = {}, {}  # what lasts more than a second is shown in pieces
    for event in tracing.phases(events, 0, "trainer"):
        if event["name"] == "step":
            begins.setdefault(event["args"]["step"], event["ts"])
            ends[event["args"]["step"]] = event["ts"] + event["dur"]
    reduced = sorted((event for event in events if event.get("name") == "ALLREDUCE"), key=lambda event: event["ts"])
    assert len(reduced) == len(begins) == 20, (reduced, named)  # one in each step, one after the other
    for number, event in enumerate(reduced):
        assert begins[number] + 19_000 <= event["ts"] <= ends[number] - 19_000, (begins[number], ends[number], event)
    assert any(event.get("name") == "CYCLE_START" for event in events), "Horovod's timeline lacks its cycles"
