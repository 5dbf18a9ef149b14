# SPDX-License-Identifier: Apache-2.0
"""python -m horovod_data.timeline merge takes JSON files of these formats, and puts their events at the right times.

Parts of a job: test_timeline_parts.py. Files of real jobs: tests/faults/test_timelines_of_jobs.py.
"""

import json
import subprocess
import sys

import pytest

from horovod_data import timeline

START = 1_700_000_000_000_000  # microseconds: rank 0's time 0


def metadata(name, **arguments):
    return {"ph": "M", "name": name, "pid": 0, "tid": 1000, "args": arguments}


def ours(*events, ended=True, began=START, rank0=True):
    clock = dict(start_time_since_epoch_in_micros=began, offset_in_micros=0.0, round_trip_in_micros=0.0)
    all_events = [
        metadata("horovod_data", timeline=1, ranks=2, readers=1),
        *[metadata("horovod_data clock", **clock)] * rank0,
        *events,
        *[metadata("horovod_data end", left_out=7)] * ended,
    ]
    return "[\n" + ",\n".join(map(json.dumps, all_events)) + ("\n]\n" if ended else ",\n")


def step(ts, pid=0):
    arguments = {"step": 1}
    return dict(ph="X", name="step", cat="trainer", pid=pid, tid=1002, ts=ts, dur=1000.0, args=arguments)


# A timeline as Horovod 0.28.1 writes it. All events are in one line, and each overwrites the end of the list.
HOROVODS = (
    '[\n{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros":%d}},\n'
    '{"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}},\n'
    '{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "DistributedGrad_0"}},\n'
    '{"name": "process_sort_index", "ph": "M", "pid": 1, "args": {"sort_index": 1}},\n'
    '{"ph": "B", "name": "ALLREDUCE", "ts": 500, "pid": 1, "args": {"dtype": "float32"}},'
    '{"ph": "E", "ts": 900, "pid": 1},'
    '{"ph": "i", "name": "CYCLE_START", "ts": 950, "s": "g"}]'
)


@pytest.fixture
def file(tmp_path):
    def write(text, name="trace.json"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def merge(*words):
    command = [sys.executable, "-m", "horovod_data.timeline", "merge", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=170)


@pytest.fixture
def merged(tmp_path):
    """A function that merges files. It returns the events, and what the command prints."""

    def run(*files):
        ran = merge(*files, "-o", str(tmp_path / "merged.json"))
        assert ran.returncode == 0, ran.stderr
        return json.loads((tmp_path / "merged.json").read_text()), ran.stdout

    return run


def test_horovods_events_come_where_they_were(file, merged):
    """Horovod began 2.5 ms after our time 0, so 500 microseconds in its timeline are 3000 in ours."""
    events, said = merged(file(HOROVODS % (START + 2500), "hvd.json"), file(ours(step(2000.5), step(4000.25, pid=1))))
    assert "7 were left out" in said and "of Horovod" in said, said
    times = {event.get("name", event["ph"]): event["ts"] for event in events if "ts" in event and event.get("pid") != 1}
    assert times == {"step": 2000.5, "ALLREDUCE": 3000, "E": 3400, "CYCLE_START": 3450}, times
    rows = {event["args"]["name"]: event["pid"] for event in events if event.get("name") == "process_name"}
    assert rows == {"Horovod": 1_000_000, "Horovod: DistributedGrad_0": 1_000_001}, rows
    assert {event["pid"] for event in events if event["ph"] == "X"} == {0, 1}, "ours stay as they are"


def test_nothing_is_before_time_0(file, merged):
    """Perfetto would leave out events at negative times, when Horovod ran and horovod_data had not begun."""
    events, _ = merged(file(HOROVODS % (START - 1000), "hvd.json"), file(ours(step(10))))
    times = {event.get("name"): event["ts"] for event in events if "ts" in event}
    assert times["ALLREDUCE"] == 500 and times["step"] == 1010, times


def test_timelines_of_two_runs_stand_below_each_other(file, merged):
    events, _ = merged(file(ours(step(10)), "a.json"), file(ours(step(10), began=START + 1000), "b.json"))
    assert [(event["pid"], event["ts"]) for event in events if event["ph"] == "X"] == [(0, 10), (1_000_000, 1010)]


@pytest.mark.parametrize("cut", range(1, 120, 7))
def test_a_file_that_broke_off_anywhere_is_taken(file, cut):
    for text in (ours(step(10), step(20), ended=False), HOROVODS % START):
        read = timeline.read(file(text[:-cut]))
        assert read.broken_off
        assert all("ph" in event for event in read.events)


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "is empty: the job was killed, or runs on; merge the files of its processes"),
        ("{}", "it doesn't begin with a list of events"),
        ("hello", "it doesn't begin with a list of events"),
        (b"\x7fELF\x00\xff", "it doesn't begin with a list of events"),
        ("[1, 2]", "1 is no event"),
        ('[{"name": "a"}]', "is no event"),
        ('[{"ph": "X", "ts": "now"}]', "{'ph': 'X', 'ts': 'now'} is no event"),
        ('[{"ph": "X", "ts": 1%s}]' % ("0" * 400), "{'ph': 'X', 'ts': 1000"),
        ('[{"ph": "i", "ts": 1}]', "it has no start time"),
        (ours(step(1)).replace('"dur"', 'dur"'), "its events can't be read ("),
        (ours(*[step(1)] * 9).replace('"dur"', 'dur"')[:-3], "its events can't be read ("),
        (
            ours(step(1)).replace('"timeline": 1', '"timeline": 2'),
            "its format is 2, of another version of horovod_data",
        ),
        (ours(step(1)).replace('"left_out": 7', '"left_out": null'), "is no event"),
        (ours(step(1)).replace(', "args": {"timeline": 1, "ranks": 2, "readers": 1}', ""), "its format is None"),
        (HOROVODS.replace('"sort_index": 1', '"sort_index": "first"') % START, "is no event"),
        (ours(step(1), ended=False, rank0=False), "it has no start time"),
    ],
)
def test_what_is_no_timeline_is_refused(file, text, says):
    path = file(text)
    with pytest.raises(ValueError, match="is no timeline: ") as raised:
        timeline.read(path)
    assert str(raised.value).startswith(path) and says in str(raised.value)


def test_an_event_may_have_the_name_of_metadata(file, merged):
    names = ["process_name", "process_sort_index"]
    named = [{**step(1), "name": name} for name in names]
    for event in named:
        del event["args"]
    events, _ = merged(file(ours(step(1))), file(ours(*named), "second.json"))
    assert [one["name"] for one in events if one["ph"] == "X"] == ["step", *names]


def test_useless_names(file, tmp_path):
    good, horovods = file(ours(step(1))), file(HOROVODS % START, "hvd.json")
    for words, says in (
        ((str(tmp_path / "absent.json"), "-o", "x"), "absent.json: No such file or directory"),
        ((good, "-o", good), "is one of the files to be merged. Give -o another name."),
        ((good, "-o", str(tmp_path / "no" / "out.json")), "out.json: No such file or directory"),
        ((good, "-o", str(tmp_path)), "Is a directory"),
        ((good, "-o", "/dev/full"), "error: /dev/full: No space left on device"),
        ((horovods, "-o", str(tmp_path / "x")), "None of these timelines is horovod_data's"),
        ((file("", "none.json"), "-o", str(tmp_path / "x")), "none.json is no timeline: it is empty"),
    ):
        ran = merge(*words)
        assert ran.returncode == 2 and says in ran.stderr and "Traceback" not in ran.stderr, (words, ran.stderr)
