# SPDX-License-Identifier: Apache-2.0
"""The sentence of a report, from constructed times."""

import pytest

from horovod_data.observe import times
from horovod_data.observe.report import report, verdict


def trainer(rank, wait, step, receive=0.0, steps=100, host="node0", reader=0, first=0.0):
    """Seconds are those of one step, except `first`."""
    waited = {reader: wait * steps}
    return times.Trainer(
        rank, host, steps, steps, wait * steps, receive * steps, step * steps, steps, 0, waited, 1, first
    )


def trainers(count, wait, step, receive=0.0, **more):
    return [trainer(rank, wait, step, receive, **more) for rank in range(count)]


def reader(pipeline, deal, room, number=0, steps=100, room_of=None, host="node0"):
    """Seconds are those of one step."""
    spent = [each * steps for each in (pipeline, deal, room)]
    of = {rank: each * steps for rank, each in (room_of or {}).items()}
    return times.Reader(number, host, number == 0, steps, steps, *spent, 0.0, of, dict.fromkeys(of, steps))


def judged(trainers, readers, dynamic=False):
    return verdict.judge(times.Channel("train", dynamic, tuple(trainers), tuple(readers)))


def others(rank, wait, step, slow):
    """Three ranks. The two others wait for the rank `slow`."""
    return [slow if other == rank else trainer(other, wait, step) for other in range(3)]


def late(epochs):
    """Two ranks that waited 1.9 s for first batches."""
    return [times.Trainer(r, "a", 100, 100, 2.0, 0.0, 10.0, 2, 150, {0: 2.0}, epochs, 1.9) for r in range(2)]


def of_two_hosts(first=0.0, beside=1):
    """Rank 0 is on the reader's host, and `beside` ranks are on another host."""
    there = [trainer(rank, 0.09, 0.01, host="node1", first=first) for rank in range(1, 1 + beside)]
    return [trainer(0, 0.09, 0.01, first=first), *there]


SLOW_READER = reader(0.060, 0, 0, 0, steps=50)
TWO = "two readers would give 2.0x (HOROVOD_DATA_READERS=2, or init(readers=2)), if each has its cores"
THREE = "three readers would give 1.5x (HOROVOD_DATA_READERS=3, or init(readers=3)), if each has its cores"
FULL_LINK = [reader(0.002, 0.001, 0.097, room_of={1: 0.097})]

