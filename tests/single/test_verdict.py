# SPDX-License-Identifier: Apache-2.0
"""The sentence of a report, from constructed times."""

import pytest

from horovod_data.observe import times
from horovod_data.observe.report import report, verdict


def trainer(rank, wait, step, receive=0.0, steps=100, host="node0", reader=0, first=0.0):
    """Seconds are of one step, but for `first`."""
    return times.Trainer(
        rank,
        host,
        steps,
        steps,
        wait * steps,
        receive * steps,
        step * steps,
        steps,
        0,
        {reader: wait * steps},
        1,
        first,
    )


def reader(pipeline, deal, room, number=0, steps=100, room_of=None, host="node0"):
    """Seconds are of one of its steps."""
    of = {rank: spent * steps for rank, spent in (room_of or {}).items()}
    return times.Reader(
        number,
        host,
        number == 0,
        steps,
        steps,
        pipeline * steps,
        deal * steps,
        room * steps,
        0.0,
        of,
        {rank: steps for rank in of},
    )


def judged(trainers, readers, dynamic=False, prefetch=2):
    return verdict.judge(times.Channel("train", dynamic, prefetch, tuple(trainers), tuple(readers)))


def test_a_pipeline_that_is_too_slow():
    """The next number of readers, and what it gains: up to where the ranks' own steps bind."""
    found = judged([trainer(r, 0.071, 0.029) for r in range(4)], [reader(0.099, 0.001, 0)])
    assert found.text == (
        "reader-bound: ranks wait 71 % of a step for the pipeline; two readers would give 2.0x "
        "(HOROVOD_DATA_READERS=2, or init(readers=2)), if each has its cores"
    )
    assert (found.bound_by, found.readers, round(found.gain, 2)) == ("reader", 2, 2.0)
    assert round(judged([trainer(r, 0.02, 0.08) for r in range(2)], [reader(0.1, 0, 0)]).gain, 2) == 1.25


def test_readers_that_are_too_few():
    found = judged(
        [trainer(r, 0.04, 0.01) for r in range(2)],
        [reader(0.1, 0, 0, number, steps=50, host=f"node{number}") for number in range(2)],
    )
    assert found.bound_by == "reader" and found.readers == 3 and round(found.gain, 2) == 1.5
    assert "; three readers would give 1.5x (HOROVOD_DATA_READERS=3" in found.text


def test_one_slow_reader_of_two():
    """Readers take turns: a third one takes turns from the slow one, and gains 1.5x. The mean of both said 3x."""
    slow, quick = reader(0.060, 0, 0, 0, steps=50), reader(0.002, 0, 0.058, 1, steps=50, host="node1")
    found = judged([trainer(r, 0.029, 0.001) for r in range(2)], [slow, quick])
    assert found.text == (
        "reader-bound: ranks wait 97 % of a step for the pipeline. Reader 0 on node0 is slow: it takes 60 ms for a step, the "
        "other readers 2 ms. Readers take turns, so the slowest sets the pace; three readers would give 1.5x "
        "(HOROVOD_DATA_READERS=3, or init(readers=3)), if each has its cores"
    )
    assert (found.bound_by, found.readers, round(found.gain, 2)) == ("reader", 3, 1.5)
    assert found.brief(2) == "ranks wait 97 % for the slow reader 0 on node0"
    alike = judged([trainer(r, 0.029, 0.001) for r in range(2)], [slow, reader(0.050, 0, 0.01, 1, steps=50)])
    assert "is slow" not in alike.text


def test_a_reader_that_copies():
    found = judged([trainer(0, 0.05, 0.05)], [reader(0.01, 0.09, 0)])
    assert found.bound_by == "reader" and "while the reader copies and sends; two readers would give 2.0x" in found.text


def test_trainers_that_have_all_they_want():
    found = judged([trainer(r, 0.0002, 0.0496, 0.0002) for r in range(4)], [reader(0.001, 0.001, 0.048)])
    assert (found.bound_by, found.text, found.gain) == (
        "trainer",
        "trainer-bound: delivery costs 0.8 % of a step",
        None,
    )


def test_epochs_that_begin_late():
    """Nothing is wrong with the way of the batches: the pipeline fills a shuffle buffer, say."""
    late = [times.Trainer(r, "a", 100, 100, 2.0, 0.0, 10.0, 2, 150, {0: 2.0}, 4, 1.9) for r in range(2)]
    found = judged(late, [reader(0.01, 0, 0.1)])
    assert found.bound_by == "trainer"
    assert found.text == (
        "trainer-bound: delivery costs 17 % of a step, most of it before the first batch of an epoch (475 ms)"
    )


