# SPDX-License-Identifier: Apache-2.0
"""readers=1: one more process reads, is not in Horovod's world, and leaves with status 0 when the trainers are done."""

import json

import numpy
import pytest
from jobs import run_job
from oracle import deliver

PRELUDE = """
import json, os, sys, time
import numpy as np
import tensorflow as tf
import horovod_data as hvdata

hvdata.init()

def tell(**what):
    print("TOLD " + json.dumps(what), flush=True)

def count(n):
    def generator():
        tell(start=n)
        yield from range(n)
    return tf.data.Dataset.from_generator(generator, output_signature=tf.TensorSpec([], tf.int64))

def reads(make):
    def function():
        assert hvdata.is_reader() and not hvdata.is_trainer(), "called on a trainer"
        return make()
    return function
"""

MODES = (
    PRELUDE
    + """
tell(rank=hvdata.rank(), size=hvdata.size(), reader=hvdata.is_reader(), trainer=hvdata.is_trainer(),
     readers=hvdata.num_readers())
n = int(sys.argv[1])
rows = hvdata.distribute_dataset(reads(lambda: tf.data.Dataset.range(50).batch(12)), batch="global", remainder="partial")
each = hvdata.distribute_dataset(reads(lambda: count(4 * n + 1)), batch="per_rank", remainder="drop", name="each")
loose = hvdata.distribute_dataset(reads(lambda: count(20)), batch="per_rank", schedule="dynamic", prefetch=1)
large = hvdata.distribute_dataset(
    reads(lambda: tf.data.Dataset.range(n).map(lambda i: tf.fill([300_000], i))), batch="per_rank")
assert loose.element_spec == tf.TensorSpec([], tf.int64)
hvdata.serve()
assert hvdata.is_trainer(), "serve() returned on a dedicated reader"
for epoch in range(3):
    a, b = iter(rows), iter(each)
    got = [[next(a).numpy().tolist()], [int(next(b))]]  # interleaved
    got[0] += [x.numpy().tolist() for x in a]
    got[1] += [int(x) for x in b]
    tell(epoch=epoch, rows=got[0], each=got[1], loose=[int(x) for x in loose])
tell(large=[[len(x), int(tf.reduce_min(x)), int(tf.reduce_max(x))] for x in large])
"""
)

KERAS = (
    PRELUDE
    + """
import horovod.tensorflow.keras as hvd

def examples(n):
    x = np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x @ np.float32([1, 2, 3]))).batch(12, drop_remainder=True)

train = hvdata.distribute_dataset(reads(lambda: examples(48)), batch="global")
valid = hvdata.distribute_dataset(reads(lambda: examples(24)), batch="global")
hvdata.serve()
assert (hvd.rank(), hvd.size()) == (hvdata.rank(), hvdata.size())
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)), "mse")
history = model.fit(train, validation_data=valid, epochs=5, verbose=0,
                    callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
tell(size=hvd.size(), loss=history.history["val_loss"], weights=model.get_weights()[0].ravel().tolist())
"""
)

PREDICTS = (
    PRELUDE
    + """
import horovod.tensorflow.keras as hvd

x = np.arange(39, dtype=np.float32).reshape(13, 3) / 39
train = hvdata.distribute_dataset(reads(lambda: tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1))).batch(12, drop_remainder=True)), batch="global")
rows = hvdata.distribute_dataset(reads(lambda: tf.data.Dataset.from_tensor_slices(x).batch(5)), batch="global", remainder="partial", name="rows")
hvdata.serve()
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)), "mse")
for times in range(2):
    model.fit(train, epochs=2, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    got = hvdata.predict(model, rows)
    tell(none=got is None, right=got is not None and bool(np.allclose(got, model.predict_on_batch(x), atol=1e-5)))
"""
)

SAME_SCRIPT = (
    PRELUDE
    + """
ds = hvdata.distribute_dataset(tf.data.Dataset.range(12).batch(12), batch="global")
hvdata.serve()
tell(got=[x.numpy().tolist() for x in ds])
"""
)

LATE = (
    PRELUDE
    + """
first = hvdata.distribute_dataset(reads(lambda: count(2 * int(sys.argv[1]))), batch="per_rank", name="first")
hvdata.serve()
try:
    hvdata.distribute_dataset(None, batch="per_rank", name="late")
except (RuntimeError, ValueError) as error:
    tell(error=str(error))
tell(got=[int(x) for x in first])
"""
)

FAILING = (
    PRELUDE
    + """
def generator():
    yield from range(2 * int(sys.argv[1]))
    raise ValueError("the disk is gone")

ds = hvdata.distribute_dataset(
    reads(lambda: tf.data.Dataset.from_generator(generator, output_signature=tf.TensorSpec([], tf.int64))),
    batch="per_rank", name="failing")
hvdata.serve()
for epoch in 1, 2:
    got = []
    try:
        for x in ds:
            got.append(int(x))
    except tf.errors.InvalidArgumentError as error:
        tell(got=got, error=str(error))
"""
)

GRAPH = (
    PRELUDE
    + """
v1 = tf.compat.v1
with tf.Graph().as_default():
    ds = hvdata.distribute_dataset(reads(lambda: count(3 * int(sys.argv[1]))), batch="per_rank")
    hvdata.serve()
    iterator = v1.data.make_initializable_iterator(ds)
    fetch = iterator.get_next()
    with v1.Session() as session:
        for epoch in range(2):
            session.run(iterator.initializer)
            got = []
            while True:
                try:
                    got.append(int(session.run(fetch)))
                except tf.errors.OutOfRangeError:
                    break
            tell(got=got)
"""
)


def told(job, rank):
    lines = [line for line in job.stdout[rank].splitlines() if line.startswith("TOLD ")]
    return [json.loads(line[5:]) for line in lines]


