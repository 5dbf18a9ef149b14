# SPDX-License-Identifier: Apache-2.0
"""A process runs out of a resource. The job soon gets an error that names the resource, or ends."""

import re

import pytest
from jobs import program, run_program, start_job
from table import everywhere

pytestmark = [pytest.mark.limit(150), pytest.mark.usefixtures("verified")]

SIZES = 'size, width = int(os.environ["HVDATA_TEST_TRAINERS"]), int(float(os.environ["HVDATA_TEST_KIB"]) * 128)\n'
EPOCH = "\nsay(sum(1 for _ in train(lambda: tf.data.Dataset.range(40).batch(4))))\n"


# ---- Files.

LIMITED_FILES = """
import resource
hvdata.init
most = len(os.listdir("/proc/self/fd")) - 1 + {more}
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
hvdata.init()
"""


@pytest.mark.commit("enough", "mpi4py first")
@pytest.mark.parametrize("before, more", [
    pytest.param("", 36, id="enough"),  # the number of files that init() requires
    pytest.param("", 17, id="hvdata first"),  # MPI hung at 20
    pytest.param("from mpi4py import MPI", 2, id="mpi4py first"),  # TensorFlow ended the process
])  # fmt: skip
def test_no_more_files(before, more):
    enough = more == 36
    init = LIMITED_FILES.format(more=more)
    job = run_program(EPOCH, 2, before=before, init=init, status=0 if enough else 1)
    if enough:
        assert job.stdout == ["5\n", "5\n"], job.describe()
    else:
        job.assert_said(r"RuntimeError: \[rank [01] on \S+\] This process may open only(?s:.*)`ulimit -n 1024`")


SHORT_OF_FILES = SIZES + """
import resource
short, names = sys.argv[1], sys.argv[2:]
AT = 5

def open_all_files():
    most = max(int(number) for number in os.listdir("/proc/self/fd")) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    try:
        while True: os.open("/dev/null", os.O_RDONLY)
    except OSError:  # a file that is closed now has too high a number to be opened again
        resource.setrlimit(resource.RLIMIT_NOFILE, (16, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        now("short")

def look(number):
    if short == "reader" and number == AT * size: open_all_files()
    return number

def make():
    numbers = tf.data.Dataset.range(40).map(lambda i: tf.ensure_shape(tf.numpy_function(look, [i], tf.int64), []))
    if names:  # each file is opened when its turn comes, and closed before the next
        files = numbers.map(lambda i: tf.gather(names, i))
        numbers = files.flat_map(tf.data.TextLineDataset).map(lambda line: tf.strings.to_number(line, tf.int64))
    return numbers.map(lambda i: tf.fill([width], i))

ds = train(make, prefetch=2)
hvdata.serve()
for epoch in range(2):
    try:
        for step, x in enumerate(ds):
            assert int(x[0]) == size * step + rank, (epoch, step, x)
            if (epoch, step, str(rank)) == (0, AT, short): open_all_files()
        say("epoch of", step + 1)
    except tf.errors.OpError as error:
        say("error", " ".join(error.message.split()))
"""  # fmt: skip


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
    job = tried.run(program(SHORT_OF_FILES), where, short, *files)
    job.assert_soon("short", where.reader if short == "reader" else 1)
    whole = f"epoch of {40 // where.trainers}"
    error = r"error .*\[reader 0 on \S+, channel train, epoch {}, step \d+\] .*(Too many open files|this process can open no more files)"
    for out in job.stdout[: where.trainers]:
        first, second = (line for line in out.splitlines() if not line.startswith("short"))
        if short == "1":
            assert (first, second) == (whole, whole), job.describe()
        elif source == "numbers":  # a new epoch may need a file: TensorFlow's of random numbers
            assert first == whole, job.describe()
            assert second == whole or re.search(error.format(2), second), job.describe()
        else:
            assert re.search(error.format(1), first) and re.search(error.format(2), second), job.describe()


# ---- Threads. RLIMIT_NPROC does not count for root.

