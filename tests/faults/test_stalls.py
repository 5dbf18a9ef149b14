# SPDX-License-Identifier: Apache-2.0
"""When nothing moves, a waiting rank or the reader reports who waits for whom, since which step, where, and why.

C++ tests have several readers, hosts, and waits of minutes.
"""

import re
import signal
import socket

import pytest
from jobs import program, start_job

pytestmark = [pytest.mark.limit(120), pytest.mark.slow, pytest.mark.usefixtures("verified")]
HOST = re.escape(socket.gethostname())
# A rank that waits asks the reader after two seconds, and logs the answer after three.
SOON = {"HOROVOD_DATA_STALL_SECONDS": "3"}


def test_a_reader_that_is_stopped():
    """The rank hears nothing from the reader, as if the link were silent. With HOROVOD_DATA_TIMEOUT=0 it waits for ever."""
    script = program("""
def halts(i):
    if i == 2: os.kill(os.getpid(), signal.SIGSTOP)
    return i

ds = train(lambda: tf.data.Dataset.range(4).map(lambda i: tf.numpy_function(halts, [i], tf.int64)), prefetch=1)
hvdata.serve()
for i in ds: say("got", int(i))
""")
    why = "has not answered: this reader writes a large state for a checkpoint, its process is stopped, or its link is silent"
    with start_job(script, np=1, readers=1, env={**SOON, "HOROVOD_DATA_TIMEOUT": "0"}) as job:
        job.wait_for("got 1", rank=0)
        job.wait_for(why, rank=0)
        job.kill_rank(1, signal.SIGCONT)
        assert job.finish(60) == 0, job.describe()
        job.assert_said("got 3", 0)


def test_a_rank_that_stops_while_the_others_wait_for_it_elsewhere():
    """The ranks do not ask the reader for the reason, so the reader reports it unasked."""
    script = program("""
ds = train(lambda: tf.data.Dataset.range(1000), prefetch=2)
hvdata.serve()
for step, _ in enumerate(ds):
    if step == 6 - rank: time.sleep(600)
""")
    with start_job(script, np=2, readers=1, env=SOON) as job:
        job.wait_for("nothing has moved", rank=2, timeout=110)
        job.kill_rank(0)
        job.finish(30)
    job.assert_said(
        rf"^horovod_data: \[reader 0 on {HOST}, channel train, epoch 1, step \d\] nothing has moved for \d+ s: reader 0 on "
        rf"{HOST} has dealt \d steps and waits until rank 1 on {HOST} has taken more of them",
        2,
    )


def test_early_stopping_on_one_rank():
    """The stopped rank evaluates, and the others are in the next epoch.

    Each line says who waits, where, and for whom.
    """
    script = program("""
rows = np.ones([96, 1], np.float32)
make = lambda: tf.data.Dataset.from_tensor_slices((rows, rows)).batch(12)
ds, valid = train(make, batch="global"), train(make, batch="global", name="valid")
hvdata.serve()
model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
stops = [tf.keras.callbacks.EarlyStopping("loss", min_delta=1e9)] if rank == 1 else []  # after its second epoch
history = model.fit(ds, epochs=9, verbose=0, callbacks=stops)
say("stopped after", len(history.epoch))
model.evaluate(valid, verbose=0)
""")
    env = {**SOON, "HOROVOD_DATA_TIMEOUT": "12"}
    with start_job(script, np=3, env=env) as job:
        assert job.finish(60) != 0, job.describe()
    job.assert_said("stopped after 2", 1)
    place = rf"rank {{}} on {HOST}, channel {{}}, epoch {{}}, step \d+\]"
    dealt = rf"reader 0 on {HOST} has dealt \d+ steps and waits until rank 1 on {HOST} \(has not begun this epoch\) has taken"
    absent = rf"rank 0 on {HOST}, rank 2 on {HOST} has not begun epoch 1"
    for rank, channel, epoch, why in (0, "train", 3, dealt), (2, "train", 3, dealt), (1, "valid", 1, absent):
        at = place.format(rank, channel, epoch)
        job.assert_said(rf"^horovod_data: \[{at} has waited \d+ s for step \d+ from reader 0 on {HOST}: {why}", rank)
    job.assert_said(r"DeadlineExceededError[^\0]*waited 1\d s for step")
    assert 12 < job.seconds < 60, job.describe()
