# SPDX-License-Identifier: Apache-2.0
"""Jobs whose ranks can't import TensorFlow or Horovod, or import TensorFlow after init()."""

import pytest
from jobs import run_job

pytestmark = pytest.mark.commit

REFUSING = """
import sys

class Refusing:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("tensorflow", "horovod", "keras"):
            raise ImportError(f"{name} is refused")

sys.meta_path.insert(0, Refusing())
"""

PROGRAM = """
import horovod_data as hvdata

hvdata.init(readers=1)
print("is", hvdata.rank(), hvdata.size(), hvdata.is_reader(), hvdata.is_trainer(), hvdata.num_readers(), flush=True)
print("counts", hvdata.stats()["mpi_messages_sent"] >= 0, "reports", hvdata.report() is not None, flush=True)
for name in sorted(set(hvdata.__all__) - set(vars(hvdata))):
    try:
        getattr(hvdata, name)
    except ImportError as error:
        print(name, error, flush=True)
hvdata.shutdown()
hvdata.shutdown()
maps = open("/proc/self/maps").read()
print("loaded", "_core.so" in maps, "_tf.so" in maps, "libtensorflow" in maps, "tensorflow" in sys.modules, flush=True)
"""
WITH_TENSORFLOW = {
    "audit",
    "callbacks",
    "distribute_dataset",
    "distribute_datasets_from_function",
    "even_batches",
    "gather",
    "predict",
    "scatter",
}


def test_a_job_whose_ranks_have_no_tensorflow():
    job = run_job(REFUSING + PROGRAM, 2)
    assert job.returncode == 0, job.describe()
    for rank, who in enumerate(["0 1 False True 1", "None None True False 1"]):
        said = job.stdout[rank].splitlines()
        assert said[0] == f"is {who}" and said[2] == "counts True reports True", job.describe()
        assert said[-1] == "loaded True False False False", job.describe()
        assert {line.split()[0] for line in said[3:-1]} == WITH_TENSORFLOW, job.describe()
        for line in said[3:-1]:
            assert "can't import it (tensorflow is refused). Run `pip install tensorflow-cpu`" in line, job.describe()


def test_a_rank_that_exits_without_shutdown():
    job = run_job(REFUSING + "import horovod_data\nhorovod_data.init()\nprint('end', flush=True)", 2)
    assert job.returncode == 0 and job.stdout == ["end\n"] * 2, job.describe()


LATE = """
import os
import horovod_data as hvdata

hvdata.init()
import tensorflow as tf
from tensorflow.python.eager import context

loader = hvdata.loader(lambda epoch: range(4), batch="per_rank")
print("loaded", [x.item() for x in loader], "devices", context.context()._initialized, flush=True)
iterator = iter(hvdata.distribute_dataset(lambda: tf.data.Dataset.range(8), batch="per_rank"))
print("got", int(next(iterator)), flush=True)
if hvdata.rank() == 0:
    if os.fork() == 0:
        try:
            next(iterator)
        except tf.errors.FailedPreconditionError as error:
            print("child:", error, flush=True)
        os._exit(0)
    os.wait()
print("rest", [int(x) for x in iterator], flush=True)
"""


def test_tensorflow_is_imported_after_init():
    """The job is one without Horovod. Forked children are protected as in other jobs."""
    job = run_job(LATE, 2)
    assert job.returncode == 0, job.describe()
    for rank in range(2):  # a source in Python leaves the devices to other processes
        job.assert_said(rf"^loaded \[{rank}, {rank + 2}\] devices False$", rank)
    job.assert_said(r"^got 0$", 0)
    job.assert_said(r"^child: .*was used in a forked child", 0)
    job.assert_said(r"^rest \[2, 4, 6\]$", 0)
    job.assert_said(r"^rest \[3, 5, 7\]$", 1)


MIXED = """
import os, sys
if os.environ["HVDATA_TEST_RANK"] == "1":
    import horovod.tensorflow
import horovod_data as hvdata
try:
    hvdata.init()
except RuntimeError as error:
    print(error, flush=True)
"""


@pytest.mark.horovod
def test_ranks_that_have_imported_horovod_and_ranks_that_have_not():
    """init() refuses. Otherwise the rank with Horovod would wait for the other rank in Horovod's start."""
    job = run_job(MIXED, 2)
    job.assert_said(
        r"The ranks disagree about Horovod: not imported on rank 0 \(.*\); horovod.tensorflow not initialised on rank 1 .* "
        r"import the same module before init\(\)",
        0,
        1,
    )


LOADER = """
import collections, gc, os
import numpy as np
import horovod_data as hvdata

hvdata.init(readers=int(os.environ["READERS"]))
Pair = collections.namedtuple("Pair", "x y")

def batches():
    assert hvdata.is_reader()
    return [Pair(np.arange(k, k + 6000 * 2, dtype=np.float32), [f"row {i}" for i in range(6000 * 2)]) for k in range(5)]

loader = hvdata.loader(batches, batch="global", remainder="partial", verify=True, name="train")
print("steps", len(loader), loader, flush=True)
hvdata.serve()
kept = []
for epoch in range(2):
    for step, pair in enumerate(loader):
        n = 6000
        assert type(pair).__name__ == "Pair" and pair.x.tolist() == list(range(step + hvdata.rank() * n, step + hvdata.rank() * n + n))
        assert pair.y[0] == f"row {hvdata.rank() * n}" and len(pair.y) == n
        if step == 2:
            state = loader.state_dict()
    kept.append(pair.x[:3])
loader.load_state_dict(state)
print("resumed", [float(pair.x[0]) for pair in loader], flush=True)
pid = os.fork()
if pid == 0:
    try:
        next(iter(loader))
    except RuntimeError as error:
        print("child:", error, flush=True)
    kept.clear()  # releases nothing
    del pair
    gc.collect()
    os._exit(0)
os.waitpid(pid, 0)
try:
    hvdata.distribute_dataset(None, batch="global")
except ImportError as error:
    print("no", error, flush=True)
hvdata.shutdown()
assert [x.tolist() for x in kept] == [[4 + hvdata.rank() * n + i for i in range(3)]] * 2
kept.clear()
try:
    next(iter(loader))
except RuntimeError as error:
    print("ended:", error, flush=True)
import sys
print("tensorflow" in sys.modules, flush=True)
"""


