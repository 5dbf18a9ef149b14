# SPDX-License-Identifier: Apache-2.0
"""Jobs whose ranks can't import TensorFlow or Horovod, or import TensorFlow after init()."""

import pytest
from jobs import run_program

REFUSING = """
class Refusing:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("tensorflow", "horovod", "keras"):
            raise ImportError(f"{name} is refused")

sys.meta_path.insert(0, Refusing())
"""

NAMES = """
say("is", hvdata.rank(), hvdata.size(), hvdata.is_reader(), hvdata.is_trainer(), hvdata.num_readers())
say("counts", hvdata.stats()["mpi_messages_sent"] >= 0, "reports", hvdata.report() is not None)
for name in sorted(set(hvdata.__all__) - set(vars(hvdata))):
    try:
        getattr(hvdata, name)
    except ImportError as error:
        say(name, error)
hvdata.shutdown()
hvdata.shutdown()
maps = open("/proc/self/maps").read()
say("loaded", "_core.so" in maps, "_tf.so" in maps, "libtensorflow" in maps, "tensorflow" in sys.modules)
"""
WITH_TENSORFLOW = (
    "audit callbacks distribute_dataset distribute_datasets_from_function even_batches gather predict scatter"
)


@pytest.mark.commit
def test_a_job_whose_ranks_have_no_tensorflow():
    job = run_program(NAMES, 1, before=REFUSING, readers=1, tensorflow=False)
    for rank, who in enumerate(["0 1 False True 1", "None None True False 1"]):
        said = job.stdout[rank].splitlines()
        assert said[0] == f"is {who}" and said[2] == "counts True reports True", job.describe()
        assert said[-1] == "loaded True False False False", job.describe()
        assert [line.split()[0] for line in said[3:-1]] == WITH_TENSORFLOW.split(), job.describe()
        for line in said[3:-1]:
            assert "can't import it (tensorflow is refused). Run `pip install tensorflow-cpu`" in line, job.describe()


@pytest.mark.commit
def test_a_rank_that_exits_without_shutdown():
    """An array lives until Python ends. Python clears modules in the reverse order of their import.

    So the library's names are gone before the array.
    """
    job = run_program("os.held = next(iter(load([np.zeros(4)] * size)))", 2, before=REFUSING, tensorflow=False)
    assert job.stderr == ["", ""], job.describe()


LATE = """
import tensorflow as tf
from tensorflow.python.eager import context

say("loaded", [x.item() for x in load(lambda epoch: range(4), name=None)], "devices", context.context()._initialized)
iterator = iter(train(lambda: tf.data.Dataset.range(8)))
say("got", int(next(iterator)))
if rank == 0:
    if os.fork() == 0:
        try:
            next(iterator)
        except tf.errors.FailedPreconditionError as error:
            say("child:", error)
        os._exit(0)
    os.wait()
say("rest", [int(x) for x in iterator])
"""


@pytest.mark.commit
def test_tensorflow_is_imported_after_init():
    """The job is one without Horovod. Forked children are protected as in other jobs."""
    job = run_program(LATE, 2, tensorflow=False)
    for rank in range(2):  # a source in Python leaves the devices to other processes
        job.assert_said(rf"^loaded \[{rank}, {rank + 2}\] devices False$", rank)
    job.assert_said(r"^got 0$", 0)
    job.assert_said(r"^child: .*was used in a forked child", 0)
    job.assert_said(r"^rest \[2, 4, 6\]$", 0)
    job.assert_said(r"^rest \[3, 5, 7\]$", 1)


AUDITED = """
import tensorflow as tf
iterator = iter(hvdata.audit(tf.data.Dataset.range(1000).map(lambda i: i).prefetch(2)))
next(iterator)
if os.fork() == 0:
    del iterator  # destroyed, it would wait for its threads, which the child does not have
    say("child ends")
    os._exit(0)
os.wait()
"""


def test_tensorflow_is_imported_after_init_for_an_audit():
    """Forked children are protected without a channel, too."""
    run_program(AUDITED, 1, tensorflow=False).assert_said("^child ends$", 0)


@pytest.mark.horovod
def test_horovod_is_imported_after_init():
    """horovod_data refuses. Horovod's own init() would wait for a dedicated reader that does not call it."""
    body = """
try:
    import horovod.tensorflow
except ImportError as error:
    say(error)
"""
    job = run_program(body, 1, readers=1, tensorflow=False)
    said = r"^\[.*\] Horovod is imported after horovod_data.init\(\), .*\. Import horovod.tensorflow or horovod.torch before init\(\)"
    job.assert_said(said, 0, 1)


