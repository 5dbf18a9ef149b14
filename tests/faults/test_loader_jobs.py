# SPDX-License-Identifier: Apache-2.0
"""Whole jobs of hvdata.loader() without TensorFlow: states on another number of ranks, waits, forks, signals and exits.

docs/guarantees.md promises the same of distribute_dataset(). Both use the same C++ code, so one test of each kind is
enough here. Killed processes and exits: test_fault_table.py. Reports, progress and timelines: the tests of these.
"""

import pytest
from jobs import run_program
from oracle import in_order

pytestmark = pytest.mark.limit(170)

# ---- States on another number of ranks.

SAVED_AT, ELEMENTS = 3, 24

STATES = """
import pickle
what, folder, ELEMENTS, SAVED_AT = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

class Plain:  # it is read again from its front
    def __init__(self, batch):
        self.batch, self.at = batch, 0
    def __iter__(self):
        first, self.at = self.at, 0
        for self.at in range(first + 1, ELEMENTS + 1):
            i = self.at - 1
            yield np.array([i]) if self.batch == "per_rank" else np.arange(12 * i, 12 * i + 12)
        self.at = 0

class Stateful(Plain):
    def state_dict(self):
        return {"at": self.at}
    def load_state_dict(self, state):
        self.at = state["at"]

loaders = {}
for batch in ("global", "per_rank"):
    for kind in (Plain, Stateful):
        name = f"{batch}_{kind.__name__}"
        loaders[name] = load(kind(batch), batch=batch, remainder="partial", verify=True, name=name)
hvdata.serve()
listed = lambda it: [x.reshape(-1).tolist() for x in it]
for name, loader in loaders.items():
    path = f"{folder}/{name} {rank}"
    if what == "save":
        it = iter(loader)
        say(name, json.dumps(listed(next(it) for _ in range(SAVED_AT))))
        with open(path, "wb") as file:
            pickle.dump(loader.state_dict(), file)
        for x in it: pass
        continue
    with open(path if os.path.exists(path) else f"{folder}/{name} 0", "rb") as file:
        loader.load_state_dict(pickle.load(file))
    say(name, json.dumps(listed(loader)))
    say("NEXT", name, json.dumps(listed(loader)))
hvdata.shutdown()
"""


@pytest.mark.commit("2-4-0")
@pytest.mark.parametrize("before, after, readers", [(4, 3, 0), (2, 4, 0), (3, 2, 1)])
def test_a_state_on_another_number_of_ranks(tmp_path, before, after, readers):
    """The same order goes on, with every kind of source."""
    words = str(tmp_path), str(ELEMENTS), str(SAVED_AT)
    saved = run_program(STATES, before, "save", *words, readers=readers)
    restored = run_program(STATES, after, "restore", *words, readers=readers)
    reader = restored.stderr[after if readers else 0]
    for name in "global_Plain", "global_Stateful", "per_rank_Plain", "per_rank_Stateful":
        whole = list(range(ELEMENTS * (12 if "global" in name else 1)))
        first = in_order(saved.told(name))
        assert first == whole[: len(first)] and len(first) == SAVED_AT * (12 if "global" in name else before)
        assert first + in_order(restored.told(name)) == whole, (name, restored.describe())
        assert in_order(restored.told(f"NEXT {name}")) == whole, "the next epoch is a whole one"
        delivered = f"channel {name}, epoch 1: {len(whole)} rows that the reader yielded, each delivered once"
        assert delivered in reader, restored.describe()


BLOCKS = """
def blocks():
    yield from range(4)
    time.sleep(600)

loader = load(blocks, prefetch=1)
hvdata.serve()
try:
    for x in loader: pass
except TimeoutError as error:
    say("TimeoutError", error)
"""


@pytest.mark.parametrize("readers", [0, 1])
def test_a_source_that_blocks_for_ever(readers):
    """The wait is reported, and at its limit every rank gets an error.

    The job can end while the source's call still blocks.
    """
    env = {"HOROVOD_DATA_STALL_SECONDS": "2", "HOROVOD_DATA_TIMEOUT": "8"}
    job = run_program(BLOCKS, 2, readers=readers, env=env)
    job.assert_said(r"has not produced step 2 for \d+ s", 0, 1)
    job.assert_said(r"^TimeoutError \[rank \d on .*, channel train, epoch 1, step 2\] waited", 0, 1)


# ---- Moments in which the source runs.

SPINS = """
def source():
    yield from range(4)
    while True:
        sum(range(999))

say("got", next(iter(load(source))).item())
"""


@pytest.mark.commit
def test_the_program_ends_while_the_source_runs():
    """Python up to 3.13 unwinds the dealer's stack, with the frames of the core."""
    job = run_program(SPINS, 2)
    assert job.stdout == ["got 0\n", "got 1\n"], job.describe()


GOES_ON = """
def forks():
    for i in range(8):
        if i == 2 and os.fork() == 0:
            say("child")
            sys.exit(0)
        if i == 3 and os.fork() == 0:
            raise KeyError("of the child")
        if i == 4:
            say("statuses", sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2)))
        yield i

say("forked", [x.item() for x in load(forks, name=None)])

def forks_first(epoch):
    if epoch == 2 and os.fork() == 0:
        sys.exit(3)
    return range(4)

loader = load(forks_first, name=None)
say("forked first", [[x.item() for x in loader] for _ in range(2)])

def sleeps():
    for i in range(8):
        if not pressed:
            time.sleep(4 if i == 2 else 0)
        yield i

pressed = []
signal.signal(signal.SIGINT, lambda *_: pressed.append(1))
loader = load(sleeps, name=None, prefetch=1)
it = iter(loader)
first = next(it).item()
time.sleep(0.5)  # the reader makes the next step
threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
state = loader.state_dict()
say("saved", len(pressed))
rest = [x.item() for x in it]
again = load(sleeps, name=None, prefetch=1)
again.load_state_dict(state)
say("resumed", [x.item() for x in again] == rest, [first, *rest])
"""


@pytest.mark.commit
def test_forks_and_signals_of_the_program():
    """A child that the source forks ends when it leaves the source. A save survives a signal whose handler returns."""
    job = run_program(GOES_ON, 2)
    job.assert_said("^child$", 0)
    job.assert_said(r"^statuses \[0, 1\]$", 0)
    assert "KeyError: 'of the child'" in job.stderr[0], job.describe()
    for rank in range(2):
        mine = list(range(rank, 8, 2))
        job.assert_said(rf"^forked \[{', '.join(map(str, mine))}\]$", rank)
        job.assert_said(rf"^forked first \[\[{rank}, {rank + 2}\], \[{rank}, {rank + 2}\]\]$", rank)
        job.assert_said(r"^saved 1$", rank)
        job.assert_said(rf"^resumed True \[{', '.join(map(str, mine))}\]$", rank)
