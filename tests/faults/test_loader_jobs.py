# SPDX-License-Identifier: Apache-2.0
"""Whole jobs of hvdata.loader() without TensorFlow: states on another number of ranks, faults, forks, and reports.

docs/guarantees.md promises the same of distribute_dataset(). Both use the same C++ code, so one test of each kind is
enough here.
"""

import json
import re
import signal

import pytest
import tracing
from jobs import run_job, start_job

pytestmark = pytest.mark.limit(170)

BEFORE = """
import gc, json, multiprocessing, os, pickle, random, sys, time
import numpy as np
import horovod_data as hvdata

def say(*words):
    print(*words, flush=True)

"""

# ---- States on another number of ranks.

SAVED_AT, ELEMENTS = 3, 24

STATES = (
    BEFORE
    + """
what, folder, ELEMENTS, SAVED_AT = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

class Plain:  # it is read again from its front
    def __init__(self, batch, order=None):
        self.batch, self.order, self.at = batch, order or list(range(ELEMENTS)), 0
    def __iter__(self):
        first, self.at = self.at, 0
        for self.at in range(first + 1, ELEMENTS + 1):
            i = self.order[self.at - 1]
            yield np.array([i]) if self.batch == "per_rank" else np.arange(12 * i, 12 * i + 12)
        self.at = 0

class Stateful(Plain):
    def state_dict(self):
        return {"at": self.at}
    def load_state_dict(self, state):
        self.at = state["at"]

hvdata.init()
loaders = {}
for batch in ("global", "per_rank"):
    for kind in (Plain, Stateful):
        loaders[f"{batch} {kind.__name__}"] = hvdata.loader(
            kind(batch), batch=batch, remainder="partial", verify=True, name=f"{batch}_{kind.__name__}")
shuffled = hvdata.loader(Plain("per_rank", random.sample(range(ELEMENTS), ELEMENTS)), batch="per_rank", remainder="partial", prefetch=1)
loaders["shuffled"] = shuffled
hvdata.serve()
rank = hvdata.rank()
listed = lambda it: [x.reshape(-1).tolist() for x in it]
found = {}
for name, loader in loaders.items():
    if what == "save":
        it = iter(loader)
        found[name] = listed(next(it) for _ in range(SAVED_AT))
        with open(f"{folder}/{name} {rank}", "wb") as file:
            pickle.dump(loader.state_dict(), file)
        for x in it: pass
        continue
    path = f"{folder}/{name} {rank}"
    with open(path if os.path.exists(path) else f"{folder}/{name} 0", "rb") as file:
        loader.load_state_dict(pickle.load(file))
    try:
        found[name] = [listed(loader), listed(loader)]
    except RuntimeError as error:
        found[name] = str(error)
say("FOUND", json.dumps(found))
hvdata.shutdown()
"""
)


def of_ranks(job, ranks):
    assert job.returncode == 0, job.describe()
    return [json.loads(job.stdout[rank].split("FOUND ")[1]) for rank in range(ranks)]


def order(shares):
    """The rows in the job's order. Ranks that have no row in the last step count, too."""
    longest = max(map(len, shares))
    return [row for step in range(longest) for mine in shares if step < len(mine) for row in mine[step]]


