# SPDX-License-Identifier: Apache-2.0
"""A process that has too little of something: an error that says of what, or an end, and neither takes long."""

import re
import subprocess
import time

import pytest
from jobs import SOON, run_job, start_job
from table import everywhere

pytestmark = [pytest.mark.limit(150), pytest.mark.usefixtures("verified")]


TRAIN = """
import os, resource, sys, time
import numpy as np
import tensorflow as tf
import horovod_data as hvdata
"""
EPOCH = """
ds = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(40).batch(4), batch="per_rank", name="train")
print(sum(1 for _ in ds), flush=True)
"""


# ---- Files.


@pytest.mark.commit("from mpi4py import MPI")
@pytest.mark.parametrize("before", ["", "from mpi4py import MPI"])
def test_no_more_files(before):
    """MPI hung at 20, and TensorFlow ended the process where MPI ran already."""
    job = run_job(
        TRAIN
        + f"""
{before}
hvdata.init
open_now = len(os.listdir("/proc/self/fd")) - 1
most = open_now + {2 if before else 17}
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
hvdata.init()
"""
        + EPOCH,
        np=2,
        timeout=60,
    )
    assert job.returncode == 1, job.describe()
    said = "".join(job.stderr)
    assert (
        re.search(r"RuntimeError: \[rank [01] on \S+\] This process may open only", said) and "`ulimit -n 1024`" in said
    ), job.describe()


@pytest.mark.commit
def test_few_files_are_enough():
    """With the number of files that init() requires a job can run."""
    job = run_job(
        TRAIN
        + """
hvdata.init
most = len(os.listdir("/proc/self/fd")) - 1 + 36
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
hvdata.init()
"""
        + EPOCH,
        np=2,
        timeout=60,
    )
    assert job.returncode == 0 and job.stdout == ["5\n", "5\n"], job.describe()


SHORT_OF_FILES = (
    TRAIN
    + """
import time
hvdata.init()
short, names = sys.argv[1], sys.argv[2:]
size, width, AT = int(os.environ["HVDATA_TEST_TRAINERS"]), int(float(os.environ["HVDATA_TEST_KIB"]) * 128), 5

def open_all_files():
    most = max(int(number) for number in os.listdir("/proc/self/fd")) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    try:
        while True: os.open("/dev/null", os.O_RDONLY)
    except OSError:  # nor is what others close, who have had one for a moment, to be had again: its number is too high
        resource.setrlimit(resource.RLIMIT_NOFILE, (16, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        print("short", time.monotonic(), flush=True)

def look(number):
    if short == "reader" and number == AT * size: open_all_files()
    return number

def make():
    numbers = tf.data.Dataset.range(40).map(lambda i: tf.ensure_shape(tf.numpy_function(look, [i], tf.int64), []))
    if names:  # each is opened when its turn comes, and closed before the next
        files = numbers.map(lambda i: tf.gather(names, i))
        numbers = files.flat_map(tf.data.TextLineDataset).map(lambda line: tf.strings.to_number(line, tf.int64))
    return numbers.map(lambda i: tf.fill([width], i))

ds = hvdata.distribute_dataset(make, batch="per_rank", name="train", prefetch=2)
hvdata.serve()
for epoch in range(2):
    try:
        for step, x in enumerate(ds):
            assert int(x[0]) == size * step + hvdata.rank(), (epoch, step, x)
            if (epoch, step, str(hvdata.rank())) == (0, AT, short): open_all_files()
        print("epoch of", step + 1, flush=True)
    except tf.errors.OpError as error:
        print("error", " ".join(error.message.split()), flush=True)
"""
)


@everywhere((2, 0, "inline"), (2, 1, "arena"))
@pytest.mark.parametrize("source", ["numbers", "files"])
@pytest.mark.parametrize("short", ["reader", "1"])
def test_no_more_files_in_mid_epoch(short, source, where, tmp_path, tried):
    """A running epoch needs no new files. A pipeline that opens some fails soon, on every rank."""
    files = []
    if source == "files":
        for number in range(40):
            (tmp_path / str(number)).write_text(f"{number}\n")
            files.append(str(tmp_path / str(number)))
    job = tried.run(SHORT_OF_FILES, where, short, *files)
    assert job.returncode == 0, job.describe()
    assert job.seconds_since("short", where.reader if short == "reader" else 1) < SOON, job.describe()
    whole = f"epoch of {40 // where.trainers}"
    place, why = (
        r"error .*\[reader 0 on \S+, channel train, epoch {}, step \d+\] .*",
        "(Too many open files|this process can open no more files)",
    )
    for out in job.stdout[: where.trainers]:
        first, second = (line for line in out.splitlines() if not line.startswith("short"))
        if short == "1":
            assert (first, second) == (whole, whole), job.describe()
        elif source == "numbers":  # a new epoch may want one: TensorFlow's of random numbers
            assert first == whole, job.describe()
            assert second == whole or re.search(place.format(2) + why, second), job.describe()
        else:
            assert re.search(place.format(1) + why, first) and re.search(place.format(2) + why, second), job.describe()


