# SPDX-License-Identifier: Apache-2.0
"""Jobs with loader() whose program or source does something rare: forks, signals, exits while the source runs."""

import pytest
from jobs import run_job

pytestmark = pytest.mark.commit

BEGIN = """
import os, signal, sys, threading, time
sys.modules["tensorflow"] = None  # a program's way to say that it has none
import numpy as np
import horovod_data as hvdata

hvdata.init()
"""

SPINS = """
def source():
    yield from range(4)
    while True:
        sum(range(999))

print("got", next(iter(hvdata.loader(source, batch="per_rank"))).item(), flush=True)
"""


def test_the_program_ends_while_the_source_runs():
    """Python up to 3.13 unwinds the dealer's stack, with the frames of the core."""
    job = run_job(BEGIN + SPINS, 2)
    assert job.returncode == 0, job.describe()
    job.assert_said("^got 0$", 0)
    job.assert_said("^got 1$", 1)


GOES_ON = """
def forks():
    for i in range(8):
        if i == 2 and os.fork() == 0:
            print("child", flush=True)
            sys.exit(0)
        if i == 3 and os.fork() == 0:
            raise KeyError("of the child")
        if i == 4:
            print("statuses", sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2)), flush=True)
        yield i

loader = hvdata.loader(forks, batch="per_rank")
print("forked", [x.item() for x in loader], flush=True)

def forks_first(epoch):
    if epoch == 2 and os.fork() == 0:
        sys.exit(3)
    return range(4)

loader = hvdata.loader(forks_first, batch="per_rank")
print("forked first", [[x.item() for x in loader] for _ in range(2)], flush=True)

def sleeps():
    for i in range(8):
        if not pressed:
            time.sleep(4 if i == 2 else 0)
        yield i

pressed = []
signal.signal(signal.SIGINT, lambda *_: pressed.append(1))
loader = hvdata.loader(sleeps, batch="per_rank", prefetch=1)
it = iter(loader)
first = next(it).item()
time.sleep(0.5)  # the reader makes the next step
threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
state = loader.state_dict()
print("saved", len(pressed), flush=True)
rest = [x.item() for x in it]
again = hvdata.loader(sleeps, batch="per_rank", prefetch=1)
again.load_state_dict(state)
print("resumed", [x.item() for x in again] == rest, [first, *rest], flush=True)
"""


def test_forks_and_signals_of_the_program():
    """A child that the source forks ends when it leaves the source. A save survives a signal whose handler returns."""
    job = run_job(BEGIN + GOES_ON, 2)
    assert job.returncode == 0, job.describe()
    job.assert_said("^child$", 0)
    job.assert_said(r"^statuses \[0, 1\]$", 0)
    assert "KeyError: 'of the child'" in job.stderr[0], job.describe()
    for rank in range(2):
        mine = list(range(rank, 8, 2))
        job.assert_said(rf"^forked \[{', '.join(map(str, mine))}\]$", rank)
        job.assert_said(rf"^forked first \[\[{rank}, {rank + 2}\], \[{rank}, {rank + 2}\]\]$", rank)
        job.assert_said(r"^saved 1$", rank)
        job.assert_said(rf"^resumed True \[{', '.join(map(str, mine))}\]$", rank)
