# SPDX-License-Identifier: Apache-2.0
"""Reports of a wait in init()."""

import time

import pytest

from horovod_data.job import handshake, settings


def test_a_process_that_was_delayed_reports_first_that_it_waits(capsys):
    """Both the stall time and the limit are over at its first look."""
    short = settings.read_settings({"HOROVOD_DATA_STALL_SECONDS": "0.1", "HOROVOD_DATA_TIMEOUT": "0.1"})
    wait = handshake.Wait("rank 0 on node0", 2, short)
    time.sleep(0.2)
    with pytest.raises(TimeoutError, match=r"\[rank 0 on node0\] After 0 s not all of the 2 processes have called"):
        wait.look()
    assert "[rank 0 on node0] waiting in init() for 0 s: not all of the 2 processes" in capsys.readouterr().err
