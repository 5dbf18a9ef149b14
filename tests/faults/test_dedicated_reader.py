# SPDX-License-Identifier: Apache-2.0
"""Dedicated readers: one or more further processes read.

They are not in Horovod's world, and exit with status 0 after the trainers.
"""

import re
import socket

import pytest
from jobs import run_program

pytestmark = [pytest.mark.limit(120)]
HOST = re.escape(socket.gethostname())

PRELUDE = """
def tell(**what):
    say("TOLD " + json.dumps(what))

def reads(make):
    def function():
        assert hvdata.is_reader() and not hvdata.is_trainer(), "called on a trainer"
        return make()
    return function
"""


def run(body, np, *args):
    """The job, and the output of each process. The last process reads."""
    job = run_program(PRELUDE + body, np, *args, readers=1, timeout=90)
    return job, [job.told("TOLD", rank) for rank in range(np + 1)]


@pytest.mark.horovod
def test_keras_fit_and_predictions_after_it():
    """Predictions come by a channel that was made before serve(), because the reader takes no new channel after it."""
    _, (*trainers, reader) = run("""
import horovod.tensorflow.keras as hvd

def examples(n):
    x = np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x @ np.float32([1, 2, 3]))).batch(12, drop_remainder=True)

x = np.arange(39, dtype=np.float32).reshape(13, 3) / 39
fitted = train(reads(lambda: examples(48)), batch="global")
valid = train(reads(lambda: examples(24)), batch="global", name="valid")
rows = train(reads(lambda: tf.data.Dataset.from_tensor_slices(x).batch(5)), batch="global", remainder="partial", name="rows")
hvdata.serve()
assert (hvd.rank(), hvd.size()) == (hvdata.rank(), hvdata.size())
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)), "mse")
for again in range(2):
    loss = model.fit(fitted, validation_data=valid, epochs=5, verbose=0,
                     callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)]).history["val_loss"]
    got = hvdata.predict(model, rows)
    tell(size=hvd.size(), loss=[loss[0], loss[-1]], weights=model.get_weights()[0].ravel().tolist(), none=got is None,
         right=got is not None and bool(np.allclose(got, model.predict_on_batch(x), atol=1e-5)))
""", 2)  # fmt: skip
    assert reader == []
    for first, second in zip(*trainers):
        assert (first["size"], second["size"]) == (2, 2) and first["weights"] == second["weights"]
        assert (first["none"], first["right"], second["none"]) == (False, True, True)
    before, after = trainers[0][0]["loss"]
    assert after < before / 2


def test_a_channel_after_serve_is_refused():
    """The error comes at once, and names the reader. Channels that were made before go on."""
    job, (*trainers, _) = run("""
first = train(reads(lambda: tf.data.Dataset.range(4)), name="first")
hvdata.serve()
try:
    train(None, name="late")
except (RuntimeError, ValueError) as error:
    tell(error=str(error))
tell(got=[int(x) for x in first])
""", 2)  # fmt: skip
    for rank, (refusal, rest) in enumerate(trainers):
        assert "serve()" in refusal["error"] and "reader 0 on" in refusal["error"], refusal
        assert rest["got"] == [rank, rank + 2]
    assert job.seconds < 40


def test_graph_mode():
    """Another dataset for the same name in a new graph is ignored.

    A trainer logs that, because the reader is in serve().
    """
    job, (*trainers, _) = run("""
v1 = tf.compat.v1
v1.disable_eager_execution()
for first in 0, 100:
    with tf.Graph().as_default():
        ds = train(reads(lambda: tf.data.Dataset.range(first, first + 6)))
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
""", 2)  # fmt: skip
    assert trainers == [[{"got": [rank, rank + 2, rank + 4]}] * 4 for rank in range(2)]
    said = re.findall(
        "^horovod_data: .*channel 'train' exists already, from an earlier graph", "\n".join(job.stderr), re.M
    )
    assert len(said) == 1 and said[0].startswith("horovod_data: [rank 0 on "), job.describe()


def test_readers_whose_stderr_is_closed():
    """Only their lines are lost. They log them where all ranks make the channel."""
    job = run_program("""
sys.stderr.close()
alike = train(lambda: tf.data.Dataset.range(8), name="alike")
shared = train(lambda: tf.data.Dataset.range(8), shard="auto", name="shared")
hvdata.serve()
say(sum(1 for _ in alike), sum(1 for _ in shared))
""", 2, readers=2)  # fmt: skip
    assert job.stdout[:2] == ["8 4\n"] * 2, job.describe()


PIPELINES = {  # and whether two readers that have it are warned
    "lambda: tf.data.Dataset.range(8).map(lambda i: i + 1)": True,
    "lambda context: tf.data.TextLineDataset('/dev/null').concatenate(tf.data.TextLineDataset('/dev/null'))": True,
    "lambda context: tf.data.Dataset.range(8).shard(context.num_input_pipelines, context.input_pipeline_id)": False,
    "lambda: tf.data.Dataset.from_generator(lambda: iter([1]), output_signature=tf.TensorSpec([], tf.int64))": False,
    # To compare these would be slow.
    "lambda: tf.data.Dataset.from_tensor_slices(np.zeros(5_000_000))": False,
    "lambda big=tf.zeros(5_000_000): tf.data.Dataset.range(8).map(lambda i: big[i]).prefetch(1)": False,
    "lambda big=np.zeros(5_000_000): tf.data.Dataset.range(8).map(lambda i: tf.gather(big, i))": False,
    "lambda: tf.data.Dataset.range(8).flat_map(lambda i, big=tf.data.Dataset.from_tensor_slices(tf.zeros(5_000_000)): big)": False,
}


def test_readers_that_read_the_same():
    channels = "\n".join(
        f"datasets.append(train({make}, name='same{number}'))" for number, make in enumerate(PIPELINES)
    )
    script = f"datasets = []\n{channels}\nhvdata.serve()\nfor one in datasets: next(iter(one), None)"
    job = run_program(script, 1, readers=2)
    said = re.findall(
        rf"\[reader 0 on {HOST}, channel same(\d)\] reader 0 on {HOST}, reader 1 on {HOST} have the same pipeline: if they "
        "find the same data too, every element is delivered several times. Let the dataset function take a "
        r"tf\.distribute\.InputContext and shard its files", job.stderr[1])  # fmt: skip
    assert said == [str(number) for number, warns in enumerate(PIPELINES.values()) if warns], job.describe()
    assert "have the same pipeline" not in job.stderr[0] + job.stderr[2], job.describe()


@pytest.mark.commit
def test_an_uncaught_exception_in_a_readers_script_ends_the_job():
    """That of one of two readers, behind its channel and before serve()."""
    job = run_program("""
ds = load(lambda context: range(10))
if os.environ["HVDATA_TEST_RANK"] == "3":
    raise RuntimeError("this reader has had enough")
hvdata.serve()
list(ds)
""", 2, readers=2, status=1)  # fmt: skip
    job.assert_said("this reader has had enough", 3)
