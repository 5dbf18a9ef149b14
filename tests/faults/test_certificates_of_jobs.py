# SPDX-License-Identifier: Apache-2.0
"""Certificates of whole jobs: equal for equal rows, whoever reads, and written by horovod-data-run for any script."""

import json
import re
import sys

import pytest
from jobs import run_job
from launched import run_launcher

from horovod_data import certificate

# Each reader has every readers-th element: together they read the source in its own order.
SHARED = """
import sys
import tensorflow as tf
import horovod_data as hvdata

hvdata.init()

def source(context):
    elements = tf.data.Dataset.range(60).map(lambda i: tf.fill([4, 300], i * i))
    return elements.shard(context.num_input_pipelines, context.input_pipeline_id)

dataset = hvdata.distribute_dataset(source, batch="global", name="train", verify=True)
hvdata.serve()
print("GOT", sum(1 for _ in dataset))
"""


@pytest.mark.slow  # of jobs with these readers each; tests/mpi/test_certificate.py knows the digest from the oracle
@pytest.mark.limit(200)
def test_the_digest_does_not_depend_on_the_readers(tmp_path, capsys):
    """Rank 0, or one to three dedicated readers that share one source element by element."""
    files = []
    for readers in (0, 1, 2, 3):
        files.append(tmp_path / f"{readers}.json")
        job = run_job(SHARED, 2, readers=readers, env={"HOROVOD_DATA_CERTIFICATE": str(files[-1])}, timeout=100)
        assert job.returncode == 0 and "GOT 60" in job.stdout[0], job.describe()
    records = [json.loads(file.read_text()) for file in files]
    assert [record["readers"] for record in records] == [1, 1, 2, 3]
    assert {(record["verdict"], record["rows"], record["order"], record["any_order"]) for record in records} == {
        ("complete", 240, records[0]["order"], records[0]["any_order"])
    }
    for file in files[1:]:
        assert certificate.main([str(files[0]), str(file)]) == 0
        assert "channel train, epoch 1: the same 240 rows in the same order" in capsys.readouterr().out


# 2 readers have 5 elements each for 3 ranks: one step of each, and two more of what both have left, which the last rank
# gets an empty share of.
TAIL = """
import json
import sys
import tensorflow as tf
import horovod_data as hvdata
from mpi4py import MPI

path, remainder, behind = sys.argv[1], sys.argv[2], int(sys.argv[3])
hvdata.init()

def source(context):
    elements = tf.data.Dataset.range(10).map(lambda i: tf.fill([2, 3], i * i))
    return elements.shard(context.num_input_pipelines, context.input_pipeline_id)

dataset = hvdata.distribute_dataset(source, batch="per_rank", remainder=remainder, name="train", verify=True)
hvdata.serve()
whole = sum(1 for _ in dataset)
it = iter(dataset)
for _ in range(behind):
    next(it)
checkpoint = path + str(hvdata.rank())
tf.train.Checkpoint(iterator=it).write(checkpoint)
del it
again = iter(dataset)
tf.train.Checkpoint(iterator=again).read(checkpoint).assert_consumed()
print("STEPS", whole, sum(1 for _ in again))
"""


@pytest.mark.slow
@pytest.mark.parametrize("remainder, behind", [("drop", 3), ("partial", 4), ("pad", 3)])
@pytest.mark.limit(200)
def test_a_checkpoint_behind_steps_that_readers_make_together(tmp_path, remainder, behind):
    """What an earlier run had of them counts as delivered: the record is that of a run that was not interrupted."""
    file = tmp_path / "certificate.json"
    command = (str(tmp_path / "state"), remainder, str(behind))
    job = run_job(TAIL, 3, *command, readers=2, env={"HOROVOD_DATA_CERTIFICATE": str(file)}, timeout=100)
    steps = 3 if remainder == "drop" else 4
    assert job.returncode == 0 and f"STEPS {steps} {steps - behind}" in job.stdout[0], job.describe()
    whole, _, resumed = (json.loads(line) for line in file.read_text().splitlines())
    assert whole["verdict"] == "complete" and whole["rows"] == (18 if remainder == "drop" else 20), whole
    different = {key for key in whole if whole[key] != resumed[key]} - {"epoch"}
    assert different == set(), {key: (whole[key], resumed[key]) for key in different}


