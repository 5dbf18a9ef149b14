# SPDX-License-Identifier: Apache-2.0
"""The report names a link between hosts that is too slow for the ranks, and advises a reader on every host.

This holds for every process that reads.
"""

import pytest
from bed import Bed
from jobs import program
from over_hosts import start_over

STEPS = program("""
def source(context):
    mine = tf.data.Dataset.range(240 // context.num_input_pipelines)
    return mine.map(lambda i: tf.fill([250_000], tf.cast(i, tf.float32)))  # 1 MB

dataset = train(source)
hvdata.serve()
for epoch in range(2):
    hvdata.stats(reset=True)
    for x in dataset:
        time.sleep(0.005)
""")


@pytest.mark.slow
@pytest.mark.limit(400)
@pytest.mark.parametrize(
    "readers, places",
    [(0, [0, 1, 1]), (1, [0, 1, 1, 0]), (2, [0, 1, 1, 0, 0])],
    ids=["embedded", "dedicated", "two readers"],
)
def test_the_sentence_is_right(readers, places):
    for _ in range(3):  # other work on the machine may be the limit
        with (
            Bed(2, rate="200mbit") as bed,
            start_over(bed, STEPS, places, readers=readers, env={"HOROVOD_DATA_REPORT": "1"}) as job,
        ):
            assert job.finish(120) == 0, job.describe()
        text = "\n".join(job.stderr)
        if "link-bound: ranks wait " in text:
            break
    assert "link-bound: ranks wait " in text, text
    assert f"on their way from {bed.names[0]} to {bed.names[1]}; a reader on every host" in text, text
