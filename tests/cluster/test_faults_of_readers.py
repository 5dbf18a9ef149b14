# SPDX-License-Identifier: Apache-2.0
"""Faults of two hosts with a reader on each, for all trainers or for those of its host."""

import pytest
from bed import Bed
from jobs import program
from over_hosts import assert_ends_soon, silent_for_three_seconds, start_over

STEPS = 150  # of 20 ms

SCRIPT = """
def make(context):
    reader, readers = context.input_pipeline_id, context.num_input_pipelines

    def numbered():
        for number in range(STEPS * 4 // readers):
            yield np.full([1 << 16], 100_000 * reader + number, np.float32)

    return tf.data.Dataset.from_generator(numbered, output_signature=tf.TensorSpec([1 << 16], tf.float32))

ds = train(make)
hvdata.serve()
step = 0
for x in ds:
    if PER_NODE:  # this host's reader deals to the two trainers here
        expected = 100_000 * (rank // 2) + 2 * step + rank % 2
    else:  # the two readers take turns, each with a step of four batches
        expected = 100_000 * (step % 2) + 4 * (step // 2) + rank
    assert (x.numpy() == expected).all(), (step, expected, x)
    step += 1
    say(f"step {step}.")
    time.sleep(0.02)
say(f"the epoch ends after {step} steps.")
"""

# The processes' hosts, the number of dedicated readers, the environment, and the process that reads on host 1.
LAYOUTS = {
    "2 dedicated": ([0, 0, 1, 1, 0, 1], 2, {}, 5),
    "per node": ([0, 0, 0, 1, 1, 1], 0, {"HOROVOD_DATA_READERS_PER_NODE": "1"}, 5),
    "per node, embedded": ([0, 0, 1, 1], 0, {"HOROVOD_DATA_READERS_PER_NODE": "1", "HOROVOD_DATA_EMBEDDED": "1"}, 2),
}
pytestmark = [pytest.mark.limit(180), pytest.mark.slow, pytest.mark.parametrize("layout", LAYOUTS)]


def trainers(layout):
    """Processes that train: with a dedicated reader per node each host's last process does not."""
    places = LAYOUTS[layout][0]
    return {"2 dedicated": [0, 1, 2, 3], "per node": [0, 1, 3, 4]}.get(layout, range(len(places)))


def start(bed, layout):
    places, readers, env, _ = LAYOUTS[layout]
    script = program(f"STEPS, PER_NODE = {STEPS}, {'per node' in layout}\n" + SCRIPT)
    return start_over(bed, script, places, readers=readers, env=env)


def test_a_host_that_is_cut_off_for_three_seconds(layout):
    def in_its_stride(job):
        for rank in trainers(layout):
            job.wait_for("step 10.", rank, 90)

    def goes_on(job):
        for rank in trainers(layout):
            job.wait_for(f"the epoch ends after {STEPS} steps.", rank)

    with Bed(2) as bed, silent_for_three_seconds(lambda: start(bed, layout), bed, in_its_stride, goes_on) as job:
        assert job.finish(60) == 0, job.describe()


def test_a_killed_reader(layout):
    with Bed(2) as bed, start(bed, layout) as job:
        for rank in trainers(layout):
            job.wait_for("step 10.", rank, 90)
        job.kill_rank(LAYOUTS[layout][3])
        assert_ends_soon(job, bed)
        name = f"rank 2 on {bed.names[1]}" if "embedded" in layout else f"reader 1 on {bed.names[1]}"
        assert any(name in err and "has died" in err for err in job.stderr), job.describe()