# ---- Threads. RLIMIT_NPROC does not count for root.

NO_THREADS = r"""
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <system_error>
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attr, void* (*start)(void*), void* arg) {
  const char* whose = getenv("NO_MORE_THREADS");
  Dl_info caller;
  if (whose && dladdr(__builtin_return_address(0), &caller)) {
    const char* slash = strrchr(caller.dli_fname, '/');
    if (strstr(slash ? slash : caller.dli_fname, whose)) return EAGAIN;
  }
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  return reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"))(thread, attr, start, arg);
}
// std::thread's way to there, in whatever library that is.
#define START "_ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE"
extern "C" void Start(void* thread, void* state, void (*depend)()) __asm__(START);
extern "C" void Start(void* thread, void* state, void (*depend)()) {
  const char* whose = getenv("NO_MORE_THREADS");
  if (whose && strcmp(whose, "std") == 0) throw std::system_error(EAGAIN, std::generic_category());
  reinterpret_cast<void (*)(void*, void*, void (*)())>(dlsym(RTLD_NEXT, START))(thread, state, depend);
}
"""


@pytest.fixture(scope="module")
def no_threads(tmp_path_factory):
    """In a process that sets NO_MORE_THREADS programs and libraries whose file's name has that in it get no threads; "std": nor std::thread."""
    folder = tmp_path_factory.mktemp("threads")
    (folder / "no_threads.cc").write_text(NO_THREADS)
    subprocess.run(
        ["c++", "-w", "-shared", "-fPIC", "-o", folder / "no_threads.so", folder / "no_threads.cc", "-ldl"], check=True
    )
    return {"LD_PRELOAD": str(folder / "no_threads.so")}


def test_no_thread_for_init(no_threads):
    job = run_job(
        TRAIN
        + """
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 1: os.environ["NO_MORE_THREADS"] = "/python"
hvdata.init()
""",
        np=2,
        env=no_threads,
        timeout=60,
    )
    assert job.returncode == 1, job.describe()
    assert "This process can start no more threads (horovod_data init: " in job.stderr[1], job.describe()


@pytest.mark.commit
def test_no_thread_for_communication(no_threads):
    """The one that C++ starts. (Horovod would not survive it.)"""
    job = run_job(
        TRAIN
        + """
sys.modules["horovod"] = None
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 1: os.environ["NO_MORE_THREADS"] = "std"
hvdata.init()
"""
        + EPOCH,
        np=2,
        env=no_threads,
        timeout=60,
    )
    assert job.returncode == 1, job.describe()
    assert "RuntimeError: this process can start no more threads" in job.stderr[1], job.describe()
    assert "terminate called" not in job.stderr[1], job.describe()


def test_no_thread_for_a_channel(no_threads):
    job = run_job(
        TRAIN
        + """
hvdata.init()
if hvdata.is_reader(): os.environ["NO_MORE_THREADS"] = "/python"
"""
        + EPOCH,
        np=2,
        env=no_threads,
        timeout=60,
    )
    assert job.returncode == 1, job.describe()
    assert "This process can start no more threads (horovod_data dealer: " in job.stderr[0], job.describe()


@everywhere((2, 0, "inline"), (3, 1, "message"))
def test_no_thread_for_an_epoch(no_threads, where, tried):
    """Every rank is told, and may go on when there are threads again."""
    job = tried.run(
        TRAIN
        + """
import time
hvdata.init()
size, width = int(os.environ["HVDATA_TEST_TRAINERS"]), int(float(os.environ["HVDATA_TEST_KIB"]) * 128)

def make(epoch):  # called on the reader's thread that begins the epoch
    os.environ.pop("NO_MORE_THREADS", None)
    if epoch == 2: os.environ["NO_MORE_THREADS"] = "std"
    return tf.data.Dataset.range(5 * size).map(lambda i: tf.fill([width], i))

ds = hvdata.distribute_dataset(make, batch="per_rank", name="train")
hvdata.serve()
print(sum(1 for _ in ds))
print("FAULT", time.monotonic())
try:
    next(iter(ds))
except tf.errors.ResourceExhaustedError as error:
    print(" ".join(error.message.split()))
print(sum(1 for _ in ds), flush=True)
""",
        where,
        env=no_threads,
    )
    assert job.returncode == 0, job.describe()
    for rank in range(where.trainers):
        first, _, told, third = job.stdout[rank].splitlines()
        assert (first, third) == ("5", "5"), job.describe()
        assert re.search(
            r"\[reader 0 on \S+, channel train, epoch 2, step \d\] this process can start no more threads", told
        ), job.describe()
        assert job.seconds_since("FAULT", rank) < SOON, job.describe()