# In a process that sets NO_MORE_THREADS, a program or library whose file's name contains its value gets no threads.
# With the value "std" std::thread gets none either.
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
// std::thread's function that starts it, in whatever library that is.
#define START "_ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE"
extern "C" void Start(void* thread, void* state, void (*depend)()) __asm__(START);
extern "C" void Start(void* thread, void* state, void (*depend)()) {
  const char* whose = getenv("NO_MORE_THREADS");
  if (whose && strcmp(whose, "std") == 0) throw std::system_error(EAGAIN, std::generic_category());
  reinterpret_cast<void (*)(void*, void*, void (*)())>(dlsym(RTLD_NEXT, START))(thread, state, depend);
}
"""
MORE_THREADS_ARE_REFUSED = r"his process can start no more threads"


@pytest.mark.commit("communication")
@pytest.mark.parametrize("place, whose, who, said", [
    pytest.param("before init", "/python", 1, r" \(horovod_data init: ", id="init"),
    # The thread that C++ starts. Horovod would not survive this.
    pytest.param("before init", "std", 1, "", id="communication"),
    pytest.param("before the channel", "/python", 0, r" \(horovod_data dealer: ", id="dealer"),
])  # fmt: skip
def test_no_thread_for_init(preload, place, whose, who, said):
    """There is no thread for init(), or none for a channel."""
    short = f"if MPI.COMM_WORLD.rank == {who}: os.environ['NO_MORE_THREADS'] = {whose!r}\n"
    before = "from mpi4py import MPI" + "\nsys.modules['horovod'] = None" * (whose == "std")
    init = (short if place == "before init" else "") + "hvdata.init()\n"
    body = short + EPOCH if place != "before init" else ""
    job = run_program(body, 2, before=before, init=init, env=preload(NO_THREADS, "c++"), status=1)
    job.assert_said(MORE_THREADS_ARE_REFUSED + said, who)
    assert "terminate called" not in job.stderr[1], job.describe()


@everywhere((2, 0, "inline"), (3, 1, "message"))
def test_no_thread_for_an_epoch(preload, where, tried):
    """Every rank gets an error. The next epoch is whole if there are threads again."""
    script = program(SIZES + """
def make(epoch):  # called on the reader's thread that begins the epoch
    os.environ.pop("NO_MORE_THREADS", None)
    if epoch == 2: os.environ["NO_MORE_THREADS"] = "std"
    return tf.data.Dataset.range(5 * size).map(lambda i: tf.fill([width], i))

ds = train(make)
hvdata.serve()
say(sum(1 for _ in ds))
now("FAULT")
try:
    next(iter(ds))
except tf.errors.ResourceExhaustedError as error:
    say(" ".join(error.message.split()))
say(sum(1 for _ in ds))
""")  # fmt: skip
    job = tried.run(script, where, env=preload(NO_THREADS, "c++"))
    place = r"\[reader 0 on \S+, channel train, epoch 2, step \d\] t"
    for rank in range(where.trainers):
        first, _, told, third = job.stdout[rank].splitlines()
        assert (first, third) == ("5", "5"), job.describe()
        assert re.search(place + MORE_THREADS_ARE_REFUSED, told), job.describe()
        job.assert_soon("FAULT", rank)


# ---- Memory.

USED = '([int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")][0] << 10)'
SHORT_OF_MEMORY = program(f"""
import resource
short, kept, kib = int(sys.argv[1]), [], int(sys.argv[3])
for step, x in enumerate(train(lambda: tf.data.Dataset.from_tensors(tf.zeros([kib << 8])).repeat())):
    if step == 5 and rank == short:
        resource.setrlimit(resource.RLIMIT_AS, ({USED} + (1 << 20), resource.RLIM_INFINITY))
        say("short")
    if step > 5 and rank == short:
        kept.append(np.zeros(1 << 17) if sys.argv[2] == "program" else x)