def test_one_slow_rank():
    ranks = [trainer(r, 0.035, 0.005, host=f"node{r}") for r in range(3)] + [trainer(3, 0, 0.04, host="node3")]
    room = [reader(0.002, 0.001, 0.037, room_of={0: 0.001, 3: 0.036})]
    found = judged(ranks, room)
    assert found.bound_by == "rank" and found.rank == 3 and round(found.gain, 1) == 8.0
    assert found.text.startswith(
        "rank 3 on node3 is slow: the others wait 35 ms of each step for it; at their pace a step would take "
        '5 ms (8.0x). schedule="dynamic" gives'
    )
    assert judged(ranks, room, dynamic=True).bound_by != "rank", "there nobody waits for it"


def test_a_rank_that_is_somewhat_slow():
    for hosts in (["node0"] * 3, ["node0", "node1", "node2"]):
        ranks = [
            trainer(r, 0 if r == 1 else 0.008, 0.028 if r == 1 else 0.02, host=host) for r, host in enumerate(hosts)
        ]
        found = judged(ranks, [reader(0.001, 0.001, 0.026, room_of={1: 0.026})])
        assert (
            found.text.startswith(f"rank 1 on {hosts[1]} is slow: the others wait 8 ms of each step for it; ")
            and "(1.4x)" in found.text
        )


def test_several_slow_ranks():
    """A slow host, say."""
    for hosts in (["node0"] * 8, ["node0"] * 4 + ["node1"] * 4):
        ranks = [
            trainer(r, 0.035 if r < 4 else 0.002, 0.005 if r < 4 else 0.038, host=host) for r, host in enumerate(hosts)
        ]
        found = judged(ranks, [reader(0.002, 0.001, 0.037, room_of={4: 0.009, 5: 0.010, 6: 0.009, 7: 0.009})])
        assert found.text.startswith(
            f"ranks 4, 5, 6, 7 are slow, rank 5 on {hosts[5]} most: the others wait 35 ms of each step for them; "
        )
        assert (found.bound_by, found.rank, round(found.gain)) == ("rank", 5, 8)


def test_a_rank_with_long_steps_that_nobody_waits_for():
    """The pipeline takes as long; or the rank has left after one long step."""
    found = judged(
        [trainer(0, 0.085, 0.005), trainer(1, 0.004, 0.086), trainer(2, 0.085, 0.005)], [reader(0.089, 0.001, 0)]
    )
    assert (found.bound_by, found.gain) == ("reader", None), found.text
    found = judged(
        [trainer(0, 0.085, 0.005), trainer(1, 0, 0.3, steps=1), trainer(2, 0.085, 0.005)], [reader(0.089, 0.001, 0)]
    )
    assert found.bound_by == "reader", found.text


def test_without_the_slow_rank_the_pipeline_would_bind():
    found = judged(
        [trainer(0, 0.055, 0.005), trainer(1, 0, 0.06), trainer(2, 0.055, 0.005)],
        [reader(0.049, 0.001, 0.01, room_of={1: 0.01})],
    )
    assert found.bound_by == "rank" and "at their pace a step would take 50 ms (1.2x)" in found.text


def test_elements_of_a_dynamic_channel():
    """Three of them are what a step is elsewhere."""
    found = judged([trainer(r, 0.085, 0.005) for r in range(3)], [reader(0.0299, 0.0001, 0, steps=300)], dynamic=True)
    assert found.bound_by == "reader" and round(found.gain, 2) == 2.0


