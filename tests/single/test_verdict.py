# SPDX-License-Identifier: Apache-2.0
"""The sentence of a report, from constructed times."""

import pytest
from horovod_data import times
from horovod_data.reporting import report, verdict


def trainer(rank, wait, step, receive=0.0, steps=100, host="node0", reader=0):
    """Seconds are of one step."""
    return times.Trainer(rank, host, steps, steps, wait * steps, receive * steps, step * steps, steps, 0, {reader: wait * steps})


def reader(pipeline, deal, room, number=0, steps=100, room_of=None, host="node0"):
    """Seconds are of one of its steps."""
    of = {rank: spent * steps for rank, spent in (room_of or {}).items()}
    return times.Reader(number, host, number == 0, steps, steps, pipeline * steps, deal * steps, room * steps, 0.0, of,
                        {rank: steps for rank in of})


def judged(trainers, readers, dynamic=False, prefetch=2):
    return verdict.judge(times.Channel("train", dynamic, prefetch, tuple(trainers), tuple(readers)))


def test_a_pipeline_that_is_too_slow():
    """The next number of readers, and what it gains: up to where the ranks' own steps bind."""
    found = judged([trainer(r, 0.071, 0.029) for r in range(4)], [reader(0.099, 0.001, 0)])
    assert found.text == ("reader-bound: ranks wait 71 % of a step for the pipeline; two readers would give 2.0x "
                          "(HOROVOD_DATA_READERS=2, or init(readers=2)), if each has its cores")
    assert (found.bound_by, found.readers, round(found.gain, 2)) == ("reader", 2, 2.0)
    assert round(judged([trainer(r, 0.02, 0.08) for r in range(2)], [reader(0.1, 0, 0)]).gain, 2) == 1.25


def test_readers_that_are_too_few():
    found = judged([trainer(r, 0.04, 0.01) for r in range(2)],
                   [reader(0.1, 0, 0, number, steps=50, host=f"node{number}") for number in range(2)])
    assert found.bound_by == "reader" and found.readers == 3 and round(found.gain, 2) == 1.5
    assert "; three readers would give 1.5x (HOROVOD_DATA_READERS=3" in found.text


def test_a_reader_that_copies():
    found = judged([trainer(0, 0.05, 0.05)], [reader(0.01, 0.09, 0)])
    assert found.bound_by == "reader" and "while the reader copies and sends; two readers would give 2.0x" in found.text


def test_trainers_that_have_all_they_want():
    found = judged([trainer(r, 0.0002, 0.0496, 0.0002) for r in range(4)], [reader(0.001, 0.001, 0.048)])
    assert (found.bound_by, found.text, found.gain) == ("trainer", "trainer-bound: delivery costs 0.8 % of a step", None)


def test_epochs_that_begin_late():
    """Nothing is wrong with the way of the batches: the pipeline fills a shuffle buffer, say."""
    late = [times.Trainer(r, "a", 100, 100, 2.0, 0.0, 10.0, 2, 150, {0: 2.0}, 4, 1.9) for r in range(2)]
    found = judged(late, [reader(0.01, 0, 0.1)])
    assert found.bound_by == "trainer"
    assert found.text == ("trainer-bound: delivery costs 17 % of a step, most of it before the first batch of an epoch (475 ms)")


def test_one_slow_rank():
    ranks = [trainer(r, 0.035, 0.005, host=f"node{r}") for r in range(3)] + [trainer(3, 0, 0.04, host="node3")]
    room = [reader(0.002, 0.001, 0.037, room_of={0: 0.001, 3: 0.036})]
    found = judged(ranks, room)
    assert found.bound_by == "rank" and found.rank == 3 and round(found.gain, 1) == 8.0
    assert found.text.startswith("rank 3 on node3 is slow: the others wait 35 ms of each step for it; at their pace a step would take "
                                 "5 ms (8.0x). schedule=\"dynamic\" gives")
    assert judged(ranks, room, dynamic=True).bound_by != "rank", "there nobody waits for it"


def test_a_link_that_is_full():
    """Ranks wait, and so does the reader; the rank beside the reader too, because all step together."""
    ranks = [trainer(0, 0.09, 0.01), trainer(1, 0.09, 0.01, host="node1")]
    found = judged(ranks, [reader(0.002, 0.001, 0.097, room_of={1: 0.097})])
    assert found.text == ("link-bound: ranks wait 90 % of a step for batches on their way from node0 to node1; a reader on every host "
                          "(readers_per_node=1) would give up to 10.0x, smaller elements some of it")
    assert found.bound_by == "link"


def test_two_parts_of_a_job():
    """On one host there is no link: ranks have waited for the pipeline, and the reader for them, at different times."""
    found = judged([trainer(r, 0.09, 0.1) for r in range(2)], [reader(0.08, 0.001, 0.097, room_of={1: 0.097})])
    assert (found.bound_by, found.gain) == ("reader", None)
    assert found.text == ("reader-bound in a part of the time: ranks wait 47 % of a step for the pipeline, and at other times the reader "
                          "for them; stats(reset=True) on all ranks between the parts tells them apart")


def test_seconds_that_began_anew_in_the_wait_for_a_first_batch():
    """The epoch began before, and its first batch came after."""
    late = [times.Trainer(r, "a", 100, 100, 2.0, 0.0, 10.0, 2, 150, {0: 2.0}, 0, 1.9) for r in range(2)]
    assert judged(late, [reader(0.01, 0, 0.1)]).text.endswith("most of it before the first batch of an epoch (1900 ms)")


def test_a_report_of_many_ranks_is_short():
    processes = [{"rank": r, "reader": 0 if r == 0 else -1, "sources": [0], "audience": list(range(100)), "host": f"node{r}", "ranks": 100, "channels": {
        "train": {"options": {"batch": 1, "schedule": 0, "prefetch": 2},
                  "trainer": {"wait": r * 10**7, "receive": 0, "step": 10**9, "steps": 100, "rows": 100, "waits": 3, "queued": 150, "epochs": 1, "first": 0, "waited_for": [0]},
                  **({"reader": {"pipeline": 10**9, "deal": 1, "room": 10**9, "serve": 0, "elements": 10**4, "steps": 100, "untaken": 3,
                                 "room_of": [10**9] + [0] * 99, "room_times_of": [7] + [0] * 99}} if r == 0 else {})}}} for r in range(100)]
    text = str(report.make(processes))
    assert text.count("\n") < 25 and "100 ranks, 1 reader, 10,000 batches" in text and "and 84 more ranks" in text
    assert "reader 0 on node0 10,000 50.0 % 0.0 % 50.0 % 0 (100.0 %, 7x) 0.0 %" in " ".join(text.split())
    assert times.flat(processes[3])["train/wait_seconds"] == pytest.approx(0.03)


def test_no_batch_yet():
    assert str(report.make([])) == "horovod_data report: no batch has been delivered yet, or none since stats(reset=True)"
    assert str(report.make([{"rank": 0, "reader": 0, "sources": [0], "audience": [0], "host": "a", "channels": {}}])).endswith("stats(reset=True)")