@pytest.mark.commit("2-4-0")
@pytest.mark.parametrize("before, after, readers", [(4, 3, 0), (2, 4, 0), (3, 2, 1)])
def test_a_state_on_another_number_of_ranks(tmp_path, before, after, readers):
    """The same order goes on, with every kind of source. A source that yields another order than before is refused."""
    arguments = (str(tmp_path), str(ELEMENTS), str(SAVED_AT))
    saved = of_ranks(run_job(STATES, before, "save", *arguments, readers=readers), before)
    job = run_job(STATES, after, "restore", *arguments, readers=readers)
    restored = of_ranks(job, after)
    for name in saved[0]:
        whole = list(range(ELEMENTS * (12 if "global" in name else 1)))
        if name == "shuffled":
            assert all("are not those that it yielded before" in one[name] for one in restored), job.describe()
            continue
        first = order([one[name] for one in saved])
        assert first == whole[: len(first)] and len(first) == SAVED_AT * (12 if "global" in name else before)
        assert first + order([one[name][0] for one in restored]) == whole, (name, job.describe())
        assert order([one[name][1] for one in restored]) == whole, "the next epoch is a whole one"
    reader = job.stderr[after if readers else 0]
    for name in ("global_Plain", "per_rank_Stateful"):
        rows = ELEMENTS * (12 if "global" in name else 1)
        assert f"channel {name}, epoch 1: {rows} rows that the reader yielded, each delivered once" in reader, (
            job.describe()
        )


# ---- Faults.

LOOP = (
    BEFORE
    + """
hvdata.init()

def numbers():
    for i in range(10**6):
        time.sleep(0.01)
        yield np.full(20000, i)

loader = hvdata.loader(numbers, batch="global", name="train")
if hvdata.is_reader() and not hvdata.is_trainer():
    say("got")
hvdata.serve()
for x in loader:
    say("got", x[0])
"""
)


@pytest.mark.parametrize("readers, victim", [(0, 0), (0, 1), (1, 1), (1, 2)])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_a_killed_process(readers, victim, number):
    if number == signal.SIGTERM and (readers, victim) != (0, 1):
        pytest.skip("one place is enough")
    with start_job(LOOP, 2, readers=readers) as job:
        for rank in range(2):
            job.wait_for("got 5", rank)
        job.kill_rank(victim, number)
        assert job.finish(30) != 0, job.describe()
    job.assert_said("has died")


BLOCKS = (
    BEFORE
    + """
hvdata.init()

def blocks():
    yield from range(4)
    say("blocks", time.monotonic())
    time.sleep(600)

loader = hvdata.loader(blocks, batch="per_rank", name="train", prefetch=1)
hvdata.serve()
try:
    for x in loader:
        say("got", x)
except TimeoutError as error:
    say("TimeoutError", error)
"""
)


@pytest.mark.parametrize("readers", [0, 1])
def test_a_source_that_blocks_for_ever(readers):
    """The wait is reported, and at its limit every rank gets an error.

    The job can end while the source's call still blocks.
    """
    env = {"HOROVOD_DATA_STALL_SECONDS": "2", "HOROVOD_DATA_TIMEOUT": "8"}
    with start_job(BLOCKS, 2, readers=readers, env=env) as job:
        job.finish(60)
    job.assert_said(r"has not produced step 2 for \d+ s", 0, 1)
    job.assert_said(r"^TimeoutError \[rank \d on .*, channel train, epoch 1, step 2\] waited", 0, 1)


FORKS = (
    BEFORE
    + """
hvdata.init()

def in_a_child(i):
    gc.collect()
    return int(x[0]), i

loader = hvdata.loader(lambda: [np.full(40000, k) for k in range(6)], batch="global", name="train")
hvdata.serve()
kept = []
for step, x in enumerate(loader):
    kept.append(x[:5])
    if step in (1, 3):
        with multiprocessing.get_context("fork").Pool(2) as pool:  # as the workers of a DataLoader
            assert pool.map(in_a_child, range(4)) == [(step, i) for i in range(4)]
    assert [part.tolist() for part in kept] == [[k] * 5 for k in range(step + 1)]
assert step == 5
if (pid := os.fork()) == 0:
    del x, kept  # the child releases nothing
    gc.collect()
    try:
        next(iter(loader))
    except RuntimeError as error:
        say("child:", error)
    os._exit(0)
os.waitpid(pid, 0)
assert [part.tolist() for part in kept] == [[k] * 5 for k in range(6)]
assert [int(x[0]) for x in loader] == list(range(6))
say("whole")
"""
)