CASES = {  # trainers, readers, what binds, the gain, and the text or parts of it
    "a pipeline that is too slow": (
        trainers(4, 0.071, 0.029), [reader(0.099, 0.001, 0)], "reader", 2.0,
        f"reader-bound: ranks wait 71 % of a step for the pipeline; {TWO}"),
    "up to where the ranks' own steps bind": (trainers(2, 0.02, 0.08), [reader(0.1, 0, 0)], "reader", 1.25, "1.2x"),
    "too few readers": (
        trainers(2, 0.04, 0.01), [reader(0.1, 0, 0, number, steps=50, host=f"node{number}") for number in range(2)],
        "reader", 1.5, f"; {THREE}"),
    # A third reader takes turns from the slow reader. The mean of both would say 3x.
    "one slow reader of two": (
        trainers(2, 0.029, 0.001), [SLOW_READER, reader(0.002, 0, 0.058, 1, steps=50, host="node1")], "reader", 1.5,
        "reader-bound: ranks wait 97 % of a step for the pipeline. Reader 0 on node0 is slow: it takes 60 ms for a step, "
        f"the other readers 2 ms. Readers take turns, so the slowest sets the pace; {THREE}"),
    "a reader that copies": (
        trainers(1, 0.05, 0.05), [reader(0.01, 0.09, 0)], "reader", 2.0, f"while the reader copies and sends; {TWO}"),
    "trainers that have all they want": (
        trainers(4, 0.0002, 0.0496, 0.0002), [reader(0.001, 0.001, 0.048)], "trainer", None,
        "trainer-bound: delivery costs 0.8 % of a step"),
    # The pipeline fills a shuffle buffer, for example.
    "epochs that begin late": (
        late(4), [reader(0.01, 0, 0.1)], "trainer", None,
        "trainer-bound: delivery costs 17 % of a step, most of it before the first batch of an epoch (475 ms)"),
    "seconds that began anew in the wait for a first batch": (
        late(0), [reader(0.01, 0, 0.1)], "trainer", None, "most of it before the first batch of an epoch (1900 ms)"),
    "one slow rank": (
        others(2, 0.035, 0.005, trainer(2, 0, 0.04, host="node2")),
        [reader(0.002, 0.001, 0.037, room_of={0: 0.001, 2: 0.036})], "rank", 8.0,
        "rank 2 on node2 is slow: the others wait 35 ms of each step for it; at their pace a step would take 5 ms (8.0x). "
        'schedule="dynamic" gives'),
    "a rank that is somewhat slow": (
        others(1, 0.008, 0.02, trainer(1, 0, 0.028)), [reader(0.001, 0.001, 0.026, room_of={1: 0.026})], "rank", 1.4,
        "rank 1 on node0 is slow: the others wait 8 ms of each step for it; "),
    "one that is somewhat slow on a host of its own": (
        others(1, 0.008, 0.02, trainer(1, 0, 0.028, host="node1")),
        [reader(0.001, 0.001, 0.026, room_of={1: 0.026})], "rank", 1.4, "rank 1 on node1 is slow: "),
    "without the slow rank the pipeline would bind": (
        others(1, 0.055, 0.005, trainer(1, 0, 0.06)), [reader(0.049, 0.001, 0.01, room_of={1: 0.01})], "rank", 1.2,
        "at their pace a step would take 50 ms (1.2x)"),
    "a pipeline that takes as long as the slow rank": (
        others(1, 0.085, 0.005, trainer(1, 0.004, 0.086)), [reader(0.089, 0.001, 0)], "reader", None, ""),
    "a rank that has left after one long step": (
        others(1, 0.085, 0.005, trainer(1, 0, 0.3, steps=1)), [reader(0.089, 0.001, 0)], "reader", ..., ""),
    # Each reader fills its shuffle buffer first.
    "a first batch is no step of the pipeline": (
        trainers(2, 0.103, 0.008, first=10.0), [reader(0.11, 0.0002, 0)], "reader", 1.3, ""),
    # The first step takes a minute of tracing, in which the reader waits. Afterwards the ranks wait.
    "one long step is no link": (
        [trainer(r, 0.085, 0.605, host=f"node{r}") for r in range(2)],
        [reader(0.089, 0.001, 0.6, room_of={1: 0.6})], "reader", ...,
        "reader-bound in a part of the time: ranks wait 12 %"),
    "batches that take long to make": (
        trainers(2, 0.0002, 0.01, 0.01), [reader(0.001, 0.001, 0.018)], "trainer", None,
        "trainer-bound: delivery costs 50 % of a step, most of it making tensors of batches (verify=True looks at every row)"),
    # The rank beside the reader waits too, because all step together.
    "a link that is full": (
        of_two_hosts(), FULL_LINK, "link", 10.0,
        "link-bound: ranks wait 90 % of a step for batches on their way from node0 to node1; a reader on every host "
        "(readers_per_node=1) would give 10.0x, if each has its cores; smaller elements would give a part of this gain"),
    "a first batch that waits for the link": (of_two_hosts(first=1.5), FULL_LINK, "link", 10.0, ""),
    # A host with two of three ranks would read two thirds of what one reader reads now.
    "a link, and then the pipelines of the hosts": (
        of_two_hosts(beside=2), [reader(0.03, 0, 0.07, room_of={1: 0.07})], "link", 5.0, ""),
    # On one host there is no link: ranks have waited for the pipeline, and the reader for them, at different times.
    "two parts of a job": (
        trainers(2, 0.09, 0.1), [reader(0.08, 0.001, 0.097, room_of={1: 0.097})], "reader", None,
        "reader-bound in a part of the time: ranks wait 47 % of a step for the pipeline, and at other times the reader "
        "waits for ranks; stats(reset=True) on all ranks between these times tells them apart"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_verdicts(case):
    ranks, readers, bound_by, gain, text = CASES[case]
    found = judged(ranks, readers)
    assert found.bound_by == bound_by and text in found.text, found.text
    if gain is not ...:
        assert found.gain == (gain and pytest.approx(gain, rel=0.06)), found.gain


def test_a_slow_reader_in_a_few_words():
    slow = [SLOW_READER, reader(0.002, 0, 0.058, 1, steps=50, host="node1")]
    found = judged(trainers(2, 0.029, 0.001), slow)
    assert found.readers == 3
    alike = judged(trainers(2, 0.029, 0.001), [SLOW_READER, reader(0.050, 0, 0.01, 1, steps=50)])
    assert "is slow" not in alike.text


@pytest.mark.parametrize("hosts", [["node0"] * 8, ["node0"] * 4 + ["node1"] * 4], ids=["one host", "a slow host"])
def test_several_slow_ranks(hosts):
    ranks = [trainer(r, *((0.035, 0.005) if r < 4 else (0.002, 0.038)), host=host) for r, host in enumerate(hosts)]
    found = judged(ranks, [reader(0.002, 0.001, 0.037, room_of={4: 0.009, 5: 0.010, 6: 0.009, 7: 0.009})])
    assert found.text.startswith(
        f"ranks 4, 5, 6, 7 are slow, rank 5 on {hosts[5]} most: the others wait 35 ms of each step for them; "
    )
    assert (found.bound_by, found.rank, round(found.gain)) == ("rank", 5, 8)


def test_dynamic_channels():
    """With schedule="dynamic" no rank waits for a slow rank. Three elements count as a step of the three ranks."""
    ranks, readers, *_ = CASES["one slow rank"]
    assert judged(ranks, readers, dynamic=True).bound_by != "rank"
    found = judged(trainers(3, 0.085, 0.005), [reader(0.0299, 0.0001, 0, steps=300)], dynamic=True)
    assert found.bound_by == "reader" and round(found.gain, 2) == 2.0


@pytest.mark.parametrize("slow", [[0, 1], [1]])
def test_readers_of_hosts(slow):
    """With a reader per host, another reader is no advice.

    If one reader is slow, the ranks of other hosts wait, too.
    """
    ranks = [trainer(r, 0.095, 0.005, host=f"node{r // 2}", reader=r // 2) for r in range(4)]
    readers = [
        reader(0.099, 0.001, 0, host, host=f"node{host}")
        if host in slow
        else reader(0.019, 0.001, 0.08, host, host=f"node{host}", room_of={2 * host: 0.08})
        for host in range(2)
    ]
    found = judged(ranks, readers)
    assert found.text == "reader-bound: ranks wait 95 % of a step for the pipeline" and found.readers is None


def times_of(rank):
    """The times that a rank of a job of 100 ranks reports. Rank 0 reads."""
    trained = times.Trainer(rank, f"node{rank}", 100, 100, rank * 0.01, 0.0, 1.0, 3, 150, {0: 0.0})
    channel = {"options": {"schedule": 0}, "trainer": trained}
    if rank == 0:
        channel["reader"] = times.Reader(0, "node0", True, 10**4, 100, 1.0, 0.0, 1.0, 0.0, {0: 1.0}, {0: 7}, 3)
    return {"rank": rank, "reader": 0 if rank == 0 else -1, "ranks": 100, "channels": {"train": channel}}


def test_a_report_of_many_ranks_is_short():
    processes = [times_of(rank) for rank in range(100)]
    text = str(report.make(processes))
    assert text.count("\n") < 25 and "100 ranks, 1 reader, 10,000 batches" in text and "and 84 more ranks" in text
    assert "reader 0 on node0 10,000 50.0 % 0.0 % 50.0 % 0 (100.0 %, 7x) 0.0 %" in " ".join(text.split())
    assert times.flat(processes[3])["train/wait_seconds"] == pytest.approx(0.03)


def test_no_batch_yet():
    begun = {"rank": 0, "reader": 0, "channels": {}}
    for processes in [], [begun]:
        assert str(report.make(processes)).endswith("no batch has been delivered yet, or none since stats(reset=True)")


# ---- cache="job"

KEEPER = """sources 0
serves 0 1
channel 74 0 0 2 2 1 8 2 0
trainer 4000000000 0 4000000000 2 8 2 0 1 2 1000000000 4000000000
reader 4000000000 0 0 0 2 2 0 0 0 0 0
cache 1073741824 3221225472 80 8 24 0 0
"""
KEPT = f"process 0 0 2 61\n{KEEPER}process 1 -1 2 62\n{KEEPER}"


def test_the_memory_of_the_job():
    """The report has the bytes of all hosts, and how far the load is. More readers would not help later epochs."""
    made = report.make(times.read(KEPT))
    assert "  the memory of the job: 2.00 GiB of 6.00 GiB, loading: 33 %" in str(made).splitlines()
    assert "keeper on a" in str(made) and "keeper on b" in str(made) and "reader -1" not in str(made)
    judged = made.verdicts["t"]
    assert judged.text.startswith("reader-bound: ranks wait ") and judged.gain is None
    assert judged.text.endswith("for the memory of the job, or for the pipeline (loading: 33 %)")
    failed = report.make(times.read(KEPT.replace(" 8 24 0 0\n", " 8 24 -1 0\n", 1)))
    assert "6.00 GiB, the load has failed" in str(failed) and "loading" not in str(failed)
    ended = report.make(
        times.read(KEPT.replace(" 1073741824 3221225472 80 8 24 0 0\n", " 0 3221225472 80 24 24 1 1073741824\n"))
    )
    assert "  the memory of the job: 2.00 GiB of 6.00 GiB, loaded; freed" in str(ended).splitlines()
    loaded = report.make(times.read(KEPT.replace(" 8 24 0 0\n", " 24 24 1 0\n")))
    assert "GiB, loaded" in str(loaded) and loaded.verdicts["t"].text.endswith("of a step for the memory of the job")
    own = times.read(KEPT)[0]
    assert {name: value for name, value in times.flat(own).items() if "cache" in name} == {
        "t/cache_bytes": 1 << 30, "t/cache_limit": 3 << 30, "t/cache_units": 80, "t/cache_loaded": 0
    }  # fmt: skip
    (later,) = times.channels(times.since(times.read(KEPT), {}))
    assert later.cache == made.channels["t"].cache


LOADED = times.Cache(1 << 30, 2 << 30, 80, 8, 8, True)


def test_ranks_wait_for_all_keepers():
    """The keepers wait for ranks at other times. The verdict names no link, because rows come from every host."""
    keepers = [reader(0, 0.001, 0.097, -1, room_of={0: 0.05, 1: 0.05}, host=host) for host in ("node0", "node1")]
    for ranks in of_two_hosts(), of_two_hosts()[:1]:
        told = verdict.judge(times.Channel("train", False, tuple(ranks), tuple(keepers), LOADED))
        assert told.text == "reader-bound: ranks wait 90 % of a step for the memory of the job"


def test_a_slow_rank_of_a_cached_channel():
    """cache="job" refuses schedule="dynamic", so the verdict does not advise it."""
    ranks, by = others(2, 0.035, 0.005, trainer(2, 0.0, 0.040)), [reader(0.001, 0, 0.039, room_of={2: 0.039})]
    told = verdict.judge(times.Channel("train", False, tuple(ranks), tuple(by), LOADED))
    assert told.bound_by == "rank" and "dynamic" not in told.text and told.text.endswith("x)")
    assert "dynamic" in judged(ranks, by).text


@pytest.mark.parametrize("steps, elements, loaded, says", [
    (0, 24, 0, ""), (8, 24, 0, "loading: 33 %"), (24, 24, 0, "loading: 99 %"), (24, 24, 1, ""), (8, 24, -1, ""), (8, -2, 0, "loading: 80 rows")
])  # fmt: skip
def test_how_far_a_load_is(steps, elements, loaded, says):
    cache = {"bytes": 1, "freed": 0, "limit": 2, "units": 80, "steps": steps, "elements": elements, "loaded": loaded}
    assert times.cache_of([{}, {"cache": cache}]).loading == says
