# SPDX-License-Identifier: Apache-2.0
"""A wait without an end is reported, and becomes an error at the time limit. It is never a hang.

These tests have jobs of their own, with a short time until the report and a short time limit.
"""

import re
import time

import pytest
import tensorflow as tf
from ranks.slowness import slowness
from together import Raised, dealt_to_all, elements, host_of, numbers, outcomes

pytestmark = pytest.mark.world(np=2)

LIMIT = round(6 * slowness())  # for init() as well
SHORT = {"HOROVOD_DATA_STALL_SECONDS": "2", "HOROVOD_DATA_TIMEOUT": str(LIMIT)}


def said(comm, capfd):
    """The stderr of every rank in this test."""
    time.sleep(0.2)
    return comm.allgather(capfd.readouterr().err)


@pytest.mark.slow
@pytest.mark.ranks(2, 4)
@pytest.mark.alone(**SHORT)
def test_a_rank_that_never_calls_distribute_dataset(hvdata, comm, capfd):
    """The other ranks name the missing rank after the stall time, and raise at the time limit."""
    missing, ended = comm.size - 1, []

    def run():
        if comm.rank != missing:
            try:
                numbers(hvdata, 8, name="lonely")
            finally:
                ended.append(time.monotonic())
        return "did not call"

    comm.Barrier()
    began = min(comm.allgather(time.monotonic()))  # one clock
    got = outcomes(comm, run)
    ends = sum(comm.allgather(ended), [])
    assert len(ends) == missing and all(LIMIT <= end - began < LIMIT + 8 for end in ends), (began, ends)
    errors = said(comm, capfd)
    for rank in range(missing):
        assert isinstance(got[rank], Raised) and issubclass(got[rank].kind, (TimeoutError, RuntimeError)), got[rank]
        for text in got[rank].text, errors[rank]:
            assert re.search(r"distribute_dataset.*lonely|lonely.*distribute_dataset", text, re.S), text
            assert re.search(rf"rank {missing} \(?.*{re.escape(host_of(missing))}", text), text
        assert "HOROVOD_DATA_TIMEOUT" in got[rank].text, got[rank].text


@pytest.mark.slow
@pytest.mark.ranks(2, 4)
@pytest.mark.alone(**SHORT)
def test_one_rank_iterates_more_often(hvdata, comm, capfd):
    """The rank's next epoch waits for the other ranks when the window is full.

    The rank reports for which rank it waits, and raises at the time limit. Another channel still works, and the job
    ends cleanly.
    """
    good = numbers(hvdata, 2 * comm.size)
    ds = numbers(hvdata, 9 * comm.size, name="eager-rank", prefetch=2)
    elements(comm, ds)
    alone = []

    def run():
        if comm.rank == 1:
            for x in ds:
                alone.append(int(x))
        return "finished"

    got = outcomes(comm, run)
    errors = said(comm, capfd)
    assert isinstance(got[1], Raised) and got[1].kind is tf.errors.DeadlineExceededError, got[1]
    for text in got[1].text, errors[1]:
        assert "eager-rank" in text and "epoch 2" in text, text
        assert re.search(r"rank[s]? \(?0", text), text
    assert "HOROVOD_DATA_TIMEOUT" in got[1].text
    assert len(alone) <= 2 or comm.rank != 1
    assert [one for rank, one in enumerate(got) if rank != 1] == ["finished"] * (comm.size - 1)
    assert elements(comm, good) == dealt_to_all(comm, range(2 * comm.size))


@pytest.mark.slow
@pytest.mark.ranks(2)
@pytest.mark.alone(**SHORT)
def test_a_scatter_that_the_root_never_calls(hvdata, comm, capfd):
    def run():
        if comm.rank == 1:
            hvdata.scatter(None, dtype=tf.float32, name="rootless")
        return "did not call"

    got = outcomes(comm, run)
    assert isinstance(got[1], Raised), got[1]
    for text in got[1].text, said(comm, capfd)[1]:
        assert "rootless" in text and re.search(r"rank 0|root 0", text), text
