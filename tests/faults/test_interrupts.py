# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while a rank waits for data or for others: the wait returns to Python."""

import re

import pytest
from jobs import run_job

pytestmark = [pytest.mark.limit(150), pytest.mark.usefixtures("verified")]

PRELUDE = """
import os, signal, threading, time
import tensorflow as tf
import horovod_data as hvdata

hvdata.init()

def interrupt_after(seconds):
    threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT)).start()

def interrupted(call):
    interrupt_after(1)
    began = time.monotonic()
    try:
        call()
    except (KeyboardInterrupt, RuntimeError) as error:  # TensorFlow may wrap it when an op returns at that moment
        print("interrupted by", repr(error), flush=True)
        assert "KeyboardInterrupt" in repr(error)
    assert time.monotonic() - began < 5, time.monotonic() - began  # what it waits for would come a second later
"""

NEXT = (
    PRELUDE
    + """
def slow():
    yield from range(hvdata.size())
    time.sleep(6)
    yield from range(hvdata.size(), 2 * hvdata.size())

source = tf.data.Dataset.from_generator(slow, output_signature=tf.TensorSpec([], tf.int64))
ds = hvdata.distribute_dataset(source, batch="per_rank")
it = iter(ds)
print("got", int(next(it)))
if hvdata.rank() == hvdata.size() - 1:
    interrupted(lambda: next(it))
    del it
else:
    print("rest", [int(x) for x in it], flush=True)
"""
)


# One rank is interrupted, and its program goes on; with the others it makes the same calls as before.
GOES_ON = """
import os, signal, sys, threading, time
import numpy as np
import tensorflow as tf
import horovod_data as hvdata
from horovod_data.channel import create as channels
from horovod_data.native import bindings

hvdata.init()
rank, size = hvdata.rank(), hvdata.size()
who, where, _ = int(sys.argv[1]), *sys.argv[2:]

def press(number=signal.SIGINT):
    os.kill(os.getpid(), number)
    open(sys.argv[3], "w").close()

def too_slow(*_):
    raise TimeoutError("too slow")

def numbers():
    if where in ("dataset function", "exit") and not pressed and rank == who:
        pressed.append(True)
        press() if where == "dataset function" else sys.exit("no files")
    return tf.data.Dataset.range(5 * size).batch(size)

class Keys:
    def __iter__(self):
        yield np.arange(3)
        press()
        yield np.arange(3, 6)

pressed = []
try:
    if where == "reference":
        hvdata.audit([np.arange(3)], key=lambda x: x, reference=Keys() if rank == who else None)
        print("had it", flush=True)
    else:
        if where in ("wait", "predict", "time limit") and rank == who:
            if where == "time limit":  # another handler of the program's
                signal.signal(signal.SIGALRM, too_slow)
            number = signal.SIGALRM if where == "time limit" else signal.SIGINT
            agree = bindings.agree
            def agrees(*args):
                bindings.agree = agree
                threading.Timer(0.5, press, [number]).start()
                return agree(*args)
            bindings.agree = agrees
        elif where in ("wait", "predict", "time limit"):
            while not os.path.exists(sys.argv[3]):
                time.sleep(0.1)
        elif where == "at its end" and rank == who:  # when all have said their words
            create = bindings.channel_create
            def creates(*args, **kwargs):
                bindings.channel_create = create
                create(*args, **kwargs)
                press()
                time.sleep(0.2)
            bindings.channel_create = creates
        elif where == "twice" and rank == who:
            def expects(*args):
                channels.watch.expect = expect
                press()
                press()
                time.sleep(1)
            expect, channels.watch.expect = channels.watch.expect, expects
        if where == "predict":
            print("had", hvdata.predict(lambda x: x, numbers), flush=True)
        else:
            ds = hvdata.distribute_dataset(numbers, batch="global", name="first")
            print("had", sum(len(x) for x in ds), "rows", flush=True)
except BaseException as error:
    if rank == who and isinstance(error, (KeyboardInterrupt, SystemExit, TimeoutError)):
        print("went on", flush=True)
    else:
        print("heard", type(error).__name__, error, flush=True)
ds = hvdata.distribute_dataset(numbers, batch="global", name="second")
print("then had", sum(len(x) for x in ds), "rows", flush=True)
assert hvdata.audit([np.arange(3)], key=lambda x: x, reference=3) is not None
"""