def run(script, np, *args, readers=1):
    """The last process reads. Returns what each process told, the reader's at the end."""
    job = run_job(script, np, *args, readers=readers, timeout=90)
    assert job.returncode == 0, job.describe()
    return [told(job, rank) for rank in range(np + readers)], job


@pytest.mark.commit("2")
@pytest.mark.limit(120)
@pytest.mark.parametrize("np", [1, 3, 2, 4])
def test_modes_and_roles(np):
    (*trainers, reader), _ = run(MODES, np, str(np))
    assert reader[0] == {"rank": None, "size": None, "reader": True, "trainer": False, "readers": 1}
    assert [line["start"] for line in reader[1:]] == [4 * np + 1, 20] * 3
    rows = [numpy.arange(at, min(at + 12, 50)) for at in range(0, 50, 12)]
    want = [[step.tolist() for step in steps] for steps in deliver(rows, np, "global", remainder="partial")]
    for rank, lines in enumerate(trainers):
        assert lines[0] == {"rank": rank, "size": np, "reader": False, "trainer": True, "readers": 1}
        for epoch in range(3):
            assert lines[1 + epoch]["rows"] == want[rank]
            assert lines[1 + epoch]["each"] == list(range(4 * np + 1))[rank::np][: (4 * np + 1) // np]
        assert lines[-1]["large"] == [[300_000, rank, rank]]
    for epoch in range(3):
        assert sorted(sum((lines[1 + epoch]["loose"] for lines in trainers), [])) == list(range(20))


@pytest.mark.commit
@pytest.mark.limit(120)
@pytest.mark.horovod
def test_keras_fit():
    pytest.importorskip("horovod.tensorflow")
    (*trainers, reader), _ = run(KERAS, 2)
    assert reader == []
    assert [lines[0]["size"] for lines in trainers] == [2, 2]
    assert trainers[0][0]["weights"] == trainers[1][0]["weights"]
    assert trainers[0][0]["loss"][-1] < trainers[0][0]["loss"][0] / 2


@pytest.mark.limit(120)
@pytest.mark.parametrize("readers", [0, 1])
def test_the_same_script_with_and_without(readers):
    lines, _ = run(SAME_SCRIPT, 2, readers=readers)
    assert lines == [[{"got": [list(range(6))]}], [{"got": [list(range(6, 12))]}]] + [[]] * readers


@pytest.mark.limit(120)
@pytest.mark.horovod
def test_predictions_after_training():
    """By a channel that was made before serve(): afterwards the reader takes no new one."""
    pytest.importorskip("horovod.tensorflow")
    (*trainers, _), _ = run(PREDICTS, 2)
    assert trainers == [[{"none": False, "right": True}] * 2, [{"none": True, "right": False}] * 2]


@pytest.mark.limit(120)
def test_a_channel_after_serve_is_refused():
    """At once, and the reader says why; the channels made before go on."""
    (*trainers, _), job = run(LATE, 2, "2")
    for rank, (refusal, rest) in enumerate(trainers):
        assert "serve()" in refusal["error"] and "reader 0 on" in refusal["error"], refusal
        assert rest["got"] == [rank, rank + 2]
    assert job.seconds < 40


@pytest.mark.commit
@pytest.mark.limit(120)
@pytest.mark.usefixtures("verified")
def test_pipeline_errors_reach_every_trainer():
    (*trainers, _), _ = run(FAILING, 2, "2")
    for rank, epochs in enumerate(trainers):
        assert len(epochs) == 2
        for number, epoch in enumerate(epochs, 1):
            assert epoch["got"] == [rank, rank + 2]
            assert "the disk is gone" in epoch["error"] and f"channel failing, epoch {number}, step" in epoch["error"]


@pytest.mark.commit
@pytest.mark.limit(120)
def test_graph_mode():
    (*trainers, _), _ = run(GRAPH, 2, "2")
    assert trainers == [[{"got": [rank, rank + 2, rank + 4]}] * 2 for rank in range(2)]


GRAPH_AGAIN = (
    PRELUDE
    + """
v1 = tf.compat.v1
v1.disable_eager_execution()
def run(first):
    with tf.Graph().as_default():
        ds = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(first, first + 4).batch(4), batch="global", name="train")
        hvdata.serve()
        fetch = v1.data.make_one_shot_iterator(ds).get_next()
        with v1.Session() as session:
            return session.run(fetch).tolist()
tell(got=run(0) + run(100))
"""
)


@pytest.mark.limit(120)
def test_another_dataset_in_a_new_graph_is_ignored_aloud():
    """The reader is in serve(), and can't say it."""
    (*trainers, _), job = run(GRAPH_AGAIN, 2)
    assert trainers == [[{"got": [0, 1] * 2}], [{"got": [2, 3] * 2}]]
    said = [
        line
        for text in job.stderr
        for line in text.splitlines()
        if "channel 'train' exists already, from an earlier graph" in line
    ]
    assert len(said) == 1 and said[0].startswith("horovod_data: [rank 0 on "), job.describe()


@pytest.mark.limit(120)
def test_readers_whose_stderr_is_closed():
    """Their lines are lost, and nothing else: they stand where all ranks make the channel."""
    job = run_job(
        """
import sys
import tensorflow as tf
import horovod_data as hvdata
hvdata.init()
sys.stderr.close()
alike = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(8), batch="per_rank", name="alike")
shared = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(8), batch="per_rank", shard="auto", name="shared")
hvdata.serve()
print(sum(1 for _ in alike), sum(1 for _ in shared), flush=True)
""",
        2,
        readers=2,
        timeout=60,
    )
    assert job.returncode == 0 and job.stdout[:2] == ["8 4\n"] * 2, job.describe()
