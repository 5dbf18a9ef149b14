# SPDX-License-Identifier: Apache-2.0
"""The times of stats() and report(). Tests of the verdict: tests/faults/test_reports_of_jobs.py."""

import io
import sys
import threading
import time

import pytest
import tensorflow as tf
from checkpoints import in_hand
from together import generated, numbers, results, until

pytestmark = pytest.mark.world(np=3)

OF_RANKS = ("wait_seconds", "receive_seconds", "step_seconds")
OF_READERS = ("pipeline_seconds", "deal_seconds", "room_seconds", "serve_seconds")


def seconds(hvdata, name, keys):
    said = hvdata.stats()
    return [said.get(f"{name}/{key}") for key in keys]


@pytest.mark.parametrize("schedule", ["static", "dynamic"])
def test_the_parts_are_the_whole(hvdata, comm, schedule):
    """This holds for an epoch that is left early, too. The time between epochs belongs to no part."""
    name = f"times-{schedule}"
    ds = numbers(hvdata, 12 * comm.size, schedule=schedule, name=name)

    def epochs():
        inside = around = 0.0  # seconds: a lower and an upper bound of the time in epochs
        for epoch in range(3):
            it = iter(ds)
            began = first = last = time.monotonic()
            for step, _ in enumerate(it):
                first = first if step else time.monotonic()
                time.sleep(0.02)
                last = time.monotonic()
                if epoch == 1 and step == 3 and schedule == "static":
                    break
            del it
            inside += last - first
            around += time.monotonic() - began
            time.sleep(0.1)
        return inside, around

    inside, around = results(comm, epochs)[comm.rank]
    parts = seconds(hvdata, name, OF_RANKS)
    assert results(comm, lambda: all(part >= 0 for part in parts))
    whole = results(comm, lambda: (inside, sum(parts), around))
    assert all(low - 0.001 <= sum_ <= high + 0.001 for low, sum_, high in whole), whole
    stepped = results(comm, lambda: parts[2])
    assert all(sum_ > 0.2 for sum_ in stepped) or schedule == "dynamic", stepped
    keys = results(comm, lambda: sorted(key for key in hvdata.stats() if key.startswith(name + "/")))
    wanted = ["epoch", "rows", "steps", "dropped", *OF_RANKS, "waits", "window", "queue", *OF_READERS, "untaken"]
    wanted += [f"room_{what}/{rank}" for rank in range(comm.size) for what in ("seconds", "waits")]
    # The same on every rank, so that sums can be made.
    assert keys == [sorted(f"{name}/{key}" for key in wanted)] * comm.size
    reads = results(comm, lambda: sum(seconds(hvdata, name, OF_READERS)) > 0)
    assert reads == results(comm, hvdata.is_reader)


@pytest.mark.parametrize("schedule", ["static", "dynamic"])
def test_queues_over_time(hvdata, comm, schedule):
    """While all ranks work on a batch, their windows fill, and so does the reader's count of untaken elements.

    Both are empty while the ranks wait.
    """
    name, held, steps = f"queues-{schedule}", threading.Event(), 8

    def batches():
        for i in range(steps * comm.size):
            if i >= (steps - 2) * comm.size:
                held.wait(60)  # until the ranks have taken what there was
            yield i

    ds = hvdata.distribute_dataset(
        lambda: generated(batches),
        batch="per_rank",
        schedule=schedule,
        prefetch=3,
        name=name,
    )

    def nothing_untaken():  # acknowledgements of other hosts come later
        until(comm, lambda: hvdata.stats()[f"{name}/untaken"] == 0)

    it = iter(ds)
    results(comm, lambda: next(it) is None)
    window = 3 if schedule == "static" else 3 * comm.size
    in_hand(hvdata, comm, name, window)
    results(comm, lambda: time.sleep(0.7))  # to run too far, and for what was sent to lie ready
    full = results(comm, lambda: hvdata.stats()[f"{name}/untaken"])
    readers = results(comm, hvdata.is_reader)
    assert all(window <= one <= window + comm.size if reads else one == 0 for one, reads in zip(full, readers)), full
    if schedule == "static":
        results(comm, lambda: [next(it) for _ in range(steps - 3)] and None)
        nothing_untaken()
        queue = results(comm, lambda: hvdata.stats()[f"{name}/queue"])
        assert all(0.5 < one <= 3 for one in queue), queue
    held.set()
    results(comm, lambda: [None for _ in it] and None)
    nothing_untaken()


def test_they_begin_anew(hvdata, comm):
    ds = numbers(hvdata, 4 * comm.size, name="anew")
    results(comm, lambda: [time.sleep(0.05) for _ in ds])
    before = results(comm, lambda: seconds(hvdata, "anew", OF_RANKS))
    assert all(step > 0.15 for _, _, step in before), before
    results(comm, lambda: hvdata.stats(reset=True)["anew/step_seconds"] > 0.15)
    assert results(comm, lambda: seconds(hvdata, "anew", OF_RANKS)) == [[0.0, 0.0, 0.0]] * comm.size
    began = time.monotonic()
    results(comm, lambda: [None for _ in ds])
    took = max(comm.allgather(time.monotonic() - began))
    after = results(comm, lambda: seconds(hvdata, "anew", OF_RANKS))
    assert all(0 < sum(parts) and parts[2] <= took for parts in after), (after, took)
    assert results(comm, lambda: hvdata.stats()["anew/steps"]) == [4] * comm.size, "the steps of an epoch are not reset"


@pytest.mark.world(np=2, readers=2)
@pytest.mark.ranks(1, 2)
@pytest.mark.readers(1, 2)
def test_a_dedicated_reader_begins_anew_with_rank_0(hvdata, comm):
    """In most jobs the reader's own program is inside serve()."""
    trainers = comm.size - hvdata.num_readers()
    ds = numbers(hvdata, 20 * trainers, name="served")

    def run():
        for _ in range(2 if hvdata.is_trainer() else 0):
            for _ in ds:
                pass
            hvdata.stats(reset=True)
        for _ in ds if hvdata.is_trainer() else ():
            pass
        return hvdata.report().channels["served"].readers[0].elements if hvdata.rank() == 0 else None

    assert 0 <= results(comm, run)[0] <= 20 * trainers


def test_a_name_that_stdout_can_not_show(hvdata, comm, monkeypatch):
    """The rest of the report is printed all the same."""
    ds = hvdata.distribute_dataset(tf.data.Dataset.range(4 * comm.size), batch="per_rank", name="tr\u00e4in\u2603")
    results(comm, lambda: len(list(ds)))
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    results(comm, hvdata.report)
    monkeypatch.undo()
    assert "tr\\xe4in\\u2603" in out.buffer.getvalue().decode("ascii")


def test_any_rank_can_ask_at_any_time(hvdata, comm, capsys):
    """The other ranks call nothing, and may be in the middle of an epoch."""
    ds = numbers(hvdata, 6 * comm.size, name="asked")
    it = iter(ds)
    results(comm, lambda: [next(it) for _ in range(3)] and None)
    for asking in range(comm.size):

        def ask(asking=asking):
            if comm.rank != asking:
                return None
            report = hvdata.report()
            channel = report.channels["asked"]
            printed = capsys.readouterr().out
            assert str(report) in printed and report.verdicts["asked"].text in printed
            return [one.rank for one in channel.trainers], [one.steps for one in channel.trainers], len(channel.readers)

        ranks, steps, readers = results(comm, ask)[asking]
        assert ranks == list(range(comm.size)) and steps == [3] * comm.size and readers >= 1
    assert results(comm, lambda: sum(1 for _ in it)) == [3] * comm.size
