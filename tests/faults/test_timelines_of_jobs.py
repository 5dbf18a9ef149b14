# SPDX-License-Identifier: Apache-2.0
"""The timeline of whole jobs: what is in it, what of it a killed job leaves, and Horovod's beside it."""

import ast
import json
import os
import subprocess
import sys
import time

import pytest
import tracing
from jobs import run_job, start_job
from launched import run_launcher

from horovod_data.timeline.parts import Part

STEPS = """
import os, sys, time
import tensorflow as tf
import horovod_data as hvdata

kind = sys.argv[1]
hvdata.init()
slow = 0.02 if kind == "pipeline" else 0.0

def numbers(context):
    def elements():
        for i in range(int(sys.argv[2]) // context.num_input_pipelines):
            time.sleep(slow)  # of a rank's batch
            yield [float(i)] * 256
    return tf.data.Dataset.from_generator(elements, output_signature=tf.TensorSpec([256]))

dataset = hvdata.distribute_dataset(numbers, batch="per_rank", name="train")
hvdata.serve()
wall = 0.0
for epoch in range(2):
    elements = iter(dataset)
    began = time.monotonic()
    for step, x in enumerate(elements):
        time.sleep(0.0 if kind == "pipeline" else 0.004)
        if kind == "slow rank" and hvdata.rank() == 1:
            time.sleep(0.1)
        print("step", step, flush=True)
    wall += time.monotonic() - began
got = hvdata.stats()
print("TIMES", {"wall": wall, **{what: got[f"train/{what}_seconds"] for what in ("wait", "receive", "step")}})
"""


HELD_UP = """
import time
import tensorflow as tf
import horovod_data as hvdata

def endless():
    try:
        while True:
            time.sleep(0.01)
            yield 0
    finally:
        time.sleep(0.4)

hvdata.init()
dataset = hvdata.distribute_dataset(
    lambda: tf.data.Dataset.from_generator(endless, output_signature=tf.TensorSpec([], tf.int32)), batch="per_rank")
for step, x in enumerate(dataset):
    if step == 3:
        break
"""


ALLREDUCES = """
import time
import tensorflow as tf
import horovod.tensorflow as hvd
import horovod_data as hvdata

hvdata.init()
dataset = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(40), batch="per_rank", name="train")
for step, x in enumerate(dataset):
    time.sleep(0.02)
    hvd.allreduce(tf.ones([1000]), name=f"grad_{step}")
    time.sleep(0.02)
"""


def times(job, rank):
    (line,) = [line for line in job.stdout[rank].splitlines() if line.startswith("TIMES")]
    return ast.literal_eval(line[6:])