# ---- Memory.

SHORT_OF_MEMORY = (
    TRAIN
    + """
hvdata.init()
me, short, kept, kib = hvdata.rank(), int(sys.argv[1]), [], int(sys.argv[3])
ds = hvdata.distribute_dataset(lambda: tf.data.Dataset.from_tensors(tf.zeros([kib << 8])).repeat(), batch="per_rank", name="train")
for step, x in enumerate(ds):
    if step == 5 and me == short:
        used = [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")][0] << 10
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), resource.RLIM_INFINITY))
        print("short", flush=True)
    if step > 5 and me == short:
        kept.append(np.zeros(1 << 17) if sys.argv[2] == "program" else x)
"""
)


@pytest.mark.parametrize("way", ["message", "arena"])
@pytest.mark.parametrize("short", [0, 1])
def test_the_program_is_out_of_address_space(way, short):
    """On the reader, which trains as well, and on another rank. Not even a thread can be had then."""
    with start_job(SHORT_OF_MEMORY, 2, str(short), "program", "256", env={"HOROVOD_DATA_PAYLOAD": way}) as job:
        job.wait_for("short", short)
        begun = time.monotonic()
        assert job.finish(30) != 0, job.describe()
        assert time.monotonic() - begun < SOON, job.describe()
        said = (
            "MemoryError",
            "there is no memory for the",
            "this process can have no more memory",
        )  # whoever wants some first
        assert any(text in job.stderr[short] for text in said), job.describe()


@pytest.mark.parametrize("kib", ["64", "256", "1023", "8192"])
def test_a_batch_finds_no_memory_on_a_trainer(kib):
    """The batch comes as a message, because one in shared memory needs no memory. TensorFlow allocates below 256 KiB. For more its
    allocator with oneDNN tries for ten seconds before it fails."""
    env = {"HOROVOD_DATA_PAYLOAD": "message", "TF_ENABLE_ONEDNN_OPTS": "1"}  # by default it depends on the processor
    with start_job(SHORT_OF_MEMORY, 2, "1", "batches", kib, env=env) as job:
        job.wait_for("short", 1)
        begun = time.monotonic()
        assert job.finish(30) != 0, job.describe()
        assert time.monotonic() - begun < SOON, job.describe()
        said = "there is no memory for the", "this process can have no more memory"  # nor for anything beside a batch
        assert "rank 1 on " in job.stderr[1] and any(text in job.stderr[1] for text in said), job.describe()


# There is room for threads, but not for another tensor of that size.
LIMITED = """
used = [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")][0] << 10
if hvdata.rank() == 0: resource.setrlimit(resource.RLIMIT_AS, (used + (128 << 20), resource.RLIM_INFINITY))
"""


def test_the_reader_finds_no_memory_to_pad_with():
    job = run_job(
        TRAIN
        + """
hvdata.init()
wide = tf.zeros([1, 64 << 20])
ds = hvdata.distribute_dataset(lambda: tf.data.Dataset.from_tensors(wide), batch="global", remainder="pad", name="train")
"""
        + LIMITED
        + """
try:
    for x in ds: pass
except tf.errors.ResourceExhaustedError as error:
    print("this process can have no more memory" in error.message and "[reader 0 on " in error.message, flush=True)
""",
        np=2,
        env={"HOROVOD_DATA_PAYLOAD": "message"},
        timeout=60,
    )
    assert job.returncode == 0 and job.stdout == ["True\n", "True\n"], job.describe()


def test_no_memory_for_strings_to_gather():
    """They are encoded on their way. All ranks hear of it, and the next call is as any."""
    job = run_job(
        TRAIN
        + """
hvdata.init()
text = tf.fill([1], tf.strings.join(["x" * (1 << 20)] * 256) if hvdata.rank() == 0 else "y")
"""
        + LIMITED
        + """
try:
    hvdata.gather(text, root=1)
except tf.errors.InvalidArgumentError as error:
    print("[rank 0 on " in error.message and "this process can have no more memory" in error.message)
print(len(hvdata.gather(tf.constant([b"a"]), root=0)), flush=True)
""",
        np=2,
        env={"HOROVOD_DATA_PAYLOAD": "message"},
        timeout=60,
    )
    assert job.returncode == 0 and job.stdout == ["True\n2\n", "True\n0\n"], job.describe()


# ---- Time.


