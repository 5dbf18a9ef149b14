# SPDX-License-Identifier: Apache-2.0
"""Several hosts on bad days. The last process, on host 1, reads; all others train, two on each host."""

import time

import pytest
from bed import Bed
from over_hosts import assert_nothing_left, kill, start_over

PLACES = [0, 0, 1, 1, 1]
TRAINERS, READER = [0, 1, 2, 3], 4

# Epochs of batches of 256 KiB per rank that all hold their number in the epoch, until the reader finds the file.
SCRIPT = """
import os, sys, time
import numpy as np
import tensorflow as tf
import horovod_data as hvdata

directory, slow_rank, slow_seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
hvdata.init()
read = 0

def until_stopped():
    global read
    read += 1
    number = 0
    while not os.path.exists(f"{directory}/stop{read}"):
        yield np.full([1 << 16], number, np.float32)
        number += 1

ds = hvdata.distribute_dataset(
    lambda: tf.data.Dataset.from_generator(until_stopped, output_signature=tf.TensorSpec([1 << 16], tf.float32)),
    batch="per_rank", name="train", prefetch=2)
hvdata.serve()
rank, size = hvdata.rank(), hvdata.size()
for epoch in 1, 2:
    step = 0
    for x in ds:
        assert (x.numpy() == step * size + rank).all(), (step, x)
        step += 1
        print(f"epoch {epoch} step {step}.", flush=True)
        time.sleep(slow_seconds if rank == slow_rank and epoch == 2 else 0.02)
    print(f"epoch {epoch} ends after {step} steps.", flush=True)
"""


@pytest.fixture
def two_hosts():
    with Bed(2) as bed:
        yield bed


def steps(job, rank):
    """How far a trainer has come, in all its epochs."""
    return job.stdout[rank].count("step")


def start(bed, directory, slow_rank=-1, slow_seconds=0.0):
    return start_over(bed, SCRIPT, PLACES, str(directory), str(slow_rank), str(slow_seconds), readers=1)


def wait_for(job, text):
    for rank in TRAINERS:
        job.wait_for(text, rank)


def all_ended_alike(job, epoch):
    """Every trainer ended the epoch, after the same step. (That each step brought what it should, the ranks have seen.)"""
    ends = {line for rank in TRAINERS for line in job.stdout[rank].splitlines() if f"epoch {epoch} ends" in line}
    assert len(ends) == 1, ends


@pytest.mark.limit(120)
def test_a_host_that_is_cut_off_for_good(two_hosts, tmp_path):
    """The launcher is on host 0, so host 1 learns it by itself."""
    with start(two_hosts, tmp_path) as job:
        wait_for(job, "epoch 1 step 10.")
        two_hosts.cut(1)
        began = time.monotonic()
        assert job.finish(30) != 0, job.describe()
        seconds = time.monotonic() - began
        assert_nothing_left(two_hosts, began + 10 - time.monotonic())
    assert seconds < 10, seconds
    assert two_hosts.names[1] in job.log


@pytest.mark.limit(120)
def test_a_host_that_is_cut_off_for_three_seconds(two_hosts, tmp_path):
    with start(two_hosts, tmp_path) as job:
        wait_for(job, "epoch 1 step 10.")
        two_hosts.cut(1)
        time.sleep(3)
        before = [steps(job, rank) for rank in TRAINERS]
        two_hosts.reconnect(1)
        for rank in TRAINERS:
            job.wait_for(f"epoch 1 step {before[rank] + 20}.", rank)
        for epoch in 1, 2:
            (tmp_path / f"stop{epoch}").touch()
        assert job.finish(60) == 0, job.describe()
        all_ended_alike(job, 1)


@pytest.mark.limit(120)
def test_a_slow_line_and_a_slow_rank(two_hosts, tmp_path):
    """The others wait, and nothing grows meanwhile: neither the reader's memory nor the rank's."""
    batches, batch = 30, 1 << 18
    with start(two_hosts, tmp_path, slow_rank=0, slow_seconds=0.25) as job:
        wait_for(job, "epoch 1 step 10.")
        two_hosts.set_rate(1, "20mbit")
        before, began = steps(job, 0), time.monotonic()
        job.wait_for(f"epoch 1 step {before + batches}.", 0)
        seconds = time.monotonic() - began
        bytes_by_then = (batches - 4) * 2 * batch  # to two ranks; a few had left the reader before
        assert seconds > bytes_by_then * 8 / 20e6, seconds
        (tmp_path / "stop1").touch()
        wait_for(job, "epoch 1 ends")
        two_hosts.set_rate(1, "1gbit")

        wait_for(job, "epoch 2 step 4.")
        held = {rank: memory(job.pid(rank)) for rank in (0, 1, READER)}
        wait_for(job, "epoch 2 step 24.")  # those who don't sleep would have come further
        came = [job.stdout[rank].count("epoch 2 step") for rank in TRAINERS]
        assert max(came) <= min(came) + 2 + 1, came
        for rank, before in held.items():
            grown = memory(job.pid(rank)) - before
            assert grown < 8 * batch, f"process {rank}: {grown / 2**20:.1f} MiB more"
        (tmp_path / "stop2").touch()
        assert job.finish(60) == 0, job.describe()
        all_ended_alike(job, 1)
        all_ended_alike(job, 2)


def memory(pid):
    """Bytes of its own and of shared memory that the process uses."""
    with open(f"/proc/{pid}/status") as status:
        return 1024 * sum(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


@pytest.mark.limit(120)
@pytest.mark.parametrize("victim", ["a trainer", "the reader", "the other host's daemon", "mpirun"])
def test_a_killed_process(two_hosts, tmp_path, victim):
    with start(two_hosts, tmp_path) as job:
        wait_for(job, "epoch 1 step 10.")
        kill({
            "a trainer": lambda: job.pid(2),
            "the reader": lambda: job.pid(READER),
            "the other host's daemon": lambda: two_hosts.named("orted", host=1),
            "mpirun": lambda: two_hosts.named("mpirun", host=0),
        }[victim]())
        began = time.monotonic()
        assert job.finish(30) != 0, job.describe()
        assert_nothing_left(two_hosts, began + 10 - time.monotonic())
    if victim in ("a trainer", "the reader"):
        name = f"rank 2 on {two_hosts.names[1]}" if victim == "a trainer" else f"reader 0 on {two_hosts.names[1]}"
        assert any(name in err and "has died" in err for err in job.stderr), job.describe()
