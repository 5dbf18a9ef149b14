# SPDX-License-Identifier: Apache-2.0
"""A job of another size continues from the checkpoint of a job: same global order, nothing lost, nothing twice.

The certificate of the resumed epoch is that of an epoch without interruption.
"""

import json
from typing import NamedTuple, Optional

import pytest
from jobs import run_program
from oracle import in_order

pytestmark = pytest.mark.limit(260)

SCRIPT = """
what, folder, case = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])

def parts(i):
    return i, tf.fill([i % 3], i)

def together(i, lines):
    return lines, tf.sparse.from_dense(tf.stack([i, tf.zeros_like(i), i + 1], 1))

def of_epoch(make):
    def called(epoch):
        say("CALLED", epoch)
        return make(range(1000 * epoch, 1000 * epoch + 48)).batch(1)
    return called

def plain(share):
    if isinstance(share, tuple) and isinstance(share[0], tf.RaggedTensor):  # of together()
        lines, numbers = share[:2]
        return [list(one) for one in zip(lines.to_list(), tf.sparse.to_dense(numbers).numpy().tolist())]
    if isinstance(share, tuple):  # with weights
        share = tf.boolean_mask(share[0], share[1] > 0)
    return share.numpy().tolist()

def meet():  # a collective behind the restore, as every Horovod script has one
    hvdata.scatter(tf.range(size) if rank == 0 else None, dtype=tf.int32)

make = eval(case["source"])
options = {name: case[name] for name in ("batch", "schedule", "remainder")}
ds = train(make, **options, prefetch=3, verify=True)
whole = train(make, **options, prefetch=3, verify=True, name="whole") if case["epoch"] == 1 and what == "restore" else []
hvdata.serve()
it = iter(ds)
if what == "save":
    for _ in range(case["epoch"] - 1):
        for x in it: pass
        it = iter(ds)
checkpoint = tf.train.Checkpoint(iterator=it)
saves = case["all_save"] or rank == 0
state = f"{folder}/state{rank if case['all_save'] else ''}"
if what == "save":
    got = [plain(next(it)) for _ in range(case["steps"])]
    meet()
    if saves: checkpoint.write(state)
    meet()
else:
    if saves and os.path.exists(state + ".index"): checkpoint.read(state).assert_consumed()
    meet()
    got = [plain(x) for x in it]
say("GOT " + json.dumps(got))
say("WHOLE " + json.dumps([plain(x) for x in whole]))
if what == "restore" and case["epoch"] > 1:
    say("NEXT " + json.dumps([plain(x) for x in ds]))
"""


class Case(NamedTuple):
    source: str
    before: int  # trainers
    after: int
    readers: int = 0
    batch: str = "per_rank"
    schedule: str = "static"
    remainder: str = "partial"
    steps: int = 2  # of each rank, before the save
    all_save: bool = False  # or rank 0 alone
    epoch: int = 1
    counts: Optional[list] = None  # rows and steps of each rank, of the whole epoch


SHUFFLED = "tf.data.Dataset.range(48).shuffle(16, seed=7)"
MIXTURE = """lambda: tf.data.Dataset.sample_from_datasets(
    [tf.data.Dataset.range(1000 * k, 1000 * k + 40) for k in range(3)], [0.5, 0.3, 0.2], seed=5).take(96).batch(12)"""
RAGGED = f"lambda: {SHUFFLED}.map(parts).ragged_batch(12).map(together)"
LONG = "lambda: tf.data.Dataset.range(101).shuffle(20, seed=3).batch(6)"
# Reader 0 yields 36 numbers, reader 1 yields 48 numbers from 100 on.
READERS = """lambda context: tf.data.Dataset.range(100 * context.input_pipeline_id, (36, 148)[context.input_pipeline_id]
    ).shuffle(16, seed=7).batch(%d)"""
# 2 readers have 5 elements each for 3 ranks. Each reader makes one step, and both make two more of what they have left.
TAIL = """lambda context: tf.data.Dataset.range(10).map(lambda i: tf.fill([2], i)).shard(
    context.num_input_pipelines, context.input_pipeline_id)"""