SAME = """
import sys
import tensorflow as tf
import horovod_data as hvdata

hvdata.init()
for name, seeds in (("same", [5, 5]), ("another order", [5, 6]), ("other rows", [])):
    def source(context, seeds=seeds):
        reader = context.input_pipeline_id
        rows = tf.data.Dataset.range(23)
        return rows.shuffle(23, seeds[reader]).batch(4) if seeds else rows.map(lambda i: i + 100 * reader).batch(4)
    made = hvdata.distribute_dataset(source, batch="per_rank", remainder="partial", name=name, verify=True)
    if hvdata.is_trainer():
        for rows in made:
            pass
hvdata.serve()
"""


@pytest.mark.slow
@pytest.mark.limit(150)
def test_readers_that_yield_the_same_rows_are_named(tmp_path):
    file = tmp_path / "certificate.json"
    job = run_job(SAME, 2, readers=2, env={"HOROVOD_DATA_CERTIFICATE": str(file)}, timeout=100)
    assert job.returncode == 0, job.describe()
    same, another, other = (json.loads(line) for line in file.read_text().splitlines())
    question = "does each read a part of the data of its own?"
    assert [one["rows"] for one in (same, another, other)] == [46] * 3
    assert same["note"] == f"readers 0 and 1 yielded the same 23 rows in the same order: {question}"
    assert another["note"] == f"readers 0 and 1 yielded the same 23 rows: {question}"
    assert other["note"] == ""
    assert "".join(job.stderr).count(question) == 2, job.describe()


# Rows of one rank only, so that what each rank has had is known without the job.
RANKS = """
import os, sys
import tensorflow as tf
import horovod_data as hvdata

what, path = sys.argv[1:]  # what: "save", "restore" or "whole"
hvdata.init()
numbers = lambda: tf.data.Dataset.range(101).shuffle(20, seed=3).batch(6)
it = iter(hvdata.distribute_dataset(numbers, batch="per_rank", remainder="partial", name="train", verify=True))
checkpoint = tf.train.Checkpoint(iterator=it)
if what == "save":
    for _ in range(3):
        next(it)
    checkpoint.write(path + str(hvdata.rank()))
else:
    if what == "restore" and os.path.exists(f"{path}{hvdata.rank()}.index"):
        checkpoint.read(path + str(hvdata.rank())).assert_consumed()
    for rows in it:
        pass
"""


@pytest.fixture(scope="module")
def whole_record(tmp_path_factory):
    """Of a run of RANKS that nothing interrupted, on one rank."""
    file = tmp_path_factory.mktemp("whole") / "certificate.json"
    job = run_job(RANKS, 1, "whole", "", env={"HOROVOD_DATA_CERTIFICATE": str(file)}, timeout=100)
    assert job.returncode == 0, job.describe()
    return json.loads(file.read_text())


@pytest.mark.slow
@pytest.mark.limit(200)
@pytest.mark.parametrize(
    "ranks, rows, steps",
    [(3, [36, 35, 30], [6, 6, 6]), (2, [42, 41, 18], [7, 7, 3]), (4, [30, 30, 30, 11], [5, 5, 5, 2])],
)
def test_what_each_rank_got_over_a_checkpoint(tmp_path, whole_record, ranks, rows, steps):
    """3 ranks had 3 steps of 6 rows each; then 101 - 54 rows go to these, also to fewer of them, or to one more. The rows and their order are
    those of a run that was never interrupted."""
    file = tmp_path / "certificate.json"
    env = {"HOROVOD_DATA_CERTIFICATE": str(file)}
    job = run_job(RANKS, 3, "save", str(tmp_path / "state"), env=env, timeout=100)
    assert job.returncode == 0, job.describe()
    job = run_job(RANKS, ranks, "restore", str(tmp_path / "state"), env=env, timeout=100)
    assert job.returncode == 0, job.describe()
    record = json.loads(file.read_text().splitlines()[-1])
    assert (record["verdict"], record["rows"], record["ranks"]) == ("complete", 101, ranks), record
    assert (record["rows_per_rank"], record["steps_per_rank"]) == (rows, steps), record
    compared = "verdict", "rows", "elements", "order", "any_order"
    assert [record[what] for what in compared] == [whole_record[what] for what in compared]


