# SPDX-License-Identifier: Apache-2.0
"""Faults of two hosts."""

import os
import signal
import time

import pytest
from bed import Bed
from endless import (
    READER,
    TRAINERS,
    all_ended_alike,
    cut_for_good,
    cut_for_three_seconds,
    memory,
    start,
    steps,
    wait_for,
)
from over_hosts import assert_ends_soon

pytestmark = [pytest.mark.slow, pytest.mark.limit(180)]


@pytest.fixture
def two_hosts():
    with Bed(2) as bed:
        yield bed


def test_a_host_that_is_cut_off_for_good(two_hosts, tmp_path):
    with start(two_hosts, tmp_path) as job:
        cut_for_good(job, two_hosts)


def test_a_host_that_is_cut_off_for_three_seconds(two_hosts, tmp_path):
    cut_for_three_seconds(lambda: start(two_hosts, tmp_path), two_hosts, tmp_path)


def test_a_slow_line_and_a_slow_rank(two_hosts, tmp_path):
    """The other ranks wait. Meanwhile the memory of the reader and of the ranks does not grow."""
    batches, batch = 30, 1 << 18
    with start(two_hosts, tmp_path, slow_rank=0, slow_seconds=0.25) as job:
        wait_for(job, "epoch 1 step 10.")
        two_hosts.set_rate(1, "20mbit")
        began, before = time.monotonic(), steps(job, 0)
        job.wait_for(f"epoch 1 step {before + batches}.", 0)
        seconds = time.monotonic() - began
        bytes_by_then = (batches - 4) * 2 * batch  # to two ranks; a few had left the reader before
        assert seconds > bytes_by_then * 8 / 20e6, seconds
        (tmp_path / "stop1").touch()
        wait_for(job, "epoch 1 ends")
        two_hosts.set_rate(1, "1gbit")

        wait_for(job, "epoch 2 step 4.")
        held = {rank: memory(job.pid(rank)) for rank in (0, 1, READER)}
        wait_for(job, "epoch 2 step 24.")  # ranks that don't sleep would be further
        came = [job.stdout[rank].count("epoch 2 step") for rank in reversed(TRAINERS)]  # the slow one last
        assert max(came[:-1]) <= came[-1] + 2 + 2, came  # prefetch, and what was taken while we counted
        for rank, before in held.items():
            grown = memory(job.pid(rank)) - before
            # The generator could give that in half a second.
            assert grown < 32 << 20, f"process {rank}: {grown >> 20} MiB more"
        (tmp_path / "stop2").touch()
        assert job.finish(60) == 0, job.describe()
        all_ended_alike(job, 1)
        all_ended_alike(job, 2)


@pytest.mark.parametrize("victim", ["a trainer", "the reader", "the other host's daemon", "mpirun"])
def test_a_killed_process(two_hosts, tmp_path, victim):
    with start(two_hosts, tmp_path) as job:
        wait_for(job, "epoch 1 step 10.")
        victims = {
            "a trainer": lambda: job.pid(2),
            "the reader": lambda: job.pid(READER),
            "the other host's daemon": lambda: two_hosts.named("orted", host=1),
            "mpirun": lambda: two_hosts.named("mpirun", host=0),
        }
        os.kill(victims[victim](), signal.SIGKILL)
        assert_ends_soon(job, two_hosts)
    if victim in ("a trainer", "the reader"):
        name = f"rank 2 on {two_hosts.names[1]}" if victim == "a trainer" else f"reader 0 on {two_hosts.names[1]}"
        assert any(name in err and "has died" in err for err in job.stderr), job.describe()
