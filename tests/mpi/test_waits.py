# SPDX-License-Identifier: Apache-2.0
"""A wait without an end is reported, and becomes an error at the time limit. It is never a hang.

The test has a job of its own, with a short time until the report and a short time limit.
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
def test_ranks_that_call_less_often(hvdata, comm, capfd):
    """A rank's next epoch waits for the other ranks when the window is full. Its scatter waits for the root. In the end
    all ranks but one make a channel.

    They report for which rank they wait, and raise at the time limit. Another channel still works, and the job ends
    cleanly.
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

    got = outcomes(comm, lambda: comm.rank == 1 and len(hvdata.scatter(None, dtype=tf.float32, name="rootless")))
    for text in got[1].text, said(comm, capfd)[1]:
        assert "rootless" in text and re.search(r"rank 0|root 0", text), text

    missing = comm.size - 1
    got = outcomes(comm, lambda: comm.rank == missing or numbers(hvdata, 8, name="lonely") is None)
    errors = said(comm, capfd)
    for rank in range(missing):
        assert issubclass(got[rank].kind, (TimeoutError, RuntimeError)) and "HOROVOD_DATA_TIMEOUT" in got[rank].text
        for text in got[rank].text, errors[rank]:
            assert re.search(
                rf"distribute_dataset.*lonely.*rank {missing} \(?.*{re.escape(host_of(missing))}", text, re.S
            ), text