READERS = """
import sys
import tensorflow as tf
import horovod_data as hvdata

what, path, batch, schedule = sys.argv[1:]
hvdata.init()

def source(context):
    first = 100 * context.input_pipeline_id
    numbers = tf.data.Dataset.range(first, first + (36, 48)[context.input_pipeline_id]).shuffle(16, seed=7)
    return numbers.batch(12 if batch == "global" else 1)

ds = hvdata.distribute_dataset(source, batch=batch, schedule=schedule, remainder="partial", name="train", verify=True)
hvdata.serve()
it = iter(ds)
checkpoint = tf.train.Checkpoint(iterator=it)
if what == "save":
    for _ in range(4):
        next(it)
    checkpoint.write(path + str(hvdata.rank()))
else:
    if what == "restore":
        checkpoint.read(path + str(hvdata.rank())).assert_consumed()
    for rows in it:
        pass
"""


@pytest.mark.slow
@pytest.mark.limit(300)
@pytest.mark.parametrize("batch, schedule, readers, before, after", [
    ("global", "static", 2, 3, 2), ("per_rank", "static", 2, 3, 2), ("per_rank", "dynamic", 2, 2, 2), ("per_rank", "dynamic", 1, 2, 2),
])  # fmt: skip
def test_a_record_over_a_checkpoint_of_several_readers_or_dynamic(tmp_path, batch, schedule, readers, before, after):
    records = []
    for what, ranks in ("whole", after), ("save", before), ("restore", after):
        file = tmp_path / f"{what}.json"
        job = run_job(
            READERS,
            ranks,
            what,
            str(tmp_path / "state"),
            batch,
            schedule,
            readers=readers,
            env={"HOROVOD_DATA_CERTIFICATE": str(file)},
            timeout=90,
        )
        assert job.returncode == 0, job.describe()
        records.append(json.loads(file.read_text().splitlines()[-1]))
    whole, saved, resumed = records
    assert (whole["verdict"], whole["rows"]) == ("complete", 84 if readers == 2 else 36), whole
    assert saved["verdict"] != "complete" and saved["rows"] < whole["rows"], saved
    compared = ["verdict", "rows", "elements", "any_order"] + ["order"] * (schedule == "static")
    assert [resumed[what] for what in compared] == [whole[what] for what in compared], (whole, resumed)
    had = saved["rows"] if schedule == "dynamic" else 0  # there they count from the restore on
    assert sum(resumed["rows_per_rank"]) + had == whole["rows"], resumed


@pytest.mark.commit
@pytest.mark.limit(100)
def test_the_line_of_rows_that_are_dropped():
    """13 batches of 5 rows for 2 ranks: of each one is left over."""
    job = run_job(
        """
import tensorflow as tf
import horovod_data as hvdata

hvdata.init()
dataset = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(65).batch(5), batch="global", name="train", verify=True)
for _ in range(2):
    for rows in dataset:
        pass
""",
        2,
        timeout=60,
    )
    assert job.returncode == 0, job.describe()
    (line,) = [line for line in job.stderr[0].splitlines() if "channel train, epoch 2:" in line]
    assert re.fullmatch(
        r"horovod_data: \[reader 0 on \S+\] channel train, epoch 2: 52 rows, each delivered once; "
        r'0 lost, 0 twice, 0 altered, 13 dropped \(remainder="drop"\)',
        line,
    ), job.describe()
    assert "each delivered once" not in job.stderr[1], job.describe()