@pytest.mark.parametrize("readers", [0, 1], ids=["embedded", "dedicated"])
def test_a_loader_without_tensorflow(readers):
    """Python batches with texts, two verified epochs, a state, a forked child, and arrays that outlive the job."""
    job = run_job(REFUSING + LOADER, 2 + readers, env={"READERS": str(readers)})
    assert job.returncode == 0, job.describe()
    for rank in range(2):
        said = job.stdout[rank].splitlines()
        assert said[0] == "steps 5 <horovod_data.Loader of channel 'train'>", job.describe()
        assert said[1] == f"resumed {[3.0 + 6000 * rank, 4.0 + 6000 * rank]}", job.describe()
        job.assert_said(r"^child: .*this is a forked child of a process", rank)
        job.assert_said(r"^no .*horovod_data needs TensorFlow for this", rank)
        job.assert_said(r"^ended: horovod_data has been shut down on this rank", rank)
        assert said[-1] == "False", job.describe()


HELD = """
import os
import numpy as np
import horovod_data as hvdata

hvdata.init()
os.held = next(iter(hvdata.loader([np.zeros(4)], batch="per_rank", remainder="partial")))
"""


def test_an_array_lives_until_python_ends():
    """Python clears modules in the reverse order of their import. So the library's names are gone before the array."""
    job = run_job(REFUSING + HELD, 1)
    assert job.returncode == 0 and job.stderr == [""], job.describe()


FED = """
import os, sys

dedicated = os.environ["HVDATA_TEST_RANK"] == "2"
if dedicated:
    sys.meta_path.pop(0)
    import tensorflow as tf
import horovod_data as hvdata

hvdata.init(readers=1)
batches = (lambda: tf.data.Dataset.range(24).batch(4, drop_remainder=True).map(lambda x: {"x": x, "t": tf.strings.as_string(x)}))
loader = hvdata.loader(batches if dedicated else None, batch="global")
hvdata.serve()
for _ in range(2):
    got = [(one["x"].tolist(), one["t"].tolist()) for one in loader]
    assert len(got) == len(loader) == 6 and loader.spec["x"].shape == (2,)
    for step, (x, t) in enumerate(got):
        right = [4 * step + 2 * hvdata.rank() + i for i in range(2)]
        assert (x, t) == (right, [str(i).encode() for i in right]), got
hvdata.shutdown()
print("fed", "tensorflow" in sys.modules, flush=True)
"""


def test_a_tensorflow_reader_feeds_ranks_without_it():
    job = run_job(REFUSING + FED, 3)
    assert job.returncode == 0, job.describe()
    assert job.stdout[:2] == ["fed False\n"] * 2, job.describe()


AUDITED = """
import os
import horovod_data as hvdata

hvdata.init()
import tensorflow as tf

iterator = iter(hvdata.audit(tf.data.Dataset.range(1000).map(lambda i: i).prefetch(2)))
next(iterator)
if os.fork() == 0:
    del iterator  # destroyed, it would wait for its threads, which the child does not have
    print("child ends", flush=True)
    os._exit(0)
os.wait()
"""


def test_tensorflow_is_imported_after_init_for_an_audit():
    """Forked children are protected without a channel, too."""
    job = run_job(AUDITED, 1)
    assert job.returncode == 0, job.describe()
    job.assert_said("^child ends$", 0)


@pytest.mark.horovod
def test_horovod_is_imported_after_init():
    """horovod_data refuses. Horovod's own init() would wait for a dedicated reader that does not call it."""
    program = """
import horovod_data as hvdata
hvdata.init(readers=1)
try:
    import horovod.tensorflow
except ImportError as error:
    print(error, flush=True)
"""
    job = run_job(program, 2)
    assert job.returncode == 0, job.describe()
    job.assert_said(
        r"^\[.*\] Horovod is imported after horovod_data.init\(\), .*\. Import horovod.tensorflow or horovod.torch before init\(\)",
        0,
        1,
    )


WRITES = """
import ctypes
import numpy as np
import horovod_data as hvdata

hvdata.init()
x = next(iter(hvdata.loader([{"x": np.zeros(200000)}] * 2, batch="global")))["x"]
if hvdata.rank() == 1:
    ctypes.memset(x.ctypes.data, 1, 8)  # as torch does for x.add_(1)
hvdata.shutdown()
"""


def test_a_write_into_read_only_memory_is_explained():
    job = run_job(REFUSING + WRITES, 2)
    assert job.returncode != 0
    job.assert_said(
        r"^horovod_data: \[rank 1 on \S+\] this program writes into a batch of loader\(\), .* Pass writable=True", 1
    )
