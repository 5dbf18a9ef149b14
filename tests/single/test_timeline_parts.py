# SPDX-License-Identifier: Apache-2.0
"""Each process of a job writes a part of the timeline. Tests of the files, the times of events, and missing parts.

Files of real jobs: tests/faults/test_timelines_of_jobs.py.
"""

import json
import struct

import pytest

from horovod_data import timeline
from horovod_data.timeline import parts as timeline_parts

MS = 1_000_000  # ns
ZERO = 5_000_000_000  # reader 0's clock at the timeline's time 0
WALL = 1_700_000_000_000_000  # microseconds: the same moment


def block(kind, payload):
    return struct.pack("<4sI", kind, len(payload)) + payload


def head(trainer, reader, host, ranks=2, readers=1):
    return block(b"HEAD", f"1 {trainer} {reader} {ranks} {readers} {host}".encode())


def clock(here, there, round_trip=0, zero=ZERO):
    return block(b"CLCK", struct.pack("<5q", here, there, round_trip, zero, WALL + (there - zero) // 1000))


def channel(number, name):
    return block(b"CHAN", struct.pack("<I", number) + name.encode())


def events(*given):
    """(begin, end, name, step, whom, reads) of channel 1, epoch 2. An event whose begin is its end is a moment."""
    packed = [
        struct.pack("<qqQQIi14s??", begin, end, 2, step, 1, whom, name, reads, begin == end)
        for begin, end, name, step, whom, reads in given
    ]
    return block(b"EVNT", b"".join(packed))


def end(left_out=0):
    return block(b"ENDS", struct.pack("<Q", left_out))


READER_0 = (
    head(0, 0, "a")
    + clock(ZERO, ZERO)
    + channel(1, 'the "train"')
    + events((ZERO + MS, ZERO + MS, b"epoch begins", 0, -1, True), (ZERO + MS, ZERO + 3 * MS, b"deal", 7, 1, True))
    + end(3)
)
AHEAD = 1000 * 1000 * MS  # the clock of rank 1
RANK_1 = (
    head(1, -1, "b c")
    + clock(ZERO + AHEAD + 2 * MS, ZERO + 2 * MS, 1000)
    + channel(1, 'the "train"')
    + events((ZERO + AHEAD + 2 * MS, ZERO + AHEAD + 4 * MS, b"wait for data", 7, 0, False))
    + block(b"LOST", struct.pack("<Qq", 5, ZERO + AHEAD + 6 * MS))
    + end(5)
)


@pytest.fixture
def job(tmp_path):
    """The file of a job, and a way to write the parts beside it."""
    path = tmp_path / "trace.json"

    def write(**parts):
        for suffix, data in parts.items():
            (tmp_path / f"trace.json.{suffix}").write_bytes(data)
        return str(path)

    return write


def read(path, *suffixes):
    (read,) = timeline.read_parts([f"{path}.{suffix}" for suffix in suffixes])
    return read


SHOWN = ["ph", "name", "cat", "pid", "tid", "ts", "dur"]


def names(one, of, by):
    return {event[by]: event["args"]["name"] for event in one.events if event["name"] == of}


def test_events_of_all_processes_in_one_time(job):
    one = read(job(rank0=READER_0, rank1=RANK_1), "rank1", "rank0")
    assert (one.began, one.broken_off, one.left_out, one.ours) == (WALL, False, 8, True)
    assert one.events[0]["args"] == {"timeline": 1, "ranks": 2, "readers": 1}
    shown = [[event.get(key) for key in SHOWN] for event in one.events if event["ph"] != "M"]
    assert shown == [
        ["i", "epoch begins", "reader", 0, 1003, 1000.0, None],
        ["X", "deal", "reader", 0, 1003, 1000.0, 2000.0],
        ["X", "wait for data", "trainer", 1, 2002, 2000.0, 2000.0],
        ["i", "5 events left out", "left out", 1, 2000, 6000.0, None],
    ]
    arguments = {event["name"]: event["args"] for event in one.events if event["ph"] == "X"}
    place = {"channel": 'the "train"', "reader": 0, "epoch": 2, "step": 7}
    assert arguments == {"deal": {**place, "rank": 1}, "wait for data": place}
    assert names(one, "process_name", "pid") == {0: "rank 0 on a, reader 0", 1: "rank 1 on b c"}
    assert names(one, "thread_name", "tid") == {1003: 'the "train" (reader)', 2002: 'the "train" (trainer)'}
    said = {event["pid"]: event["args"] for event in one.events if event["name"] == "horovod_data clock"}
    offsets = {"offset_in_micros": -AHEAD / 1000, "round_trip_in_micros": 1.0}
    assert said[1] == {"start_time_since_epoch_in_micros": WALL, **offsets}


def test_a_dedicated_reader_stands_below_the_ranks(job):
    path = job(rank0=head(0, -1, "a") + clock(0, ZERO) + end(), reader0=head(-1, 0, "a") + clock(ZERO, ZERO) + end())
    one = read(path, "rank0", "reader0")
    assert names(one, "process_name", "pid") == {0: "rank 0 on a", 2: "reader 0 on a"} and one.events[0]["pid"] == 2


def test_a_part_that_broke_off_anywhere_is_taken(job):
    """The process of this part was killed while it wrote. The rest of a broken event is left out."""
    least = len(RANK_1) - RANK_1.index(b"CHAN")
    for cut in range(1, least):
        one = read(job(rank0=READER_0, rank1=RANK_1[:-cut]), "rank0", "rank1")
        assert one.broken_off
        json.dumps(one.events)
    early = read(job(rank0=READER_0, rank1=RANK_1[: RANK_1.index(b"CLCK") + 9]), "rank1", "rank0")
    assert set(names(early, "process_name", "pid")) == {0, 1}, "it knows no time yet"


@pytest.mark.parametrize(
    "data, says",
    [
        (b"HEAD", "it begins with '', unlike all parts of this version"),
        (block(b"HEAD", b"2 0 0 1 1 a"), "it begins with '2 0 0 1 1 a', unlike all parts"),
        (READER_0 + b"garbage!", "a block of unknown kind b'garb' ends at byte"),
        (head(0, 0, "a"), "no process knew the time of reader 0 before the job was killed"),
    ],
)
def test_what_is_no_part_is_refused(job, data, says):
    with pytest.raises(ValueError, match="is no timeline: ") as raised:
        read(job(rank0=data), "rank0")
    assert says in str(raised.value)


def test_a_keeper_is_no_reader(job):
    """For keepers of a channel with cache="job", the core gives -1 as rank or reader."""
    keeper = head(1, -1, "b") + clock(ZERO, ZERO) + channel(1, "t")
    keeper += events((ZERO, ZERO + MS, b"deal", 0, 0, True), (ZERO, ZERO + MS, b"wait", 0, -1, False)) + end()
    dealt, waited = [one["args"] for one in read(job(rank0=READER_0, rank1=keeper), "rank1").events if one["ph"] == "X"]
    assert dealt == {"channel": "t", "rank": 0, "epoch": 2, "step": 0}
    assert waited == {"channel": "t", "epoch": 2, "step": 0}


def test_parts_of_two_jobs_are_two_timelines(job):
    other = head(0, 0, "a") + clock(ZERO + MS, ZERO + MS, 0, ZERO + MS) + end()
    path = job(rank0=READER_0, rank1=RANK_1, rank2=other)
    assert len(timeline.read_parts([f"{path}.rank{rank}" for rank in range(3)])) == 2


def test_the_quickest_answer_is_the_clock(job):
    """Batches fill the link while the slower answers come. One clock offset holds for all times of the process."""
    answers = (
        clock(ZERO, ZERO + 7 * MS, 9 * MS) + clock(ZERO + MS, ZERO + 3 * MS, 1000) + clock(ZERO + 2 * MS, ZERO, 8 * MS)
    )
    given = events((ZERO, ZERO + 5 * MS, b"step", 0, 0, False))
    one = read(job(rank0=READER_0, rank1=head(1, -1, "b") + answers + channel(1, "t") + given + end()), "rank1")
    assert [(event["ts"], event["dur"]) for event in one.events if event["ph"] == "X"] == [(2000.0, 5000.0)]


# ---- The end of a job.


def test_reader_0_merges_all_parts(job, capfd):
    path = job(rank0=READER_0, rank1=RANK_1)
    timeline_parts.begin(path)
    job(rank0=READER_0, rank1=RANK_1)
    timeline_parts.finish({(0, 0): "rank 0 on a", (1, -1): "rank 1 on b c"})
    merged = timeline.read(path)
    assert not merged.broken_off and merged.events == read(job(rank0=READER_0, rank1=RANK_1), "rank0", "rank1").events
    assert capfd.readouterr().err == ""


def test_parts_that_an_earlier_job_has_left_are_removed(job, tmp_path):
    path = job(rank0=READER_0, rank12=RANK_1, reader1=READER_0, rank=b"not ours", rankings=b"neither")
    timeline_parts.begin(path)
    assert {one.name for one in tmp_path.iterdir()} == {"trace.json", "trace.json.rank", "trace.json.rankings"}


@pytest.mark.parametrize("there, lacks", [({}, "rank 1 on b c"), ({"rank1": RANK_1[:-1]}, "the end of rank 1 on b c")],
                         ids=["a file system of its own", "killed"])  # fmt: skip
def test_missing_parts_are_told_and_the_others_stay(job, tmp_path, capfd, monkeypatch, there, lacks):
    monkeypatch.setattr(timeline_parts, "_PATIENCE_SECONDS", 0.1)
    path = job()
    timeline_parts.begin(path)
    job(rank0=READER_0, **there)
    timeline_parts.finish({(0, 0): "rank 0 on a", (1, -1): "rank 1 on b c"})
    (line,) = capfd.readouterr().err.splitlines()
    assert f"The timeline {path} lacks {lacks}: each process writes a file beside it, and not all are on " in line
    assert (
        f"copy the files {path}.* of all hosts to one folder, and merge them: python -m horovod_data.timeline " in line
    )
    assert (tmp_path / "trace.json.rank0").exists() and timeline.read(path).events
