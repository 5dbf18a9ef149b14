# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's profiler shows what a rank waits for, and on the reader every element that is dealt."""

import tensorflow as tf
from together import results


def test_what_the_profiler_shows(hvdata, comm, tmp_path):
    ds = hvdata.distribute_dataset(tf.data.Dataset.range(4 * comm.size), batch="per_rank", name="profiled")

    def run():
        tf.profiler.experimental.start(str(tmp_path))
        got = [int(x) for x in ds]
        tf.profiler.experimental.stop()
        assert len(got) == 4
        (trace,) = tmp_path.rglob("*.xplane.pb")
        return trace.read_bytes().decode("latin-1")

    for rank, trace in enumerate(results(comm, run)):
        # What is said of an event is kept apart from its name.
        for text in ("HorovodData", "channel", "profiled", "epoch", "step", "reader 0 on "):
            assert text in trace, f"rank {rank}: {text}"
        assert ("HorovodDataDealElement" in trace) == (rank == 0)
