# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while a rank waits for data or for other ranks: the wait returns to Python, and the program may go on.

tests/mpi/test_predict.py has Ctrl-C in predict().
"""

import re

import pytest
from jobs import run_program

pytestmark = [pytest.mark.limit(150), pytest.mark.usefixtures("verified")]
ENV = {"HOROVOD_DATA_TIMEOUT": "50"}

# press() sends the signal, and the other ranks see it by the file.
PRESS = """
from horovod_data.native import bindings

def press(number=signal.SIGINT):
    os.kill(os.getpid(), number)
    open(sys.argv[1], "w").close()

def wait_for_press():
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.05)

def press_in_agreement(number=signal.SIGINT):  # half a second after the next agreement of all ranks begins
    agree = bindings.agree
    def agrees(*args):
        bindings.agree = agree
        threading.Timer(0.5, press, [number]).start()
        return agree(*args)
    bindings.agree = agrees
"""

# One rank is interrupted, and its program goes on. With the other ranks it makes the same calls as before.
GOES_ON = PRESS + """
from horovod_data.channel import create as channels

who, where = int(sys.argv[2]), sys.argv[3]
mine = rank == who

def too_slow(*_):
    raise TimeoutError("too slow")

def numbers():
    if where in ("dataset function", "exit") and not pressed and mine:
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
        hvdata.audit([np.arange(3)], key=lambda x: x, reference=Keys() if mine else None)
        say("had it")
    else:
        if where in ("wait", "time limit") and mine:
            if where == "time limit":  # another handler of the program's
                signal.signal(signal.SIGALRM, too_slow)
            press_in_agreement(signal.SIGALRM if where == "time limit" else signal.SIGINT)
        elif where in ("wait", "time limit"):
            wait_for_press()
        elif where == "at its end" and mine:  # when all ranks have agreed
            create = bindings.channel_create
            def creates(*args, **kwargs):
                bindings.channel_create = create
                create(*args, **kwargs)
                press()
                time.sleep(0.2)
            bindings.channel_create = creates
        elif where == "twice" and mine:
            def expects(*args):
                channels.watch.expect = expect
                press()
                press()
                time.sleep(1)
            expect, channels.watch.expect = channels.watch.expect, expects
        say("had", sum(len(x) for x in train(numbers, batch="global", name="first")), "rows")
except BaseException as error:
    if mine and isinstance(error, (KeyboardInterrupt, SystemExit, TimeoutError)):
        say("went on")
    else:
        say("heard", type(error).__name__, error)
say("then had", sum(len(x) for x in train(numbers, batch="global", name="second")), "rows")
assert hvdata.audit([np.arange(3)], key=lambda x: x, reference=3) is not None
"""  # fmt: skip
FAILED = r"heard RuntimeError \[rank 0 on \S+\] distribute_dataset\(name='first'\) failed: "


@pytest.mark.parametrize("who, where, others", [
    (0, "wait", "had 5 rows"), (1, "wait", "had 5 rows"), (0, "at its end", "had 5 rows"), (1, "at its end", "had 5 rows"),
    (0, "twice", "had 5 rows"), (0, "time limit", "had 5 rows"), (1, "time limit", "had 5 rows"),
    (0, "dataset function", FAILED + "KeyboardInterrupt"), (0, "exit", FAILED + "SystemExit: 'no files'"),
    (0, "reference", "heard RuntimeError|had it"),  # the signal may come a moment later
])  # fmt: skip
def test_a_program_that_goes_on(tmp_path, who, where, others):
    """The other ranks get their data, or an error, and no rank waits for the interrupted one."""
    job = run_program(GOES_ON, 2, str(tmp_path / "pressed"), str(who), where, env=ENV)
    job.assert_said("went on", who)
    job.assert_said(others, 1 - who)
    job.assert_said("then had 5 rows", 0, 1)
    assert "Traceback" not in "".join(job.stderr), job.describe()


@pytest.mark.commit("2")
@pytest.mark.parametrize("np", [1, 2])
def test_in_next(np):
    """The interrupted rank gives its iterator up, and the others get the rest."""
    job = run_program("""
def slow():
    yield from range(size)
    time.sleep(6)
    yield from range(size, 2 * size)

