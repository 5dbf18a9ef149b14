# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of one job continued by another, of another size: the same global order, nothing lost, nothing twice."""

import json

import pytest
import tensorflow as tf
from jobs import run_job

pytestmark = pytest.mark.limit(260)

SCRIPT = """
import json, sys
import tensorflow as tf
import horovod_data as hvdata

hvdata.init()
what, folder, batch = sys.argv[1:]
rank = hvdata.rank()

def source():
    numbers = tf.data.Dataset.range(48).shuffle(16, seed=7)
    return numbers.batch(12, drop_remainder=True) if batch == "global" else numbers.batch(2, drop_remainder=True)

ds = hvdata.distribute_dataset(source, batch=batch, prefetch=3)
it = iter(ds)
checkpoint = tf.train.Checkpoint(iterator=it)
if what == "save":
    got = [next(it).numpy().tolist() for _ in range(2)]
    if rank == 0:
        checkpoint.write(folder + "/state")
else:
    if rank == 0:
        checkpoint.read(folder + "/state").assert_consumed()
    # A collective behind the restore, as every Horovod script has one.
    hvdata.scatter(tf.range(hvdata.size()) if rank == 0 else None, dtype=tf.int32)
    got = [x.numpy().tolist() for x in it]
print("GOT " + json.dumps(got))
"""


def _order(job):
    """The job's global order: rank 0's share of step 0, rank 1's, ... then step 1."""
    per_rank = [json.loads(line[4:]) for out in job.stdout for line in out.splitlines() if line.startswith("GOT ")]
    return [row for step in zip(*per_rank) for share in step for row in share]


@pytest.mark.commit("per_rank-3-2")
@pytest.mark.parametrize("batch, before, after", [("global", 2, 4), ("per_rank", 3, 2)])
def test_another_number_of_ranks(tmp_path, batch, before, after):
    whole = [int(x) for x in tf.data.Dataset.range(48).shuffle(16, seed=7)]
    first = run_job(SCRIPT, before, "save", str(tmp_path), batch)
    assert first.returncode == 0, first.describe()
    second = run_job(SCRIPT, after, "restore", str(tmp_path), batch)
    assert second.returncode == 0, second.describe()
    head, tail = _order(first), _order(second)
    assert head == whole[: len(head)] and len(head) == (24 if batch == "global" else 4 * before)
    assert tail == whole[len(head) :][: len(tail)]
    # drop: of per-rank batches the last incomplete group is left out
    assert len(head) + len(tail) > 48 - 2 * after


NUMBERS = "tf.data.Dataset.range(48).shuffle(16, seed=7)"
MIXTURE = (
    "tf.data.Dataset.sample_from_datasets([tf.data.Dataset.range(1000 * k, 1000 * k + 40) for k in range(3)], [0.5, 0.3, 0.2], "
    "seed=5).take(96)"
)