def test_processes_that_fork_from_ranks_that_hold_a_loader():
    job = run_job(FORKS, 2)
    assert job.returncode == 0, job.describe()
    job.assert_said("^whole$", 0, 1)
    job.assert_said("^child: .*this is a forked child of a process", 0, 1)


@pytest.mark.parametrize("status", [0, 3])
def test_sys_exit_in_a_loop(status):
    """One rank calls sys.exit(). With status 0 the other ranks go on."""
    script = (
        BEFORE
        + f"""
hvdata.init()
loader = hvdata.loader(lambda: range(40), batch="per_rank", name="train")
for step, x in enumerate(loader):
    if step == 2 and hvdata.rank() == 1:
        sys.exit({status})
say("steps", step + 1)
"""
    )
    job = run_job(script, 3)
    assert job.returncode == status, job.describe()
    if status == 0:
        job.assert_said("^steps 13$", 0, 2)
    else:
        job.assert_said("the program ends with status 3 .*channel train, epoch 1, step 3", 1)


NO_TORCH = (
    BEFORE
    + """
class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ImportError("torch is refused")

sys.meta_path.insert(0, Refusing())
hvdata.init()
for to, error in (("torch", ImportError), ("tf", ValueError)):
    try:
        hvdata.loader(lambda: range(4), batch="per_rank", to=to)
    except error as error:
        say(error)
assert [x.item() for x in hvdata.loader(lambda: range(4), batch="per_rank")] == [0 + hvdata.rank(), 2 + hvdata.rank()]
"""
)


def test_a_wrong_form_is_an_error_before_the_call_counts():
    """Because the failed call does not count, a rank may try again alone, with another form."""
    job = run_job(NO_TORCH, 2)
    assert job.returncode == 0, job.describe()
    job.assert_said(
        r'to="torch" needs PyTorch, which can\'t be imported \(torch is refused\)\. Install it, or use to="numpy"', 0, 1
    )
    job.assert_said(
        r"to='tf' is not known\. Use 'numpy' or 'torch'; distribute_dataset\(\) gives a tf.data.Dataset", 0, 1
    )


# ---- Reports.

REPORTS = (
    BEFORE
    + """
hvdata.init()

def slow():
    for i in range(20):
        time.sleep(0.05)
        yield np.arange(4) + 4 * i

loader = hvdata.loader(lambda epoch: slow(), batch="global", name="train", verify=True)
hvdata.serve()
for epoch in range(2):
    for x in loader: pass
say("VERDICT", hvdata.report())
say("STATS", json.dumps({key: value for key, value in hvdata.stats().items() if key.startswith("train/")}))
"""
)


@pytest.mark.parametrize("readers", [0, 1])
def test_report_progress_timeline_and_certificate(tmp_path, readers):
    path = tmp_path / "trace.json"
    env = {
        "HOROVOD_DATA_TIMELINE": str(path),
        "HOROVOD_DATA_PROGRESS": "1",
        "HOROVOD_DATA_PROGRESS_SECONDS": "0.3",
    }
    job = run_job(REPORTS, 2, readers=readers, env=env)
    assert job.returncode == 0, job.describe()
    job.assert_said(r"^VERDICT .*train", 0, 1)
    stats = json.loads(re.search("^STATS (.*)", job.stdout[1], re.MULTILINE)[1])
    assert stats["train/rows"] == 40, stats
    reader = job.stderr[2 if readers else 0]
    assert "channel train, epoch 2: 80 rows that the reader yielded, each delivered once" in reader, job.describe()
    job.assert_said(r"channel train, epoch 1 ended after 20 steps: 40 rows on rank 0")
    events = tracing.load(path)
    for row in range(2):
        steps = [event["args"] for event in tracing.phases(events, row, "trainer") if event["name"] == "step"]
        assert len(steps) == 40, job.describe()
    assert tracing.seconds(tracing.phases(events, 2 if readers else 0, "reader"))["pipeline"] > 1