@pytest.mark.parametrize("slow", [[0, 1], [1]])
def test_readers_of_hosts(slow):
    """One more is no advice there; and where one host's is slow, the others' ranks wait for it as well."""
    ranks = [trainer(r, 0.095, 0.005, host=f"node{r // 2}", reader=r // 2) for r in range(4)]
    readers = [
        reader(0.099, 0.001, 0, host, host=f"node{host}")
        if host in slow
        else reader(0.019, 0.001, 0.08, host, host=f"node{host}", room_of={2 * host: 0.08})
        for host in range(2)
    ]
    found = judged(ranks, readers)
    assert found.text == "reader-bound: ranks wait 95 % of a step for the pipeline" and found.readers is None


def test_the_wait_for_a_first_batch_is_no_step_of_the_pipeline():
    """However many readers there are, each fills its shuffle buffer first."""
    found = judged([trainer(r, 0.103, 0.008, first=10.0) for r in range(2)], [reader(0.11, 0.0002, 0)])
    assert found.bound_by == "reader" and 1.2 < found.gain < 1.4


def test_one_long_step_is_no_link():
    """A minute of tracing in the first step, in which the reader has waited; afterwards the ranks wait."""
    found = judged(
        [trainer(r, 0.085, 0.605, host=f"node{r}") for r in range(2)], [reader(0.089, 0.001, 0.6, room_of={1: 0.6})]
    )
    assert found.text.startswith("reader-bound in a part of the time: ranks wait 12 %")


def test_batches_that_take_long_to_make():
    found = judged([trainer(r, 0.0002, 0.01, 0.01) for r in range(2)], [reader(0.001, 0.001, 0.018)])
    assert (
        found.text
        == "trainer-bound: delivery costs 50 % of a step, most of it making tensors of batches (verify=True looks at every row)"
    )


def test_a_link_that_is_full():
    """Ranks wait, and so does the reader; the rank beside the reader too, because all step together."""
    ranks = [trainer(0, 0.09, 0.01), trainer(1, 0.09, 0.01, host="node1")]
    found = judged(ranks, [reader(0.002, 0.001, 0.097, room_of={1: 0.097})])
    assert found.text == (
        "link-bound: ranks wait 90 % of a step for batches on their way from node0 to node1; a reader on every host "
        "(readers_per_node=1) would give 10.0x, if each has its cores; smaller elements some of it"
    )
    assert found.bound_by == "link"


@pytest.mark.parametrize("first", [0.0, 1.5])
def test_the_wait_for_a_first_batch_that_the_link_was_full_of(first):
    """The pipeline made it in no time: that wait is the link's, and counts in what a reader on every host saves."""
    ranks = [trainer(0, 0.09, 0.01, first=first), trainer(1, 0.09, 0.01, host="node1", first=first)]
    found = judged(ranks, [reader(0.002, 0.001, 0.097, room_of={1: 0.097})])
    assert found.bound_by == "link" and found.gain == pytest.approx(10, rel=0.05), found.text


def test_a_link_and_then_the_pipelines_of_the_hosts():
    """Each would read for the ranks of its own host: where one host has two of three, two thirds of what one reader reads now."""
    ranks = [trainer(0, 0.09, 0.01)] + [trainer(r, 0.09, 0.01, host="node1") for r in (1, 2)]
    found = judged(ranks, [reader(0.03, 0, 0.07, room_of={1: 0.07})])
    assert found.bound_by == "link" and round(found.gain, 2) == 5.0


def test_two_parts_of_a_job():
    """On one host there is no link: ranks have waited for the pipeline, and the reader for them, at different times."""
    found = judged([trainer(r, 0.09, 0.1) for r in range(2)], [reader(0.08, 0.001, 0.097, room_of={1: 0.097})])
    assert (found.bound_by, found.gain) == ("reader", None)
    assert found.text == (
        "reader-bound in a part of the time: ranks wait 47 % of a step for the pipeline, and at other times the reader "
        "for them; stats(reset=True) on all ranks between the parts tells them apart"
    )


def test_seconds_that_began_anew_in_the_wait_for_a_first_batch():
    """The epoch began before, and its first batch came after."""
    late = [times.Trainer(r, "a", 100, 100, 2.0, 0.0, 10.0, 2, 150, {0: 2.0}, 0, 1.9) for r in range(2)]
    assert judged(late, [reader(0.01, 0, 0.1)]).text.endswith("most of it before the first batch of an epoch (1900 ms)")


def test_a_report_of_many_ranks_is_short():
    processes = [
        {
            "rank": r,
            "reader": 0 if r == 0 else -1,
            "sources": [0],
            "audience": list(range(100)),
            "host": f"node{r}",
            "ranks": 100,
            "channels": {
                "train": {
                    "options": {"batch": 1, "schedule": 0, "prefetch": 2},
                    "trainer": {
                        "wait": r * 10**7,
                        "receive": 0,
                        "step": 10**9,
                        "steps": 100,
                        "rows": 100,
                        "waits": 3,
                        "queued": 150,
                        "epochs": 1,
                        "first": 0,
                        "window": 2,
                        "waited_for": [0],
                    },
                    **(
                        {
                            "reader": {
                                "pipeline": 10**9,
                                "deal": 1,
                                "room": 10**9,
                                "serve": 0,
                                "elements": 10**4,
                                "steps": 100,
                                "untaken": 3,
                                "room_of": [10**9] + [0] * 99,
                                "room_times_of": [7] + [0] * 99,
                            }
                        }
                        if r == 0
                        else {}
                    ),
                }
            },
        }
        for r in range(100)
    ]
    text = str(report.make(processes))
    assert text.count("\n") < 25 and "100 ranks, 1 reader, 10,000 batches" in text and "and 84 more ranks" in text
    assert "reader 0 on node0 10,000 50.0 % 0.0 % 50.0 % 0 (100.0 %, 7x) 0.0 %" in " ".join(text.split())
    assert times.flat(processes[3])["train/wait_seconds"] == pytest.approx(0.03)


def test_no_batch_yet():
    assert (
        str(report.make([])) == "horovod_data report: no batch has been delivered yet, or none since stats(reset=True)"
    )
    assert str(
        report.make([{"rank": 0, "reader": 0, "sources": [0], "audience": [0], "host": "a", "channels": {}}])
    ).endswith("stats(reset=True)")