@pytest.mark.parametrize("before, after", [(4, 2), (1, 3)])
def test_a_mixture_on_another_number_of_ranks(tmp_path, before, after):
    """The rest of each source comes in the order of one run without interruption."""
    assert NUMBERS in SCRIPT
    whole = [int(x) for x in eval(MIXTURE)]
    jobs = []
    for ranks, what in (before, "save"), (after, "restore"):
        jobs.append(run_job(SCRIPT.replace(NUMBERS, MIXTURE), ranks, what, str(tmp_path), "global"))
        assert jobs[-1].returncode == 0, jobs[-1].describe()
    got = _order(jobs[0]) + _order(jobs[1])
    assert got == whole and len(_order(jobs[0])) == 24
    for k in range(3):
        assert sum(row // 1000 == k for row in got) == sum(row // 1000 == k for row in whole) > 0


@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_ragged_and_sparse_batches_on_another_number_of_ranks(tmp_path, remainder):
    """Batches that some rank had not taken were saved whole, and are cut for the ranks that there are then."""
    script = SCRIPT.replace("numbers.batch(12, drop_remainder=True)", "numbers.map(parts).ragged_batch(12).map(together)").replace(
        "prefetch=3)", f"prefetch=3, remainder={remainder!r})").replace("def source():", PARTS + "def source():")  # fmt: skip
    script = script.replace("next(it).numpy().tolist()", "plain(next(it))").replace("x.numpy().tolist()", "plain(x)")
    assert script.count("plain(") == 3
    jobs = []
    for what, ranks in ("save", 4), ("restore", 3):
        jobs.append(run_job(script, ranks, what, str(tmp_path), "global", env={"HOROVOD_DATA_VERIFY": "1"}))
        assert jobs[-1].returncode == 0, jobs[-1].describe()
    rows = [list(one) for job in jobs for one in _order(job)]
    whole = [int(x) for x in tf.data.Dataset.range(48).shuffle(16, seed=7)]
    assert rows == [[[i] * (i % 3), [i, 0, i + 1]] for i in whole]


PARTS = """
def parts(i):
    return i, tf.fill([i % 3], i)

def together(i, lines):
    return lines, tf.sparse.from_dense(tf.stack([i, tf.zeros_like(i), i + 1], 1))

def plain(element):
    lines, numbers = element[:2]  # and weights, with padding
    return [list(one) for one in zip(lines.to_list(), tf.sparse.to_dense(numbers).numpy().tolist())]

"""


READERS = """
import json, sys
import tensorflow as tf
import horovod_data as hvdata

hvdata.init()
what, folder, batch, schedule, who = sys.argv[1:]
rank = hvdata.rank()

def source(context):
    first = 100 * context.input_pipeline_id
    numbers = tf.data.Dataset.range(first, first + (36, 48)[context.input_pipeline_id]).shuffle(16, seed=7)
    return numbers.batch(12 if batch == "global" else 1)

ds = hvdata.distribute_dataset(source, batch=batch, schedule=schedule, prefetch=3, remainder="partial")
hvdata.serve()
it = iter(ds)
checkpoint = tf.train.Checkpoint(iterator=it)
mine = rank == 0 if who == "rank 0" else True
state = folder + ("/state" if who == "rank 0" else f"/state{rank}")
together = lambda: hvdata.scatter(tf.range(hvdata.size()) if rank == 0 else None, dtype=tf.int32)
if what == "save":
    got = [next(it).numpy().tolist() for _ in range(4)]
    together()
    if mine:
        checkpoint.write(state)
    together()
else:
    if mine:
        checkpoint.read(state).assert_consumed()
    together()
    got = [x.numpy().tolist() for x in it]
print("GOT " + json.dumps(got))
"""


@pytest.mark.commit("global, another number")
@pytest.mark.parametrize("batch, schedule, before, after, who", [
    ("global", "static", 3, 2, "rank 0"), ("per_rank", "dynamic", 2, 2, "all"),
], ids=["global, another number", "dynamic, the same number"])  # fmt: skip
def test_two_readers(tmp_path, batch, schedule, before, after, who):
    """Nothing is lost and nothing comes twice. Except with dynamic, the rows of each reader come in its order."""
    jobs = []
    for what, ranks in ("save", before), ("restore", after):
        jobs.append(run_job(READERS, ranks, what, str(tmp_path), batch, schedule, who, readers=2))
        assert jobs[-1].returncode == 0, jobs[-1].describe()
    if schedule == "dynamic":
        rows = [row for job in jobs for out in job.stdout for line in out.splitlines() if line.startswith("GOT ")
                for share in json.loads(line[4:]) for row in share]  # fmt: skip
    else:
        rows = _order(jobs[0]) + _order(jobs[1])
    for reader, count in enumerate((36, 48)):
        whole = [int(x) for x in tf.data.Dataset.range(100 * reader, 100 * reader + count).shuffle(16, seed=7)]
        of_reader = [row for row in rows if row // 100 == reader]
        assert (sorted(of_reader) if schedule == "dynamic" else of_reader) == (
            sorted(whole) if schedule == "dynamic" else whole
        )


GRAPH = """
import sys
import tensorflow as tf
import horovod_data as hvdata

v1 = tf.compat.v1
v1.disable_eager_execution()
hvdata.init()
what, folder = sys.argv[1:]

def source():
    numbers = tf.data.Dataset.from_generator(lambda: iter(range(200)), tf.int64, [])
    return numbers.shuffle(20, seed=3).map(lambda i: tf.numpy_function(lambda i: i, [i], tf.int64))

ds = hvdata.distribute_dataset(source() if hvdata.is_reader() else None, batch="per_rank", prefetch=2)
it = v1.data.make_initializable_iterator(ds)
element = it.get_next()
saver = v1.train.Saver([tf.data.experimental.make_saveable_from_iterator(it)])
state = f"{folder}/rank{hvdata.rank()}"

def rest(session):
    got = []
    try:
        while True:
            got.append(int(session.run(element)))
    except tf.errors.OutOfRangeError:
        return got

with v1.Session() as session:
    session.run(it.initializer)
    if what == "save":
        rest(session)
        session.run(it.initializer)
        for _ in range(3): session.run(element)
        saver.save(session, state)
    else:
        saver.restore(session, state)
    print(rest(session), flush=True)
"""


def test_a_dataset_object_of_a_tf1_graph_in_its_second_epoch(tmp_path):
    """Which can't be saved, and is made anew for each epoch, so that its shuffle begins with the same order."""
    saved, restored = (run_job(GRAPH, 2, what, str(tmp_path), timeout=120) for what in ("save", "restore"))
    assert saved.returncode == 0, saved.describe()
    assert restored.returncode == 0, restored.describe()
    assert saved.stdout == restored.stdout and all(out.count(",") == 96 for out in saved.stdout), restored.describe()
    assert "runs the input again up to element" in restored.stderr[0], restored.describe()
