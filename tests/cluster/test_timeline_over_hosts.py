# SPDX-License-Identifier: Apache-2.0
"""One timeline of hosts whose clocks differ: by 1000 s here, in a time namespace, so that the difference is known."""

import subprocess

import pytest
import tracing
from bed import Bed
from jobs import program
from over_hosts import start_over

AHEAD = 1000  # seconds, of the second host

SHIFT = """
if int(os.environ["OMPI_COMM_WORLD_RANK"]) >= 2 and "SHIFTED" not in os.environ:
    os.environ["SHIFTED"] = "1"
    os.execvp("unshare", ["unshare", "--time", "--monotonic", sys.argv[1], sys.executable, *sys.argv])
"""
STEPS = """
dataset = train(lambda: tf.data.Dataset.range(1600))
now("clock")
for x in dataset:
    time.sleep(0.01)
"""


def can_shift() -> bool:
    ran = subprocess.run(["unshare", "--time", "--monotonic", str(AHEAD), "true"], capture_output=True)
    return ran.returncode == 0


def allowed(event) -> float:
    """Microseconds that an offset may be wrong: a millisecond, or more by its own round trip if the machine is busy."""
    return max(1000, event["args"]["round_trip_in_micros"] / 2 + 50)


@pytest.mark.slow
@pytest.mark.limit(120)
@pytest.mark.skipif(not can_shift(), reason="this kernel, or this unshare, has no time namespaces")
def test_clocks_are_aligned_within_a_millisecond(tmp_path):
    path = tmp_path / "trace.json"
    with Bed(2, rate="1gbit") as bed:
        with start_over(
            bed, program(STEPS, SHIFT), [0, 0, 1, 1], str(AHEAD), env={"HOROVOD_DATA_TIMELINE": str(path)}
        ) as job:
            assert job.finish(100) == 0, job.describe()
        clocks = [job.when("clock", rank) for rank in range(4)]
        assert min(clocks[2:]) - max(clocks[:2]) > AHEAD - 60, "the second host is not ahead: nothing is tested"
    events = tracing.load(path)
    said = [event for event in events if event["name"] == "horovod_data clock"]
    for event in said:
        expected = -AHEAD * 1e6 if event["pid"] >= 2 else 0
        assert abs(event["args"]["offset_in_micros"] - expected) <= allowed(event), event
        assert (event["args"]["round_trip_in_micros"] == 0) == (event["pid"] < 2), event
    worst = max(map(allowed, said))  # an event is where the offset of its time puts it
    starts = [event["args"]["start_time_since_epoch_in_micros"] for event in said]
    assert max(starts) - min(starts) <= 20000 + worst, "of one moment, by a clock that these hosts have in common"

    # No batch arrives before it was sent, and no batch is requested after it was dealt: both ways between hosts.
    deals = {}
    for event in tracing.phases(events, 0, "reader"):
        if event["name"] == "deal":
            deals.setdefault(event["args"]["step"], event["ts"])
    begins = [event for event in events if event["ph"] == "i" and event["name"] == "epoch begins"]
    (reader,) = [event["ts"] for event in begins if event["cat"] == "reader"]
    interrupted = 50000  # microseconds, in which a rank that asks may be interrupted before it notes that
    assert min(event["ts"] for event in begins if event["cat"] == "trainer") <= reader + worst + interrupted
    compared = 0
    for rank in range(4):
        for event in tracing.phases(events, rank, "trainer"):
            # With "reader" a batch has arrived.
            if event["name"] == "receive" and event["args"]["step"] > 0 and "reader" in event["args"]:
                assert deals[event["args"]["step"]] <= event["ts"] + event["dur"] + worst, (rank, event)
                compared += 1
    assert compared > 100