def test_times_that_make_no_sense():
    job = run_job(
        TRAIN
        + """
for name, texts in {"STALL_SECONDS": ["0", "1e-9", "inf", "nan"], "TIMEOUT": ["inf", "nan", "-1"]}.items():
    for text in texts:
        os.environ["HOROVOD_DATA_" + name] = text
        try:
            hvdata.init()
            print("took", text)
        except ValueError as error:
            assert f"HOROVOD_DATA_{name}='{text}' is not a time in seconds of 0" in str(error), error
    del os.environ["HOROVOD_DATA_" + name]
print("refused", flush=True)
""",
        np=1,
        timeout=60,
    )
    assert job.stdout == ["refused\n"] and job.returncode == 0, job.describe()


@pytest.mark.parametrize("way", ["message", "auto"])
def test_times_that_mean_never(way):
    """A reader that waits for a slow trainer, then, must sleep: its dealer's thread. (Horovod's own waits in MPI, which spins.)"""
    job = run_job(
        TRAIN
        + """
import threading
hvdata.init()

def dealers():
    for thread in threading.enumerate():
        if thread.name == "horovod_data dealer train":
            with open(f"/proc/self/task/{thread.native_id}/stat") as stat:
                user, system = stat.read().rsplit(")", 1)[1].split()[11:13]
            return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

ds = hvdata.distribute_dataset(lambda: tf.data.Dataset.range(40).batch(4), batch="per_rank", name="train", prefetch=1)
for step, x in enumerate(ds):
    if step == 1 and hvdata.rank() == 1:
        time.sleep(3)
    if step == 1 and hvdata.rank() == 0:
        began = dealers()
        time.sleep(2)
        busy = dealers() - began
        assert busy < 1, busy
print(step, flush=True)
""",
        np=2,
        timeout=60,
        env={"HOROVOD_DATA_STALL_SECONDS": "1e10", "HOROVOD_DATA_TIMEOUT": "1e10", "HOROVOD_DATA_PAYLOAD": way},
    )
    assert job.returncode == 0 and job.stdout == ["4\n", "4\n"], job.describe()
    assert "has waited" not in "".join(job.stderr), job.describe()


def test_a_time_limit_that_nothing_can_keep():
    job = run_job(
        TRAIN
        + """
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
hvdata.init()
def slow(i): time.sleep(2); return i
make = lambda: tf.data.Dataset.range(40).map(lambda i: tf.numpy_function(slow, [i], tf.int64))
for x in hvdata.distribute_dataset(make, batch="per_rank", name="train"): pass
""",
        np=2,
        timeout=60,
        env={"HOROVOD_DATA_TIMEOUT": "1e-9"},
    )
    assert job.returncode == 1, job.describe()
    said = "".join(job.stderr)
    assert (
        "raise the limit with HOROVOD_DATA_TIMEOUT" in said
        or "have called horovod_data.init()" in said
        or "have come through horovod_data.init()" in said
        or "the limit is HOROVOD_DATA_TIMEOUT" in said
    ), job.describe()


# Rank 1 saves what rank 0 has read; both have taken one of the batches.
SAVES = """
import os, sys, time
import tensorflow as tf
import horovod_data as hvdata

hvdata.init()
folder = sys.argv[1]
dataset = tf.data.Dataset.range(64).map(lambda i: tf.zeros([16 << 20], tf.uint8))
iterator = iter(hvdata.distribute_dataset(dataset, batch="per_rank", prefetch=4, name="train"))
next(iterator)

def mib_of(key):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) >> 10 for line in status if line.startswith(key + ":"))

def say(what):
    open(os.path.join(folder, what), "w").close()

def hear(what):
    while not os.path.exists(os.path.join(folder, what)):
        time.sleep(0.01)

if hvdata.rank() == 0:
    hear("taken")
    while hvdata.stats()["train/untaken"] < 4:  # the window fills
        time.sleep(0.05)
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")  # VmHWM
    before = mib_of("VmRSS")
    say("ready")
    hear("saved")
    print("peak", mib_of("VmHWM") - before, flush=True)
else:
    say("taken")
    hear("ready")
    tf.train.Checkpoint(iterator=iterator).write(os.path.join(folder, "state"))
    say("saved")
"""


def test_a_save_takes_twice_its_size_for_a_moment(tmp_path):
    """Once as the text of the state and once as the message. A text that grew while it was written was in memory three times."""
    job = run_job(SAVES, 2, str(tmp_path), timeout=90)
    assert job.returncode == 0, job.describe()
    state = 16 * (2 * 4 + 1)  # MiB: four steps of two ranks, and one in hand
    assert state < int(job.stdout[0].split()[-1]) < 2.5 * state, job.describe()