it = iter(train(tf.data.Dataset.from_generator(slow, output_signature=tf.TensorSpec([], tf.int64))))
say("got", int(next(it)))
if rank == size - 1:
    threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    try:
        next(it)
    except (KeyboardInterrupt, RuntimeError) as error:  # TensorFlow may wrap it when an op returns at that moment
        say("interrupted by", repr(error))
    assert time.monotonic() - began < 5, time.monotonic() - began  # the next element would come a second later
    del it
else:
    say("rest", [int(x) for x in it])
""", np)  # fmt: skip
    job.assert_said("interrupted by .*KeyboardInterrupt", np - 1)
    for rank in range(np - 1):
        job.assert_said(rf"rest \[{np + rank}\]", rank)


@pytest.mark.parametrize("graph", ["the same", "another"])
def test_a_named_channel_of_a_graph(tmp_path, graph):
    """Rank 1 is interrupted where it makes the channel. The call counts as made.

    In the same graph, the next call with this name is the second one. In another graph it is the first one, and joins
    the channel of the other ranks.
    """
    job = run_program(PRESS + """
tf.compat.v1.disable_eager_execution()
if rank == 1:
    press_in_agreement()
rows = []
same = tf.Graph()
for number in range(2):
    with (same if sys.argv[2] == "the same" else tf.Graph()).as_default(), tf.compat.v1.Session() as session:
        if rank == 0 and number == 0:
            wait_for_press()
        try:
            ds = train(lambda: tf.data.Dataset.range(8).batch(4), batch="global")
        except KeyboardInterrupt:
            say("interrupted")
            continue
        if number:
            element = tf.compat.v1.data.make_one_shot_iterator(ds).get_next()
            rows += [session.run(element).tolist() for _ in range(2)]
say("rows", rows)
""", 2, str(tmp_path / "pressed"), graph, env=ENV)  # fmt: skip
    job.assert_said("interrupted", 1)
    for rank in range(2):
        job.assert_said(re.escape(f"rows {[[2 * rank, 2 * rank + 1], [2 * rank + 4, 2 * rank + 5]]}"), rank)


def test_a_reader_that_serves_all_the_same(tmp_path):
    """A dedicated reader is interrupted before the trainers make the call."""
    job = run_program(PRESS + """
if hvdata.is_reader():
    press_in_agreement()
else:
    wait_for_press()
    time.sleep(1)
try:
    ds = train(lambda: tf.data.Dataset.range(8))
except KeyboardInterrupt:
    say("interrupted")
hvdata.serve()
say("rows", [int(x) for x in ds])
""", 2, str(tmp_path / "pressed"), readers=1, env=ENV)  # fmt: skip
    job.assert_said("interrupted", 2)
    for rank in range(2):
        job.assert_said(re.escape(f"rows {list(range(rank, 8, 2))}"), rank)


def test_what_a_rank_raises_is_not_hidden_by_what_the_others_do():
    """The rank that takes the outputs ends without the call that the other rank makes."""
    job = run_program("""
ds = train(lambda: tf.data.Dataset.range(8).batch(2), batch="global", remainder="partial")
if rank == 1:
    try:
        hvdata.predict("no model", ds)
    except TypeError as error:
        say("raised", error, "because of", type(error.__cause__).__name__)
""", 2)  # fmt: skip
    job.assert_said("raised .*not 'no model'.* because of RuntimeError", 1)


def test_what_a_rank_has_left_keeps_nothing_of_its_program():
    """Rank 1 leaves the call by an error whose frames hold an iterator.

    While the iterator lives, rank 0's epoch does not end.
    """
    job = run_program("""
numbers = train(lambda: tf.data.Dataset.range(80), prefetch=2)
predicted = train(lambda: tf.data.Dataset.range(4).batch(2), batch="global", remainder="partial", name="predicted")

def fails(x):
    raise ValueError("mine")

def leaves():
    it = iter(numbers)
    next(it)
    hvdata.predict(fails, predicted)

trains = threading.Thread(target=lambda: say("steps", len(list(numbers))))
try:
    if rank == 1:
        gc.disable()
        leaves()
    else:
        trains.start()
        hvdata.predict(fails, predicted)
except ValueError:
    say("went on")
if rank == 0:
    trains.join()
assert hvdata.gather(tf.zeros([1])) is not None
""", 2, env=ENV)  # fmt: skip
    job.assert_said("steps 40", 0)
    job.assert_said("went on", 0, 1)