LOADER = """
import collections
Pair = collections.namedtuple("Pair", "x y")
n = 6000

def batches():
    assert hvdata.is_reader()
    return [Pair(np.arange(k, k + n * 2, dtype=np.float32), [f"row {i}" for i in range(n * 2)]) for k in range(5)]

loader = load(batches, batch="global", remainder="partial", verify=True)
say("steps", len(loader), loader)
hvdata.serve()
mine = range(rank * n, rank * n + n)

def in_a_child(i):
    gc.collect()
    return pair.x[0], i

kept = []
for epoch in range(2):
    for step, pair in enumerate(loader):
        assert type(pair).__name__ == "Pair" and pair.x.tolist() == [step + i for i in mine]
        assert pair.y[0] == f"row {mine[0]}" and len(pair.y) == n
        if step == 2:
            state = loader.state_dict()
            with multiprocessing.get_context("fork").Pool(2) as pool:  # as the workers of a DataLoader
                assert pool.map(in_a_child, range(4)) == [(step + mine[0], i) for i in range(4)]
    kept.append(pair.x[:3])
loader.load_state_dict(state)
say("resumed", [float(pair.x[0]) for pair in loader])
if (pid := os.fork()) == 0:
    try:
        next(iter(loader))
    except RuntimeError as error:
        say("child:", error)
    kept.clear()  # releases nothing
    del pair
    gc.collect()
    os._exit(0)
os.waitpid(pid, 0)
hvdata.shutdown()
assert [x.tolist() for x in kept] == [[4 + i for i in mine[:3]]] * 2
kept.clear()
try:
    next(iter(loader))
except RuntimeError as error:
    say("ended:", error)
say("tensorflow" in sys.modules)
"""


@pytest.mark.commit("dedicated")
@pytest.mark.parametrize("readers", [0, 1], ids=["embedded", "dedicated"])
def test_a_loader_without_tensorflow(readers):
    """Python batches with texts, two verified epochs, a state, forked children, and arrays that outlive the job."""
    job = run_program(LOADER, 2, before=REFUSING, readers=readers, tensorflow=False)
    for rank in range(2):
        said = job.stdout[rank].splitlines()
        assert said[0] == "steps 5 <horovod_data.Loader of channel 'train'>", job.describe()
        assert said[1] == f"resumed {[3.0 + 6000 * rank, 4.0 + 6000 * rank]}", job.describe()
        job.assert_said(r"^child: .*this is a forked child of a process", rank)
        job.assert_said(r"^ended: horovod_data has been shut down on this rank", rank)
        assert said[-1] == "False", job.describe()


FED_INIT = """
if dedicated := os.environ["HVDATA_TEST_RANK"] == "2":
    sys.meta_path.pop(0)
    import tensorflow as tf
hvdata.init()
rank = hvdata.rank()
"""
FED = """
batches = (lambda: tf.data.Dataset.range(24).batch(4, drop_remainder=True).map(lambda x: {"x": x, "t": tf.strings.as_string(x)}))
loader = load(batches if dedicated else None, batch="global")
hvdata.serve()
for _ in range(2):
    got = [(one["x"].tolist(), one["t"].tolist()) for one in loader]
    assert len(got) == len(loader) == 6 and loader.spec["x"].shape == (2,)
    for step, (x, t) in enumerate(got):
        right = [4 * step + 2 * rank + i for i in range(2)]
        assert (x, t) == (right, [str(i).encode() for i in right]), got
hvdata.shutdown()
say("fed", "tensorflow" in sys.modules)
"""


@pytest.mark.commit
def test_a_tensorflow_reader_feeds_ranks_without_it():
    job = run_program(FED, 2, before=REFUSING, init=FED_INIT, readers=1, tensorflow=False)
    assert job.stdout[:2] == ["fed False\n"] * 2, job.describe()


WRITES = """
import ctypes
x = next(iter(load([{"x": np.zeros(200000)}] * 2, batch="global")))["x"]
if rank == 1:
    ctypes.memset(x.ctypes.data, 1, 8)  # as torch does for x.add_(1)
hvdata.shutdown()
"""


def test_a_write_into_read_only_memory_is_explained():
    job = run_program(WRITES, 2, before=REFUSING, tensorflow=False, status=None)
    assert job.returncode != 0
    job.assert_said(
        r"^horovod_data: \[rank 1 on \S+\] this program writes into read-only memory, for example into a batch of loader\(\)\. .* Pass writable=True",
        1,
    )
