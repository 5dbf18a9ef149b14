# SPDX-License-Identifier: Apache-2.0
"""The table of docs/guarantees.md, "Faults": each fault in verified jobs, on readers and trainers, where rank 0 reads and where
a dedicated reader does, on every way by which batches travel. The jobs' programs are in the folder programs/.

A fault that ends a process meets one kind of reader and one way here, others each; HVDATA_TEST_ALL_FAULTS=1 has each meet all.
"""

import itertools
import os
import re
import socket
import sys
import tempfile
import time
from pathlib import Path

import pytest
from jobs import SOON, run_job, start_job
from launched import start_launcher
from ranks.launch import open_mpi

PROGRAMS = Path(__file__).parent / "programs"
HOST = re.escape(socket.gethostname())
WAYS = {  # KiB of an element, and how it is to travel
    "arena": ("64", {"HOROVOD_DATA_PAYLOAD": "arena"}),
    "message": ("64", {"HOROVOD_DATA_PAYLOAD": "message"}),
    "inline": ("0.0625", {}),
}
ENDS = {  # fault: the job's statuses
    "sys.exit(3)": {3},
    "raise SystemExit(3)": {3},
    "os._exit(0)": {1} if open_mpi() else {0},  # Hydra takes that for an end of the job, without horovod-data-run
    "os._exit(3)": {3},
    "SIGTERM": {143, 15},
    "SIGKILL": {137, 9},
    "memory": {1},
    "closed files": {1},
}
pytestmark = pytest.mark.limit(200)


