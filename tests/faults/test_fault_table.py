# SPDX-License-Identifier: Apache-2.0
"""The table of docs/guarantees.md, "Faults": faults that end a job, faults that it survives, and faults at its start.

The jobs' programs are in the folder programs/. test_forks.py and test_shortages.py have more faults of the table.
"""

import itertools
import os
import re
import socket
import sys

import pytest
from jobs import SOON, program, run_program
from launched import start_launcher
from ranks.launch import open_mpi
from table import PROGRAMS, WAYS, Place, all_places, everywhere, places

HOST = re.escape(socket.gethostname())
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


def faults_and_places():
    """Each fault on both victims. The few places take turns in number of ranks, kind of reader and way."""
    for number, (fault, victim) in enumerate(itertools.product(ENDS, ("reader", "trainer"))):
        for where in places((2 + number // 4 % 3, (number // 2 + number) % 2, list(WAYS)[number % 3])):
            yield pytest.param(fault, victim, where, id=f"{fault}-{victim}-{where}")


@pytest.mark.commit(
    "sys.exit(3)-trainer-2-dedicated-message",
    "SIGKILL-trainer-4-embedded-inline",
    "memory-reader-2-embedded-arena",
)
@pytest.mark.parametrize("fault, victim, where", list(faults_and_places()))
def test_a_fault_that_ends_the_job(fault, victim, where, tried):
    """Soon, with the right status, and a line that names the rank and the step. Nothing of the job is left."""
    process = where.reader if victim == "reader" else 1
    with tried.start(PROGRAMS / "ends.py", where, fault, "reader" if victim == "reader" else "1") as job:
        job.wait_for("FAULT", process, timeout=100)
        job.finish_soon()
    assert job.returncode in ENDS[fault], job.describe()
    said = "".join(job.stderr)
    name = f"reader 0 on {HOST}" if process == where.trainers else f"rank {process} on {HOST}"
    if fault in ("sys.exit(3)", "raise SystemExit(3)", "memory"):
        if victim == "reader":  # it comes as an error of the pipeline, on every rank
            job.assert_said(rf"\[reader 0 on {HOST}, channel train, epoch 1, step 5\] (SystemExit: 3|.*MemoryError)")
        else:  # the others have no time to say anything
            ends = rf"the program ends with status {job.returncode} \(here: channel train, epoch 1, step 6\), and the job with it"
            assert len(re.findall(rf"horovod_data: \[{name}\] {ends}", said)) == 1, job.describe()
            assert fault != "memory" or "MemoryError" in job.stderr[1], job.describe()
    elif fault == "closed files":
        assert re.search(rf"the program of {name} has closed file descriptors", said), job.describe()
    elif open_mpi():  # Hydra kills the others before they know
        survivors = "".join(text for rank, text in enumerate(job.stderr) if rank != process)
        assert re.search(rf"horovod_data: \[.* on {HOST}\] {name} \(process \d+\) has died", survivors), job.describe()
        if survivors.count("[rank"):
            assert re.search(r"has died \(here: channel train, epoch 1, step \d+\)", survivors), job.describe()


def stops_and_places():
    """The process that is stopped: the reader or a trainer in each of the few places; both of them in all places."""
    for where in places(
        (2, 0, "arena"), (3, 0, "message"), (4, 0, "inline"), (2, 1, "arena"), (3, 1, "message"), (4, 1, "inline")
    ):
        one = "trainer" if (where.way == "message") == bool(where.readers) else "reader"
        for stopped in ("reader", "trainer") if all_places() else (one,):
            yield pytest.param(where, stopped, id=f"{where}-{stopped}")


@pytest.mark.parametrize("where, stopped", list(stops_and_places()))
def test_faults_that_the_job_survives(where, stopped, tried):
    """Each of these faults is soon over, and leaves no thread and no open file behind:

    - an exception in the first, a middle or the last step; each rank leaves early once
    - a stop of 5 seconds; two threads on two channels; many tiny epochs
    - the end of Python with iterators alive
    """
    trainers, steps = where.trainers, 8
    many = ["1000"] if where.way == "arena" or all_places() else []
    job = tried.run(PROGRAMS / "survives.py", where, "reader" if stopped == "reader" else "1", *many)
    raised = dict(re.findall(r"^RAISES (\d) ([\d.]+)$", job.stdout[where.reader], re.MULTILINE))
    broke: dict[int, list[float]] = {}
    looks = [line for line in job.stdout[where.reader].splitlines() if line.startswith("KEPT by the reader")]
    assert len(looks) == 3 + trainers + 3 and all(line.endswith("nothing") for line in looks), job.describe()
    for rank in range(trainers):
        lines = {
            line.split()[0] + line.split()[1] * (line.split()[0] in ("FAILED", "BROKE")): line
            for line in job.stdout[rank].splitlines()
        }
        for epoch, step in (1, 0), (2, steps // 2), (3, steps - 1):
            said = re.fullmatch(
                rf"FAILED {epoch} {step} ([\d.]+) .*\[reader 0 on {HOST}, channel train, epoch {epoch}, step {step}\] "
                "ValueError: no such row.*",
                lines[f"FAILED{epoch}"],
            )
            assert said and float(said[1]) - float(raised[str(epoch)]) < SOON, job.describe()
        for breaker in range(trainers):
            *told, when = lines[f"BROKE{4 + breaker}"].split()
            assert told == ["BROKE", str(4 + breaker), "2" if breaker == rank else str(steps)], job.describe()
            broke.setdefault(breaker, []).append(float(when))
        _, came, seconds = lines["STOPPED"].split()
        assert int(came) == steps and 4.5 < float(seconds) < 5 + SOON, job.describe()
        whole = [(steps, "")] * 2
        assert lines["THREADS"] == f"THREADS {whole} {whole}", job.describe()
        assert lines["TINY"] == f"TINY {1000 if many else 20}", job.describe()
        assert lines["LEAVES"] == f"LEAVES {[rank, rank]}", job.describe()
        kept = [line for line in job.stdout[rank].splitlines() if line.startswith("KEPT of")]
        assert len(kept) == 3 + trainers + 3 and all(line.endswith("nothing") for line in kept), job.describe()
    assert all(max(when) - min(when) < SOON for when in broke.values()), job.describe()


@pytest.mark.parametrize("end", ["os._exit(0)", "sys.exit(0)", "after a child", "with a thread"])
@pytest.mark.parametrize("np", sorted({where.trainers for where in places((3, 0, "inline"))}))
def test_a_rank_that_ends_before_init(np, end):
    """MPI waits for that rank for ever."""
    with start_launcher("-np", str(np), sys.executable, str(PROGRAMS / "before_init.py"), end) as job:
        job.wait_for("LEAVES", timeout=100)
        assert job.finish_soon() == 1, job.output
    # Open MPI's mpirun may notice first, if other ranks have begun with MPI.
    if "without calling" not in job.output:
        said = rf"\[rank 1 on {HOST}\] This program has come to its end without having called horovod_data\.init\(\)"
        assert re.search(said, job.output), job.output
    assert "came through init()" not in job.output


@pytest.mark.parametrize("mpi, late", [("", 600), ("from mpi4py import MPI\n", 20)], ids=["before MPI", "after MPI"])
def test_a_rank_that_never_calls_init(mpi, late):
    """No rank can know whether a rank that is late will come. The time limit holds in MPI_Init, too."""
    before = f"{mpi}if os.environ['HVDATA_TEST_RANK'] == '1': time.sleep({late}); sys.exit()"
    env = {"HOROVOD_DATA_STALL_SECONDS": "1", "HOROVOD_DATA_TIMEOUT": "10"}
    job = run_program("", 2, before=before, env=env, status=1)
    missing = r"not all of the 2 processes have called horovod_data\.init\(\)"
    job.assert_said(rf"horovod_data: \[rank 0 on {HOST}\] waiting in init\(\) for \d+ s: {missing}", 0)
    job.assert_said(rf"\[rank 0 on {HOST}\] After \d+ s {missing}", 0)


INTERRUPTED_FIT = """
size, kib = int(os.environ["HVDATA_TEST_TRAINERS"]), float(os.environ["HVDATA_TEST_KIB"])
BATCH = 4

def examples():
    x = np.ones([10 * BATCH * size, int(kib * 256) // BATCH], np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(BATCH)

ds = train(examples, verify=True)
hvdata.serve()

class Interrupt(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 3 and rank == int(sys.argv[1]):
            now("FAULT")
            os.kill(os.getpid(), signal.SIGINT)

class Count(tf.keras.callbacks.Callback):
    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1

model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(int(kib * 256) // BATCH,))])
model.compile("sgd", "mse")
try:
    model.fit(ds, epochs=1, verbose=0, callbacks=[Interrupt()])
    say("FIT to its end")
except KeyboardInterrupt:
    say("FIT interrupted")
count = Count()
model.fit(ds, epochs=2, verbose=0, callbacks=[count])
say("AGAIN", count.steps)
"""


@pytest.mark.commit("2-embedded-message-rank 1")
@pytest.mark.parametrize(
    "where, who",
    [
        pytest.param(where, who, id=f"{where}-rank {who}")
        for number, where in enumerate(
            [Place(1, 0, "arena"), *places((2, 0, "message"), (3, 0, "arena"), (3, 1, "inline"))]
        )
        for who in (sorted({0, where.trainers - 1}) if all_places() else [0 if number == 2 else where.trainers - 1])
    ],
)
def test_fit_again_after_an_interrupt(where, who, tried):
    """The interrupt comes on the rank that reads, or on another rank."""
    job = tried.run(program(INTERRUPTED_FIT), where, str(who))
    for rank in range(where.trainers):
        fit, again = (line for line in job.stdout[rank].splitlines() if line.startswith(("FIT", "AGAIN")))
        assert fit == ("FIT interrupted" if rank == who else "FIT to its end"), job.describe()
        assert again == "AGAIN 20", job.describe()
    job.assert_soon("FAULT", who)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a /dev/shm")
@everywhere((2, 0, "arena"), (2, 1, "arena"))
@pytest.mark.parametrize("fill", ["true", "! head -c 1M /dev/zero >/dev/shm/full 2>/dev/null"], ids=["tiny", "full"])
def test_a_tiny_dev_shm(where, fill, tmp_path, tried):
    """Our shared memory needs no name in /dev/shm. MPI's does, so MPI uses none here. The job runs as usual."""
    (tmp_path / "tiny.sh").write_text(f'mount -t tmpfs -o size=64k tmpfs /dev/shm && {fill} && exec mpirun "$@"\n')
    job = tried.run(
        program("""
width = int(float(os.environ["HVDATA_TEST_KIB"]) * 256)
ds = train(lambda: tf.data.Dataset.from_tensors(tf.zeros([width])).repeat(20 * int(os.environ["HVDATA_TEST_TRAINERS"])))
hvdata.serve()
now("FAULT")
say(sum(1 for _ in ds), hvdata.stats()["payload_bytes_arena"] > 0)
"""),
        where,
        launcher=f"unshare --mount sh {tmp_path / 'tiny.sh'}",
        env={"OMPI_MCA_btl": "self,tcp"},
    )
    for rank in range(where.trainers):
        shared = where.way == "arena" and rank == 0 and not where.readers
        assert f"20 {shared}\n" in job.stdout[rank], job.describe()
        job.assert_soon("FAULT", rank)