# A window has about 12 batches, so the save is in the middle of one. Rows of 1 to 11 tokens.
EVEN = """lambda context: tf.data.Dataset.range(100 * context.input_pipeline_id, 100 * context.input_pipeline_id + 60).map(
    lambda i: tf.fill([i * 37 % 11 + 1], i)).apply(hvdata.even_batches(tf.size, ranks=3, window=32, max_cost=16)
    ).map(lambda rows: rows[:, 0])"""
OF_EPOCH = "of_epoch(lambda numbers: tf.data.Dataset.range(numbers.start, numbers.stop).shuffle(16, seed=7))"
# Two datasets that can't be saved, so they run again up to the state.
RANDOM = OF_EPOCH[:-1] + ".map(lambda i: i + tf.cast(tf.random.uniform([], maxval=1, dtype=tf.int32), tf.int64)))"
GENERATOR = "of_epoch(lambda numbers: tf.data.Dataset.from_generator(lambda: iter(numbers), output_signature=tf.TensorSpec([], tf.int64)))"

CASES = {
    "global": Case(f"lambda: {SHUFFLED}.batch(12)", 2, 4, batch="global", remainder="drop"),
    "per_rank": Case(f"lambda: {SHUFFLED}.batch(2, drop_remainder=True)", 2, 1, remainder="drop"),
    "mixture": Case(MIXTURE, 1, 3, batch="global"),
    # Batches that some rank had not taken were saved whole, and are cut for the new number of ranks.
    "ragged, drop": Case(RAGGED, 4, 3, batch="global", remainder="drop"),
    "ragged, pad": Case(RAGGED, 4, 3, batch="global", remainder="pad"),
    "to fewer": Case(LONG, 3, 2, steps=3, all_save=True, counts=[[42, 41, 18], [7, 7, 3]]),
    "to as many": Case(LONG, 3, 3, steps=3, all_save=True, counts=[[36, 35, 30], [6, 6, 6]]),
    "to more": Case(LONG, 3, 4, steps=3, all_save=True, counts=[[30, 30, 30, 11], [5, 5, 5, 2]]),
    "two readers, global": Case(READERS % 12, 3, 2, 2, batch="global", steps=4),
    "two readers, per_rank": Case(READERS % 1, 3, 2, 2, steps=4, all_save=True),
    "two readers, dynamic": Case(READERS % 1, 2, 2, 2, schedule="dynamic", steps=4, all_save=True),
    "dynamic": Case(READERS % 1, 2, 2, 1, schedule="dynamic", steps=4, all_save=True),
    "tail, drop": Case(TAIL, 3, 3, 2, remainder="drop", steps=3, all_save=True),
    "tail, partial": Case(TAIL, 3, 3, 2, steps=4, all_save=True),
    "tail, pad": Case(TAIL, 3, 3, 2, remainder="pad", steps=3, all_save=True),
    "even batches": Case(EVEN, 3, 2, all_save=True),
    "two readers, even batches": Case(EVEN, 3, 2, 2, steps=5, all_save=True),
    "epoch 2": Case(OF_EPOCH, 2, 3, steps=4, epoch=2),
    "epoch 2, dedicated": Case(OF_EPOCH, 2, 2, 1, steps=4, epoch=2),
    "epoch 2, random": Case(RANDOM, 2, 2, steps=4, epoch=2),
    "epoch 2, generator": Case(GENERATOR, 3, 2, steps=4, epoch=2),
}
IN_ALL = {"per_rank", "global", "two readers, global", "two readers, dynamic", "ragged, pad", "mixture",
          "two readers, even batches"}  # fmt: skip