@pytest.mark.commit("2-0-pipeline")
@pytest.mark.limit(150)
@pytest.mark.parametrize("ranks, readers, kind", [(4, 0, "slow rank"), (2, 0, "pipeline"), (2, 2, "slow rank")])
def test_who_did_what_when(tmp_path, ranks, readers, kind):
    path = tmp_path / "trace.json"
    job = run_job(
        STEPS, ranks, kind, str(30 * ranks), readers=readers, env={"HOROVOD_DATA_TIMELINE": str(path)}, timeout=120
    )
    assert job.returncode == 0, job.describe()
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
        sums, said = tracing.seconds(phases), times(job, rank)
        for name, key in (("wait for data", "wait"), ("receive", "receive"), ("step", "step")):
            assert sums[name] == pytest.approx(said[key], rel=0.02, abs=0.01), (rank, name, said)
        assert sum(sums.values()) == pytest.approx(said["wall"], rel=0.02, abs=0.2), "what a rank does is all its time"
        assert {(event["args"]["epoch"], event["args"]["step"]) for event in phases if event["name"] == "step"} == {
            (epoch, step) for epoch in (1, 2) for step in range(30)
        }
        moments = [
            event for event in events if event["ph"] == "i" and event["pid"] == rank and event["cat"] == "trainer"
        ]
        assert [(event["name"], event["args"]["epoch"]) for event in sorted(moments, key=lambda one: one["ts"])] == [
            ("epoch begins", 1),
            ("epoch ends", 1),
            ("epoch begins", 2),
            ("epoch ends", 2),
        ]
    deals = [tracing.phases(events, row, "reader") for row in reading or (0,)]
    for row in reading or (0,):
        moments = [event for event in events if event["ph"] == "i" and event["pid"] == row and event["cat"] == "reader"]
        assert [(event["name"], event["args"]["epoch"]) for event in sorted(moments, key=lambda one: one["ts"])] == [
            ("epoch begins", 1),
            ("epoch ends", 1),
            ("epoch begins", 2),
            ("epoch ends", 2),
        ], "to the end, whichever reader is done last"
    for phases in deals:
        assert {event["args"]["epoch"] for event in phases if event["name"] == "pipeline"} == {1, 2}

    waits = [
        event
        for rank in range(ranks)
        for event in tracing.phases(events, rank, "trainer")
        if event["name"] == "wait for data"
    ]
    assert {event["args"]["reader"] for event in waits} == set(range(readers or 1))
    if kind == "pipeline":
        assert sum(tracing.seconds(phases)["pipeline"] for phases in deals) > 2 * 30 * ranks * 0.019
        slowest = [event["dur"] for event in waits if event["args"]["step"] > 1]
        assert sorted(slowest)[len(slowest) // 2] > 15_000, "ranks are seen to wait for the pipeline"
    else:
        full = [event for phases in deals for event in phases if event["name"] == "wait for room"]
        assert full and sum(event["dur"] for event in full if event["args"].get("rank") == 1) > 0.8 * sum(
            event["dur"] for event in full
        ), "the reader is seen to wait for the slow rank"


@pytest.mark.commit
@pytest.mark.limit(100)
def test_a_program_that_finalises_mpi_has_its_timeline(tmp_path):
    """It ends our part in MPI_Finalize. The parts stayed, and the file was empty."""
    path = tmp_path / "trace.json"
    job = run_job(
        """
import tensorflow as tf
import horovod_data as hvdata
from mpi4py import MPI
hvdata.init()
for x in hvdata.distribute_dataset(lambda: tf.data.Dataset.range(8).batch(2), batch="global", name="train"):
    pass
MPI.Finalize()
""",
        2,
        env={"HOROVOD_DATA_TIMELINE": str(path)},
        timeout=100,
    )
    assert job.returncode == 0, job.describe()
    assert set(tracing.rows(tracing.load(path))) == {0, 1}
    assert [one.name for one in tmp_path.iterdir()] == ["trace.json"], "the parts are merged"


def test_the_reader_ends_its_last_epoch(tmp_path):
    """Also where that takes longer than all ranks' programs do to come to their ends."""
    path = tmp_path / "trace.json"
    job = run_job(HELD_UP, 2, env={"HOROVOD_DATA_TIMELINE": str(path)}, timeout=80)
    assert job.returncode == 0, job.describe()
    moments = [event["name"] for event in tracing.load(path) if event["ph"] == "i" and event["cat"] == "reader"]
    assert moments == ["epoch begins", "epoch ends"]


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
    with start_job(STEPS, 2, "slow rank", "4000", env={"HOROVOD_DATA_TIMELINE": str(path)}) as job:
        job.wait_for("step 30", rank=1)
        parts = [str(tmp_path / f"trace.json.rank{rank}") for rank in range(2)]
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:  # an event takes a quarter of a second to come into the file
            if all(steps_of(part) >= set(range(25)) for part in parts):
                break
            time.sleep(0.1)
        for victim in victims:
            job.kill_rank(victim)
        assert job.finish(60) != 0
    ran = subprocess.run(
        [sys.executable, "-m", "horovod_data.timeline", "merge", *parts, "-o", str(merged)],
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert ran.returncode == 0 and "the job was killed, or runs on" in ran.stdout, ran
    events = tracing.load(merged)
    for rank in range(2):
        assert {event["args"]["step"] for event in tracing.phases(events, rank, "trainer")} >= set(range(25)), (
            job.describe()
        )


@pytest.mark.limit(100)
def test_the_file_has_a_limit(tmp_path):
    """What finds no room in it is counted, and who is who is there nevertheless."""
    path = tmp_path / "trace.json"
    env = {"HOROVOD_DATA_TIMELINE": str(path), "HOROVOD_DATA_TIMELINE_MB": "0.02"}
    job = run_job(STEPS, 2, "trainers", "400", env=env, timeout=80)
    assert job.returncode == 0, job.describe()
    events = tracing.load(path)
    assert path.stat().st_size < 30_000 and tracing.left_out(events) > 300, tracing.left_out(events)
    assert set(tracing.rows(events)) == {0, 1}


@pytest.mark.limit(100)
@pytest.mark.parametrize("name, says", [("no/trace.json", "No such file or directory"), (".", "Is a directory")])
def test_a_useless_name_is_an_error_of_init(tmp_path, name, says):
    path = str(tmp_path / name)
    job = run_job(STEPS, 2, "trainers", "8", env={"HOROVOD_DATA_TIMELINE": path}, timeout=80)
    assert job.returncode not in (0, None), job.describe()
    where = f"rank 0 on {os.uname().nodename}"
    assert "step 0" not in "".join(job.stdout), job.describe()
    said = f"HOROVOD_DATA_TIMELINE={path!r} is no file that reader 0 can write ({where}): {says}."
    heard = [text for text in job.stderr if said in text]  # by all, but for one whom the first one's end has met before
    assert heard and all("Name a file in a folder that is there on that host" in text for text in heard), job.describe()


@pytest.mark.slow
@pytest.mark.limit(100)
def test_one_file_for_two_timelines_is_an_error_of_init(tmp_path):
    path = str(tmp_path / "trace.json")
    job = run_job(STEPS, 2, "trainers", "8", env={"HOROVOD_DATA_TIMELINE": path, "HOROVOD_TIMELINE": path}, timeout=80)
    assert job.returncode not in (0, None), job.describe()
    said = f"HOROVOD_TIMELINE and HOROVOD_DATA_TIMELINE name the same file, {path!r}. Give each its own."
    assert any(said in text for text in job.stderr), (
        job.describe()
    )  # and the others', if the first one's end has not met them


@pytest.mark.limit(150)
def test_horovods_own_stands_beside_it(tmp_path):
    """The allreduces of rank 0's program lie within its steps: both timelines, merged, tell one time."""
    script = tmp_path / "train.py"
    script.write_text(ALLREDUCES)
    path, horovods, out = tmp_path / "trace.json", tmp_path / "trace.horovod.json", tmp_path / "both.json"
    job = run_launcher(
        "-np",
        "2",
        "--timeline-filename",
        "trace.json",
        "--timeline-mark-cycles",
        sys.executable,
        str(script),
        cwd=tmp_path,
        timeout=120,
    )
    assert job.returncode == 0, job.output
    ran = subprocess.run(
        [sys.executable, "-m", "horovod_data.timeline", "merge", str(path), str(horovods), "-o", str(out)],
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert ran.returncode == 0, (ran, job.output)
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
    assert any(event.get("name") == "CYCLE_START" for event in events), "what else is asked of Horovod's is done"
