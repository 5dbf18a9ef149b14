# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's profiler shows what a rank waits for. On the reader it shows each element dealt and each state made."""

import pytest
import tensorflow as tf
from checkpoints import save
from tensorflow.python.data.experimental.ops import testing
from together import host_of, results

xplane_pb2 = pytest.importorskip(
    "tensorflow.tsl.profiler.protobuf.xplane_pb2", reason="later TensorFlows have it elsewhere"
)
pytestmark = pytest.mark.world(np=1)


def events(trace):
    """(name, attributes) of each event."""
    for plane in xplane_pb2.XSpace.FromString(trace).planes:
        for event in (event for line in plane.lines for event in line.events):
            said = {}
            for stat in event.stats:
                kind = stat.WhichOneof("value")
                value = getattr(stat, kind)
                said[plane.stat_metadata[stat.metadata_id].name] = (
                    plane.stat_metadata[value].name if kind == "ref_value" else value
                )
            yield plane.event_metadata[event.metadata_id].name, said


def test_what_the_profiler_shows(hvdata, comm, tmp_path):
    ds = hvdata.distribute_dataset(tf.data.Dataset.range(4 * comm.size), batch="per_rank", name="profiled")

    def run():
        tf.profiler.experimental.start(str(tmp_path))
        got = [int(x) for x in ds]
        tf.profiler.experimental.stop()
        assert len(got) == 4
        (trace,) = tmp_path.rglob("*.xplane.pb")
        return list(events(trace.read_bytes()))

    for rank, seen in enumerate(results(comm, run)):
        ours = [said for name, said in seen if name.endswith("HorovodData")]
        assert {said["channel"] for said in ours} == {"profiled"}, f"rank {rank}: {ours}"
        assert {said["reader"] for said in ours} == {f"reader 0 on {host_of(0)}"}, f"rank {rank}: {ours}"
        # The first GetNext begins the epoch, the last one finds its end.
        assert [(str(said["epoch"]), int(said["step"])) for said in ours] == [
            ("next", 0), ("1", 1), ("1", 2), ("1", 3), ("1", 4)], f"rank {rank}: {ours}"  # fmt: skip
        assert any(name.startswith("HorovodDataDealElement") for name, _ in seen) == (rank == 0)


@pytest.mark.world(np=3)
@pytest.mark.ranks(2, 3, 4)
def test_one_state_serves_all_ranks_that_wait_for_it(hvdata, comm, tmp_path):
    """The ranks ask while the reader is inside its pipeline. A state may take a gigabyte, and it stops dealing."""
    slow = tf.data.Dataset.range(3 * comm.size).apply(testing.sleep(500_000))
    it = iter(hvdata.distribute_dataset(slow, batch="per_rank", prefetch=1))
    tf.profiler.experimental.start(str(tmp_path))
    results(comm, lambda: int(next(it)))
    results(comm, lambda: save(it, str(tmp_path / "iterator")))
    tf.profiler.experimental.stop()
    (trace,) = tmp_path.rglob("*.xplane.pb")
    made = [name for name, _ in events(trace.read_bytes()) if name.startswith("HorovodDataSaveState")]
    assert len(made) == (1 if comm.rank == 0 else 0), made