@pytest.mark.commit("per_rank")
@pytest.mark.parametrize("name", [
    pytest.param(name, id=name, marks=[] if name in IN_ALL else [pytest.mark.slow]) for name in CASES
])  # fmt: skip
def test_another_job_goes_on(tmp_path, name):
    case = CASES[name]
    jobs, records = [], []
    for what, ranks in ("save", case.before), ("restore", case.after):
        file = tmp_path / f"{what}.json"
        env = {"HOROVOD_DATA_CERTIFICATE": str(file)}
        words = what, str(tmp_path), json.dumps(case._asdict())
        jobs.append(run_program(SCRIPT, ranks, *words, readers=case.readers, env=env))
        records.append({(one["channel"], one["epoch"]): one for one in map(json.loads, file.read_text().splitlines())})
    saved, restored = (job.told("GOT")[:ranks] for job, ranks in zip(jobs, (case.before, case.after)))
    if case.schedule == "dynamic":
        got = sorted(row for shares in saved + restored for share in shares for row in share)
        whole = sorted(row for shares in jobs[1].told("WHOLE") for share in shares for row in share)
        assert got == whole, jobs[1].describe()
    elif case.epoch == 1:
        got, whole = in_order(saved) + in_order(restored), in_order(jobs[1].told("WHOLE"))
        # With two sources the order of turns depends on the number of ranks. The order of each source does not.
        for reader in (0, 1) if "100 *" in case.source else (None,):
            mine = [[row for row in rows if reader is None or row // 100 == reader] for rows in (got, whole)]
            assert mine[0] == mine[1], jobs[1].describe()
    else:
        of_epoch_2(case, jobs, in_order(saved) + in_order(restored))
        assert ("train", 2) in records[1] and ("train", 3) in records[1], "certificates go on with the saved number"
        return
    record, want = records[1]["train", 1], records[1]["whole", 1]
    compared = ["verdict", "rows", "elements", "any_order"] + ["order"] * (case.schedule == "static")
    assert [record[what] for what in compared] == [want[what] for what in compared], (record, want)
    assert record["verdict"] == "complete" and record["ranks"] == case.after, record
    assert case.counts in (None, [record["rows_per_rank"], record["steps_per_rank"]]), record
    before = records[0]["train", 1]
    if any(restored):  # the save was not behind the last step
        assert before["verdict"] != "complete" and before["rows"] < record["rows"], before
    if case.schedule == "dynamic":  # rows per rank are counted from the restore on
        assert sum(record["rows_per_rank"]) + before["rows"] == record["rows"], record


def of_epoch_2(case, jobs, got):
    """A pipeline that depends on the epoch. The second job is given the same number and goes on."""
    assert sorted(got) == list(range(2000, 2048)), jobs[1].describe()
    assert case.source != GENERATOR or got == sorted(got)
    assert sorted(in_order(jobs[1].told("NEXT"))) == list(range(3000, 3048)), jobs[1].describe()
    for job, trainers, epochs in (jobs[0], case.before, [1, 2]), (jobs[1], case.after, [1, 2, 3]):
        reader = trainers if case.readers else 0
        calls = [job.told("CALLED", rank) for rank in range(len(job.stdout))]
        assert calls == [epochs if rank == reader else [] for rank in range(len(job.stdout))], job.describe()


GRAPH = """
v1 = tf.compat.v1
v1.disable_eager_execution()
what, folder = sys.argv[1:]

def source():
    numbers = tf.data.Dataset.from_generator(lambda: iter(range(200)), tf.int64, [])
    return numbers.shuffle(20, seed=3).map(lambda i: tf.numpy_function(lambda i: i, [i], tf.int64))

it = v1.data.make_initializable_iterator(train(source() if hvdata.is_reader() else None, prefetch=2))
element = it.get_next()
saver = v1.train.Saver([tf.data.experimental.make_saveable_from_iterator(it)])
state = f"{folder}/rank{rank}"

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
    say(rest(session))
"""


def test_a_dataset_object_of_a_tf1_graph_in_its_second_epoch(tmp_path):
    """The dataset can't be saved. Each epoch makes it anew, so its shuffle begins with the same order."""
    saved, restored = (run_program(GRAPH, 2, what, str(tmp_path)) for what in ("save", "restore"))
    assert saved.stdout == restored.stdout and all(out.count(",") == 96 for out in saved.stdout), restored.describe()
    restored.assert_said("runs the input again up to element", 0)
    restored.assert_said(r"has run the input again, which took \d+\.\d s", 0)