@pytest.mark.parametrize(
    "who, where, others",
    [
        (0, "wait", "had 5 rows"),
        (1, "wait", "had 5 rows"),
        (0, "at its end", "had 5 rows"),
        (0, "twice", "had 5 rows"),
        (1, "at its end", "had 5 rows"),
        (0, "predict", r"heard RuntimeError .*predict\(\) failed: KeyboardInterrupt"),
        (1, "predict", r"heard RuntimeError .*predict\(\) failed: KeyboardInterrupt"),
        (
            0,
            "dataset function",
            r"heard RuntimeError \[rank 0 on \S+\] distribute_dataset\(name='first'\) failed: KeyboardInterrupt",
        ),
        (0, "time limit", "had 5 rows"),
        (1, "time limit", "had 5 rows"),
        (
            0,
            "exit",
            r"heard RuntimeError \[rank 0 on \S+\] distribute_dataset\(name='first'\) failed: SystemExit: 'no files'",
        ),
        (0, "reference", "heard RuntimeError|had it"),  # the signal may come a moment later
    ],
)
def test_a_program_that_goes_on(tmp_path, who, where, others):
    """What it owes the others they get, and nobody waits for it."""
    job = run_job(
        GOES_ON, 2, str(who), where, str(tmp_path / "pressed"), timeout=120, env={"HOROVOD_DATA_TIMEOUT": "50"}
    )
    assert job.returncode == 0, job.describe()
    assert "went on" in job.stdout[who], job.describe()
    assert re.search(others, job.stdout[1 - who]), job.describe()
    assert all("then had 5 rows" in out for out in job.stdout), job.describe()
    assert "Traceback" not in "".join(job.stderr), job.describe()


@pytest.mark.commit("2")
@pytest.mark.parametrize("np", [1, 2])
def test_in_next(np):
    """The interrupted rank lets go of its iterator, the others get the rest."""
    job = run_job(NEXT, np, timeout=60)
    assert "KeyboardInterrupt" in job.stdout[np - 1], job.describe()
    for rank in range(np - 1):
        assert f"rest [{np + rank}]" in job.stdout[rank], job.describe()
    assert job.returncode == 0, job.describe()


# Rank 1 is interrupted where a named channel is made in a graph; the next graph takes up what the others have.
IN_A_GRAPH = """
import os, signal, sys, threading, time
import tensorflow as tf
import horovod_data as hvdata
from horovod_data.native import bindings

tf.compat.v1.disable_eager_execution()
hvdata.init()
agree = bindings.agree
def press():
    os.kill(os.getpid(), signal.SIGINT)
    open(sys.argv[1], "w").close()
def agrees(*args):
    bindings.agree = agree
    threading.Timer(0.5, press).start()
    return agree(*args)
if hvdata.rank() == 1:
    bindings.agree = agrees
rows = []
same = tf.Graph()
for number in range(2):
    graph = same if sys.argv[2] == "the same" else tf.Graph()
    with graph.as_default(), tf.compat.v1.Session() as session:
        if hvdata.rank() == 0 and number == 0:
            while not os.path.exists(sys.argv[1]):
                time.sleep(0.05)
        try:
            ds = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(8).batch(4), batch="global", name="train")
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            continue
        if number:
            element = tf.compat.v1.data.make_one_shot_iterator(ds).get_next()
            rows += [session.run(element).tolist() for _ in range(2)]
print("rows", rows, flush=True)
"""