""")  # fmt: skip


def out_of_memory(short, keeps, kib, env):
    """A job whose rank `short` keeps memory until there is no more, and ends."""
    with start_job(SHORT_OF_MEMORY, 2, str(short), keeps, kib, env=env) as job:
        job.wait_for("short", short)
        assert job.finish_soon() != 0, job.describe()
        return job


@pytest.mark.parametrize("short, way", [(0, "message"), (1, "message"), (0, "arena"), (1, "arena")])
def test_the_program_is_out_of_address_space(way, short):
    """`short` is the reader, which trains as well, or another rank. There is no memory for a thread either."""
    job = out_of_memory(short, "program", "256", {"HOROVOD_DATA_PAYLOAD": way})
    # The part of the process that needs memory first reports it.
    job.assert_said("MemoryError|there is no memory for the|this process can have no more memory", short)


@pytest.mark.parametrize("kib", ["64", "256", "8192"])
def test_a_batch_finds_no_memory_on_a_trainer(kib):
    """The batch comes as a message, because a batch in shared memory needs no memory.

    TensorFlow allocates below 256 KiB. Above that, the allocator of oneDNN tries for ten seconds before it fails.
    TensorFlow has oneDNN only on some processors.
    """
    job = out_of_memory(1, "batches", kib, {"HOROVOD_DATA_PAYLOAD": "message", "TF_ENABLE_ONEDNN_OPTS": "1"})
    assert "rank 1 on " in job.stderr[1], job.describe()
    job.assert_said("there is no memory for the|this process can have no more memory", 1)


LIMITED = f"""
import resource
def limit():  # to so much that there is room for threads, but not for another large tensor
    if rank == 0: resource.setrlimit(resource.RLIMIT_AS, ({USED} + (128 << 20), resource.RLIM_INFINITY))
"""


@pytest.mark.parametrize("body", [
    pytest.param("""
wide = tf.zeros([1, 64 << 20])
ds = train(lambda: tf.data.Dataset.from_tensors(wide), batch="global", remainder="pad")
limit()
try:
    for x in ds: pass
except tf.errors.ResourceExhaustedError as error:
    say("this process can have no more memory" in error.message and "[reader 0 on " in error.message)
""", id="padding"),
    pytest.param("""
text = tf.fill([1], tf.strings.join(["x" * (1 << 20)] * 256) if rank == 0 else "y")
limit()
try:
    hvdata.gather(text, root=1)
except tf.errors.InvalidArgumentError as error:
    say("[rank 0 on " in error.message and "this process can have no more memory" in error.message)
assert len(hvdata.gather(tf.constant([b"a"]), root=0)) == (0 if rank else 2)
""", id="strings to gather, which are encoded"),
])  # fmt: skip
def test_no_memory_on_one_rank_is_an_error_on_all(body):
    job = run_program(LIMITED + body, 2, env={"HOROVOD_DATA_PAYLOAD": "message"})
    assert job.stdout == ["True\n", "True\n"], job.describe()


def test_a_save_takes_twice_its_size_for_a_moment(tmp_path):
    """A state is in memory as a text and as a message. The test fails if the text is copied while it grows."""
    job = run_program("""
folder = sys.argv[1]
def report(what):
    open(os.path.join(folder, what), "w").close()

def wait_for(what):
    while not os.path.exists(os.path.join(folder, what)):
        time.sleep(0.01)

def mib_of(key):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) >> 10 for line in status if line.startswith(key + ":"))

iterator = iter(train(lambda: tf.data.Dataset.range(64).map(lambda i: tf.zeros([16 << 20], tf.uint8)), prefetch=4))
next(iterator)
if rank == 0:
    wait_for("taken")
    while hvdata.stats()["train/untaken"] < 4:  # the window fills
        time.sleep(0.05)
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")  # VmHWM
    before = mib_of("VmRSS")
    report("ready")
    wait_for("saved")
    say("peak", mib_of("VmHWM") - before)
else:  # saves what rank 0 has read
    report("taken")
    wait_for("ready")
    tf.train.Checkpoint(iterator=iterator).write(os.path.join(folder, "state"))
    report("saved")
""", 2, str(tmp_path))  # fmt: skip
    state = 16 * (2 * 4 + 1)  # MiB: four steps of two ranks, and one in hand
    assert state < int(job.stdout[0].split()[-1]) < 2.5 * state, job.describe()
