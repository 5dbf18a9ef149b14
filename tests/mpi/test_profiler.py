# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's profiler shows what a rank waits for. On the reader it shows each element dealt and each state made."""

import pytest
import tensorflow as tf
from checkpoints import save
from tensorflow.python.data.experimental.ops import testing
from together import host_of, results

pytestmark = pytest.mark.world(np=1)


def fields(message):
    """(number, value) of each field of a protobuf message. TensorFlow's own module for traces moves with every
    version."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            yield number, varint()
        else:
            size = {1: 8, 5: 4}[kind] if kind != 2 else varint()
            yield number, message[at : at + size]
            at += size


def named(plane, number):
    """Names by id, of a map from ids to messages whose fields 1 and 2 are id and name."""
    entries = [dict(fields(dict(fields(entry)).get(2, b""))) for n, entry in fields(plane) if n == number]
    return {entry.get(1, 0): entry.get(2, b"").decode() for entry in entries}


def events(trace):
    """(name, attributes) of each event. The field numbers are those of TensorFlow's xplane.proto."""
    for plane in (plane for n, plane in fields(trace) if n == 1):
        names, kinds = named(plane, 4), named(plane, 5)
        for line in (line for n, line in fields(plane) if n == 3):
            for event in (event for n, event in fields(line) if n == 4):
                said = {}
                for stat in (dict(fields(stat)) for n, stat in fields(event) if n == 4):
                    value = kinds[stat[7]] if 7 in stat else stat.get(5, stat.get(3, stat.get(4)))
                    said[kinds[stat[1]]] = value.decode() if isinstance(value, bytes) else value
                yield names[dict(fields(event))[1]], said


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
