# SPDX-License-Identifier: Apache-2.0
"""A child that is forked in the middle of an epoch can neither use nor harm what it inherits.

This holds for every way to make a child, and for every end of it. The parent goes on and gets every row.
"""

import re

import pytest
from jobs import SOON, program, run_program
from table import everywhere

pytestmark = pytest.mark.limit(230)

SCRIPT = """
mapped, soon = {mapped}, {soon}
width = int(float(os.environ["HVDATA_TEST_KIB"]) * 128)

def make():  # rows that are views of a batch
    return tf.data.Dataset.range(40).map(lambda i: tf.fill([width], i)).batch(1000).unbatch()

def number(row):
    assert np.array_equal(row, np.full([width], row[0]))
    return int(row[0])

@tf.function
def asked(iterator):  # an iterator that knows only its resource, in front of all others
    asked.iterator = iterator
    return next(iterator)

asked(iter(tf.data.Dataset.range(3)))

class Odd(tf.data.Dataset):  # a class of the user's, and an older object than all other datasets
    def __init__(self): super().__init__(tf.data.Dataset.range(1)._variant_tensor)
    def _inputs(self):
        if hasattr(self, "made"): raise ValueError("odd")
        return []
    @property
    def element_spec(self): return tf.TensorSpec([], tf.int64)

odd = Odd()
odd.made = True
ds = train(make)
hvdata.serve()
used = ds.map(lambda x: x, num_parallel_calls=2).prefetch(2) if mapped else ds
it = iter(used)
got = [number(next(it)) for _ in range(3)]
tensor = next(it)  # of memory that all share
got.append(number(tensor))
four = tf.range(4)  # not in the child: an op needs locks that a thread of the pipeline may hold at the fork
audit = hvdata.audit([[1], [2]])
list(audit)

calls = dict(
    init=hvdata.init, rank=hvdata.rank, size=hvdata.size, is_reader=hvdata.is_reader, is_trainer=hvdata.is_trainer,
    num_readers=hvdata.num_readers, stats=hvdata.stats, serve=hvdata.serve, shutdown=hvdata.shutdown,
    scatter=lambda: hvdata.scatter(four), distribute=lambda: hvdata.distribute_dataset(None, batch="global"),
    distribute_fn=lambda: hvdata.distribute_datasets_from_function(None, batch="global"),
    next=lambda: next(it), iter=lambda: iter(used), iter_first=lambda: iter(ds), loop=lambda: [x for x in used],
    get_next=lambda: it.get_next(), optional=lambda: it.get_next_as_optional(), numpy=lambda: next(used.as_numpy_iterator()),
    audit=lambda: hvdata.audit([]), report_of_audit=audit.report,
    save=lambda: tf.train.Checkpoint(it=it).write(f"forked-{{os.getpid()}}"),
)

def child():
    global it, ds, used, tensor
    for name, call in calls.items():
        try:
            call()
            say("NOT RAISED", name)
        except (RuntimeError, tf.errors.FailedPreconditionError) as error:
            if "forked child" not in str(error):
                say("ANOTHER", name, error)
    calls.clear()
    del it, tensor, used, ds
    gc.collect()
    say("through")

def exit_of(pid):
    deadline = time.monotonic() + soon
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return "hangs"

for leave in "_exit", "exit":
    pid = os.fork()
    if pid == 0:
        child()
        os._exit(5) if leave == "_exit" else sys.exit(5)
    say("fork,", leave, exit_of(pid))
gc.freeze()  # as servers do that fork
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join(soon)
say("multiprocessing", process.exitcode)
if process.is_alive():
    process.kill()
now("FAULT")  # all of them
got += [number(x) for x in it]
say("rows", got)
now("WENT ON")
"""


@pytest.mark.commit("True-2-embedded-inline")
@everywhere((2, 0, "inline"), (3, 1, "arena"))
@pytest.mark.parametrize("mapped", [False, True])
def test_a_child_that_is_forked_in_mid_epoch(where, mapped, tried):
    # Python and TensorFlow take seconds of processor time to end a child, and all ranks do it at once.
    job = tried.run(program(SCRIPT.format(mapped=mapped, soon=3 * SOON)), where, timeout=200)
    for rank in range(where.trainers):  # rank 0 may read as well
        lines = job.stdout[rank].splitlines()
        rows = list(range(rank, 40 // where.trainers * where.trainers, where.trainers))
        assert [line for line in lines if line.startswith(("NOT", "ANOTHER"))] == [], job.describe()
        assert lines.count("through") == 3, job.describe()
        assert {"fork, _exit 5", "fork, exit 5", "multiprocessing 0"} <= set(lines), job.describe()
        assert f"rows {rows}" in lines, job.describe()
    # From the end of the last child, whose rank has kept the others waiting.
    begun, over = (max(job.when(word, rank) for rank in range(where.trainers)) for word in ("FAULT", "WENT ON"))
    assert over - begun < SOON, job.describe()


SPAWNED = """
try:
    hvdata.init()
except RuntimeError as error:
    say(error)
    sys.exit(7)

def nothing(): pass
"""


@pytest.mark.parametrize("method, status", [("spawn", 7), ("forkserver", 1)])  # a fork server has a status of its own
def test_a_child_that_imports_the_program(method, status):
    """The program has no main guard. So the child would be a second process of that rank, and MPI would wait for it."""
    body = f"""
process = multiprocessing.get_context("{method}").Process(target=nothing)
process.start()
process.join(60)
say("child", process.exitcode)
"""
    job = run_program(body, 2, init=SPAWNED)
    for out in job.stdout:
        said, exit_code = out.splitlines()
        assert re.fullmatch(
            r"\[rank [01] on \S+\] init\(\) was called by a process that multiprocessing has started: such a process imports "
            r"the program, and runs its top level again\. Put the program's work behind "
            r"`if __name__ == \"__main__\":`\.",
            said,
        ), job.describe()
        assert exit_code == f"child {status}", job.describe()


def test_a_child_whose_parent_waits_for_a_batch(tmp_path):
    """A thread of the parent holds the iterator's lock, and the child has no such thread."""
    job = run_program("""
def source():
    yield from range(2)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.05)
    yield from range(2)

numbers = tf.data.Dataset.from_generator(source, output_signature=tf.TensorSpec([], tf.int64))
iterator = iter(train(lambda: numbers))
got = [int(next(iterator))]
if rank == 1:
    thread = threading.Thread(target=lambda: got.append(int(next(iterator))))
    thread.start()
    time.sleep(1)
    if (child := os.fork()) == 0:
        try:  # the iterator's own op, which no Python guards
            tf.raw_ops.IteratorGetNext(iterator=iterator._iterator_resource, output_types=[tf.int64], output_shapes=[[]])
        except tf.errors.OpError as error:
            say("child:", error.message)
        os._exit(0)
    ended = 0
    for _ in range(300):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        time.sleep(0.1)
    else:
        os.kill(child, 9)
    say("ended:", bool(ended))
    open(sys.argv[1], "w").close()  # only now the parent's thread may have its batch
    thread.join()
else:
    got.append(int(next(iterator)))
say("got:", got)
""", 2, str(tmp_path / "go"))  # fmt: skip
    job.assert_said("ended: True", 1)
    job.assert_said("^child: .*forked", 1)
    assert job.stdout[1].endswith("got: [1, 1]\n"), job.describe()