@pytest.mark.parametrize("graph", ["the same", "another"])
def test_a_named_channel_of_a_graph(tmp_path, graph):
    """The call counts as made: the next one of the name is the second in the same graph, and the first in another one."""
    job = run_job(IN_A_GRAPH, 2, str(tmp_path / "pressed"), graph, timeout=90, env={"HOROVOD_DATA_TIMEOUT": "50"})
    assert job.returncode == 0, job.describe()
    assert "interrupted" in job.stdout[1], job.describe()
    assert ["rows [[0, 1], [4, 5]]" in job.stdout[0], "rows [[2, 3], [6, 7]]" in job.stdout[1]] == [True] * 2, (
        job.describe()
    )


# A dedicated reader is interrupted before the others come, and serves all the same.
READER_SERVES = """
import os, signal, sys, threading, time
import tensorflow as tf
import horovod_data as hvdata
from horovod_data.native import bindings

hvdata.init(readers=1)
if hvdata.is_reader():
    agree = bindings.agree
    def press():
        os.kill(os.getpid(), signal.SIGINT)
        open(sys.argv[1], "w").close()
    def agrees(*args):
        threading.Timer(0.5, press).start()
        return agree(*args)
    bindings.agree = agrees
else:
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.1)
    time.sleep(1)
try:
    ds = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(8), batch="per_rank")
except KeyboardInterrupt:
    print("interrupted", flush=True)
hvdata.serve()
print("rows", [int(x) for x in ds], flush=True)
"""


def test_a_reader_that_serves_all_the_same(tmp_path):
    job = run_job(
        READER_SERVES, 2, str(tmp_path / "pressed"), readers=1, timeout=90, env={"HOROVOD_DATA_TIMEOUT": "50"}
    )
    assert job.returncode == 0, job.describe()
    assert (
        "interrupted" in job.stdout[2] and "rows [0, 2, 4, 6]" in job.stdout[0] and "rows [1, 3, 5, 7]" in job.stdout[1]
    ), job.describe()


# The rank that takes the outputs ends without the call that the others have come to.
NOBODY_TAKES_THEM = """
import sys, time
import tensorflow as tf
import horovod_data as hvdata

hvdata.init()
ds = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(8).batch(2), batch="global", remainder="partial")
if hvdata.rank() == 1:
    try:
        hvdata.predict("no model", ds)
    except TypeError as error:
        print("raised", error, "because of", type(error.__cause__).__name__, flush=True)
"""


def test_what_a_rank_raises_is_not_hidden_by_what_the_others_do():
    job = run_job(NOBODY_TAKES_THEM, 2, timeout=90)
    assert re.search("raised .*not 'no model'.* because of UnavailableError", job.stdout[1]), job.describe()


# Rank 1 leaves the call with an iterator in its frames, without which rank 0's thread does not come to the end of its epoch.
HOLDS_AN_ITERATOR = """
import gc, threading
import tensorflow as tf
import horovod_data as hvdata

hvdata.init()
train = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(80), batch="per_rank", prefetch=2)
predicted = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(4).batch(2), batch="global", remainder="partial")

def fails(x):
    raise ValueError("mine")

def leaves():
    it = iter(train)
    next(it)
    hvdata.predict(fails, predicted)

trains = threading.Thread(target=lambda: print("steps", len(list(train)), flush=True))
try:
    if hvdata.rank() == 1:
        gc.disable()
        leaves()
    else:
        trains.start()
        hvdata.predict(fails, predicted)
except ValueError:
    print("went on", flush=True)
if hvdata.rank() == 0:
    trains.join()
assert hvdata.gather(tf.zeros([1])) is not None
"""


def test_what_a_rank_has_left_keeps_nothing_of_its_program():
    job = run_job(HOLDS_AN_ITERATOR, 2, timeout=90, env={"HOROVOD_DATA_TIMEOUT": "50"})
    assert job.returncode == 0 and "steps 40" in job.stdout[0], job.describe()
    assert all("went on" in out for out in job.stdout), job.describe()
