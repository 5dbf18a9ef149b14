# SPDX-License-Identifier: Apache-2.0
"""A job over two hosts, which runs until it is stopped or broken.

The last process, on host 1, reads. All other processes train, two on each host.
"""

from jobs import program
from over_hosts import assert_ends_soon, silent_for_three_seconds, start_over

PLACES = [0, 0, 1, 1, 1]
TRAINERS, READER = [0, 1, 2, 3], 4

# Epochs of batches of 256 KiB per rank that all hold their number in the epoch, until the reader finds the file.
SCRIPT = program("""
directory, slow_rank, slow_seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
read = 0

def until_stopped():
    global read
    read += 1
    number = 0
    while not os.path.exists(f"{directory}/stop{read}"):
        yield np.full([1 << 16], number, np.float32)
        number += 1

spec = tf.TensorSpec([1 << 16], tf.float32)
ds = train(lambda: tf.data.Dataset.from_generator(until_stopped, output_signature=spec), prefetch=2)
hvdata.serve()
for epoch in 1, 2:
    step = 0
    for x in ds:
        assert (x.numpy() == step * size + rank).all(), (step, x)
        step += 1
        say(f"epoch {epoch} step {step}.")
        time.sleep(slow_seconds if rank == slow_rank and epoch == 2 else 0.02)
    say(f"epoch {epoch} ends after {step} steps.")
""")


def steps(job, rank):
    """The steps of a trainer, in all its epochs."""
    return job.stdout[rank].count("step")


def start(bed, directory, slow_rank=-1, slow_seconds=0.0, **how):
    return start_over(bed, SCRIPT, PLACES, str(directory), str(slow_rank), str(slow_seconds), **{"readers": 1, **how})


def wait_for(job, text, timeout=90):
    for rank in TRAINERS:
        job.wait_for(text, rank, timeout)


def all_ended_alike(job, epoch):
    """Every trainer ended the epoch after the same step. (The ranks themselves compare the batches.)"""
    ends = {line for rank in TRAINERS for line in job.stdout[rank].splitlines() if f"epoch {epoch} ends" in line}
    assert len(ends) == 1, ends


def memory(pid):
    """Bytes of its own and of shared memory that the process uses."""
    with open(f"/proc/{pid}/status") as status:
        return 1024 * sum(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def cut_for_good(job, bed, at="epoch 1 step 10."):
    """The job ends in time on both sides. The launcher is on host 0, so host 1 must notice by itself."""
    wait_for(job, at)
    bed.cut(1)
    assert_ends_soon(job, bed)
    assert bed.names[1] in job.log()


def cut_for_three_seconds(begin, bed, directory):
    """The job that begin() starts goes on where it was."""

    def goes_on(job):
        before = [steps(job, rank) for rank in TRAINERS]
        for rank in TRAINERS:
            job.wait_for(f"epoch 1 step {before[rank] + 20}.", rank)

    with silent_for_three_seconds(begin, bed, lambda job: wait_for(job, "epoch 1 step 10."), goes_on) as job:
        for epoch in 1, 2:
            (directory / f"stop{epoch}").touch()
        assert job.finish(60) == 0, job.describe()
        all_ended_alike(job, 1)