@pytest.mark.limit(150)
def test_a_file_that_is_for_nothing_or_can_not_be_written_is_told(tmp_path):
    """At once, or when the job is over; and neither ends it."""
    job = run_job(PLAIN, 2, "5", env={"HOROVOD_DATA_CERTIFICATE": str(tmp_path / "none")}, timeout=60)
    assert job.returncode == 0, job.describe()
    line = f"no certificate was written to {tmp_path / 'none'} (HOROVOD_DATA_CERTIFICATE): no channel of this job was verified."
    assert "".join(job.stderr).count(line) == 1, job.describe()
    assert not (tmp_path / "none").exists()
    nowhere = tmp_path / "no folder" / "certificate"
    job = run_job(PLAIN, 2, "5", env={"HOROVOD_DATA_CERTIFICATE": str(nowhere), "HOROVOD_DATA_VERIFY": "1"}, timeout=60)
    assert job.returncode == 0, job.describe()
    said = job.stderr[0]
    early = said.find(f"the certificates of this job can't be written to {nowhere}: No such file")
    assert 0 <= early < said.find("epoch 1: 100 rows"), job.describe()
    assert "no certificate was written" not in said


@pytest.mark.limit(100)
def test_a_relative_file_lies_where_the_job_began(tmp_path):
    """Wherever the program goes."""
    (tmp_path / "elsewhere").mkdir()
    job = run_job(
        PLAIN.replace("for epoch", "import os\nos.chdir('elsewhere')\nfor epoch"),
        2,
        "5",
        cwd=tmp_path,
        env={"HOROVOD_DATA_CERTIFICATE": "certificate", "HOROVOD_DATA_VERIFY": "1"},
        timeout=60,
    )
    assert job.returncode == 0, job.describe()
    assert len((tmp_path / "certificate").read_text().splitlines()) == 2
    assert not (tmp_path / "elsewhere" / "certificate").exists()


PLAIN = """
import sys
import tensorflow as tf
import horovod_data as hvdata

hvdata.init()
seed = int(sys.argv[1])
numbers = lambda: tf.data.Dataset.range(100).shuffle(100, seed=seed).batch(20)
dataset = hvdata.distribute_dataset(numbers, batch="global", name="train")
for epoch in range(2):
    for rows in dataset:
        pass
"""


@pytest.mark.commit
@pytest.mark.limit(200)
def test_the_launcher_writes_certificates_of_any_script(tmp_path, capsys):
    """horovod-data-run --certificate FILE; and the command that compares two of them."""
    script = tmp_path / "train.py"
    script.write_text(PLAIN)

    def run(name, ranks, seed):
        file = tmp_path / name
        job = run_launcher(
            "-np", str(ranks), "--certificate", str(file), sys.executable, str(script), str(seed), timeout=100
        )
        assert job.returncode == 0, job.output
        assert job.output.count("100 rows, each delivered once; 0 lost, 0 twice, 0 altered") == 2, job.output
        return str(file)

    first, again, other = run("a.json", 1, 5), run("b.json", 2, 5), run("c.json", 2, 6)
    assert certificate.main([first, again]) == 0
    assert capsys.readouterr().out == (
        "channel train, epoch 1: the same 100 rows in the same order\n"
        "channel train, epoch 2: the same 100 rows in the same order\n"
    )
    assert certificate.main([first, other]) == 1
    assert (
        "channel train, epoch 1: the same 100 rows in another order; the first element that differs"
        in capsys.readouterr().out
    )


LEAVING = """
import tensorflow as tf
import horovod_data as hvdata

hvdata.init()
dataset = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(24).batch(4), batch="global", name="train", verify=True)
hvdata.serve()
for epoch in range(250):
    it = iter(dataset)
    next(it)
for rows in dataset:
    pass
"""


@pytest.mark.limit(200)
def test_an_epoch_that_all_have_left_is_not_complete(tmp_path):
    """Whatever the reader is doing at that moment: a pull that is cancelled looks like the end of the data."""
    file = tmp_path / "certificate.json"
    job = run_job(LEAVING, 2, env={"HOROVOD_DATA_CERTIFICATE": str(file)}, timeout=150)
    assert job.returncode == 0, job.describe()
    *left, last = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(left) == 250 and (last["verdict"], last["rows"]) == ("complete", 24)
    wrong = [record for record in left if record["verdict"] == "complete" and record["rows"] < 24]
    assert not wrong, f"{len(wrong)} of 250: {wrong[0]}"