def some_of_all():
    """(fault, victim, dedicated readers, way, trainers): each fault on both victims, kinds of readers and ways in turn; or all."""
    for number, (fault, victim) in enumerate(itertools.product(ENDS, ("reader", "trainer"))):
        cases = list(itertools.product((0, 1), WAYS))
        if not os.environ.get("HVDATA_TEST_ALL_FAULTS"):
            cases = [((number // 2 + number) % 2, list(WAYS)[number % 3])]
        for readers, way in cases:
            yield pytest.param(fault, victim, readers, way, 2 + number // 4 % 3,
                               id=f"{fault}-{victim}-{'dedicated' if readers else 'embedded'}-{way}")


def shared_names():
    """What has a name in memory and may be ours; Open MPI has its own there."""
    return {path.name for path in Path("/dev/shm").iterdir() if "mpi" not in path.name and "vader" not in path.name}


@pytest.fixture
def place():
    """A folder for a job to run in, and one for its temporary files. (Their names are short: MPI makes sockets in the latter.)"""
    with tempfile.TemporaryDirectory(prefix="hvf-") as folder:
        made = Path(folder, "cwd"), Path(folder, "tmp")
        for one in made:
            one.mkdir()
        yield made


def assert_nothing_left(pids, names, place=()):
    """No process, no shared memory with a name, no file. (What MPI's launcher leaves of its own is MPI's.)"""
    files = [path.name for folder in place for path in folder.iterdir()]
    assert not [name for name in files if not re.match(r"ompi|openmpi|pmix|prte|\.?hydra", name)], files
    deadline = time.monotonic() + SOON
    while (shared_names() - names or any(Path(f"/proc/{pid}").exists() for pid in pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not shared_names() - names
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize("fault, victim, readers, way, trainers", list(some_of_all()))
def test_a_fault_that_ends_the_job(fault, victim, readers, way, trainers, place):
    """Soon, with a status that tells, a line that says who and where, and nothing left of it."""
    names = shared_names()
    kib, env = WAYS[way]
    victim_process = trainers if victim == "reader" and readers else 0 if victim == "reader" else 1
    who = "reader" if victim == "reader" else "1"
    cwd, tmp = place
    with start_job(PROGRAMS / "ends.py", trainers, fault, who, kib, readers=readers, cwd=cwd,
                   env={**env, "HVDATA_TEST_TRAINERS": str(trainers), "TMPDIR": str(tmp)}) as job:
        job.wait_for("FAULT", victim_process, timeout=100)
        began = time.monotonic()
        job.finish(SOON)
        assert time.monotonic() - began < SOON, job.describe()
        pids = [job.pid(rank) for rank in range(trainers + readers)]
    assert job.returncode in ENDS[fault], job.describe()
    assert_nothing_left(pids, names, place)
    said = "".join(job.stderr)
    name = f"reader 0 on {HOST}" if victim_process == trainers else f"rank {victim_process} on {HOST}"
    if fault in ("sys.exit(3)", "raise SystemExit(3)", "memory"):
        if victim == "reader":  # it comes as an error of the pipeline, on every rank
            told = rf"\[reader 0 on {HOST}, channel train, epoch 1, step 5\] (SystemExit: 3|.*MemoryError)"
            assert re.search(told, said), job.describe()
        else:  # the others have no time to say anything
            ends = (rf"horovod_data: \[{name}\] the program ends with status {job.returncode} \(here: channel train, epoch 1, step 6\), "
                    "and the job with it")
            assert len(re.findall(ends, said)) == 1, job.describe()
            assert fault != "memory" or "MemoryError" in job.stderr[1], job.describe()
    elif fault == "closed files":
        assert re.search(rf"the program of {name} has closed file descriptors", said), job.describe()
    elif open_mpi():  # Hydra kills the others before they know
        survivors = "".join(text for rank, text in enumerate(job.stderr) if rank != victim_process)
        assert re.search(rf"horovod_data: \[.* on {HOST}\] {name} \(process \d+\) has died", survivors), job.describe()
        if survivors.count("[rank"):
            assert re.search(r"has died \(here: channel train, epoch 1, step \d+\)", survivors), job.describe()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("readers", [0, 1], ids=["embedded", "dedicated"])
def test_faults_that_the_job_survives(readers, way, place):
    """An exception in the first, a middle and the last step; a rank that leaves early, each once; 5 seconds' stop; two threads on
    two channels; many tiny epochs; the end of Python with iterators alive. Each leaves no thread and no open file behind."""
    names = shared_names()
    trainers, steps = 2 + list(WAYS).index(way), 8
    kib, env = WAYS[way]
    many = ["1000"] if way == "arena" else []
    stopped = "1" if (way == "message") == bool(readers) else "reader"
    cwd, tmp = place
    job = run_job(PROGRAMS / "survives.py", trainers, kib, stopped, *many, readers=readers, timeout=120, cwd=cwd,
                  env={**env, "HVDATA_TEST_TRAINERS": str(trainers), "TMPDIR": str(tmp)})
    assert job.returncode == 0, job.describe()
    assert_nothing_left([job.pid(rank) for rank in range(trainers + readers)], names, place)
    for rank in range(trainers):
        lines = {line.split()[0] + line.split()[1] * (line.split()[0] in ("FAILED", "BROKE")): line
                 for line in job.stdout[rank].splitlines()}
        for epoch, step in (1, 0), (2, steps // 2), (3, steps - 1):
            assert re.fullmatch(rf"FAILED {epoch} {step} .*\[reader 0 on {HOST}, channel train, epoch {epoch}, step {step}\] "
                                "ValueError: no such row.*", lines[f"FAILED{epoch}"]), job.describe()
        for breaker in range(trainers):
            assert lines[f"BROKE{4 + breaker}"].split() == ["BROKE", str(4 + breaker), "2" if breaker == rank else str(steps)]
        _, came, seconds = lines["STOPPED"].split()
        assert int(came) == steps and 4.5 < float(seconds) < 5 + SOON, job.describe()
        whole = [(steps, "")] * 2
        assert lines["THREADS"] == f"THREADS {whole} {whole}", job.describe()
        assert lines["TINY"] == f"TINY {1000 if many else 20}", job.describe()
        assert lines["LEAVES"] == f"LEAVES {[rank, rank]}", job.describe()
        kept = [line for line in job.stdout[rank].splitlines() if line.startswith("KEPT")]
        assert len(kept) == 3 + trainers + 3 and all(line.endswith("nothing") for line in kept), job.describe()


@pytest.mark.parametrize("launcher", ["mpirun", "horovod-data-run"])
@pytest.mark.parametrize("before, end", [("", "os._exit(0)"), ("", "sys.exit(0)"), ("mpi4py", "sys.exit(0)")])
def test_a_rank_that_ends_before_init(before, end, launcher):
    """MPI waits for it for ever."""
    command = [str(PROGRAMS / "before_init.py"), before, end]
    if launcher == "mpirun":
        with start_job(PROGRAMS / "before_init.py", 3, before, end) as job:
            job.wait_for("LEAVES", 1)
            began = time.monotonic()
            status = job.finish(SOON + 30)
            said = "".join(job.stderr)
    else:
        with start_launcher("-np", "3", sys.executable, *command) as job:
            job.wait_for("LEAVES")
            began = time.monotonic()
            status = job.finish(SOON + 30)
            said = job.output
    assert status == 1 and time.monotonic() - began < SOON + 30, said
    how = "has left, its process is gone" if not before else "has come to the end of its program"
    if before or "without calling" not in said:  # where the others had begun with MPI Open MPI's mpirun is the first to know
        assert re.search(rf"\[rank [02] on {HOST}\] init\(\) waits for a rank that will not come: rank 1 {how}", said), said
    assert "came through init()" not in said


def test_the_time_limit_holds_in_mpi_init():
    """Of a rank that is late nobody can know that it will not come."""
    job = run_job("""
import os, time
if os.environ["HVDATA_TEST_RANK"] == "1":
    time.sleep(600)
import horovod_data as hvdata
hvdata.init()
""", np=2, timeout=100, env={"HOROVOD_DATA_STALL_SECONDS": "1", "HOROVOD_DATA_TIMEOUT": "3"})
    assert job.returncode == 1, job.describe()
    missing = "not all of the 2 processes have called horovod_data.init()"
    assert re.search(rf"horovod_data: \[rank 0 on {HOST}\] waiting in init\(\) for \d s: {re.escape(missing)}", job.stderr[0])
    assert re.search(rf"\[rank 0 on {HOST}\] After \d+ s {re.escape(missing)}", job.stderr[0]), job.describe()


@pytest.mark.parametrize("trainers, readers", [(1, 0), (2, 0), (2, 1)])
def test_fit_again_after_an_interrupt(trainers, readers):
    job = run_job(PROGRAMS / "interrupted_fit.py", trainers, readers=readers, timeout=120,
                  env={"HVDATA_TEST_TRAINERS": str(trainers)})
    assert job.returncode == 0, job.describe()
    for rank in range(trainers):
        fit, again = (line for line in job.stdout[rank].splitlines() if line.startswith(("FIT", "AGAIN")))
        assert fit == ("FIT interrupted" if rank == trainers - 1 else "FIT to its end"), job.describe()
        assert again == "AGAIN 20", job.describe()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a /dev/shm")
@pytest.mark.parametrize("readers", [0, 1])
@pytest.mark.parametrize("fill", ["true", "! head -c 1M /dev/zero >/dev/shm/full 2>/dev/null"], ids=["tiny", "full"])
def test_a_tiny_dev_shm(readers, fill, tmp_path):
    """Ours has no name there; MPI's has, so MPI is told to do without. The job runs as ever, also where nothing fits in."""
    (tmp_path / "tiny.sh").write_text(f'mount -t tmpfs -o size=64k tmpfs /dev/shm && {fill} && exec mpirun "$@"\n')
    job = run_job("""
import horovod_data as hvdata, tensorflow as tf
hvdata.init()
make = lambda: tf.data.Dataset.from_tensors(tf.zeros([1 << 18])).repeat(40)
ds = hvdata.distribute_dataset(make, batch="per_rank", verify=True)
hvdata.serve()
print(sum(1 for _ in ds), hvdata.stats()["payload_bytes_arena"] > 0, flush=True)
""", np=2, readers=readers, timeout=120, launcher=f"unshare --mount sh {tmp_path / 'tiny.sh'}",
                  env={"OMPI_MCA_btl": "self,tcp"})
    assert job.returncode == 0, job.describe()
    assert all(out.startswith("20 ") for out in job.stdout[:2]), job.describe()
    assert readers or job.stdout[0] == "20 True\n", job.describe()
