# SPDX-License-Identifier: Apache-2.0
"""The calculator: some jobs by hand, properties of all jobs, and the command."""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod_data import plan
from horovod_data.job.settings import read_settings
from horovod_data.plan import Costs, Job, Readers, choose, plans, predict
from horovod_data.plan import __main__ as calculator

# Round numbers. A line of 8 Gbit/s is 1 GB/s of payload.
ROUND = Costs(goodput=1.0, seconds_per_batch=0.0, copy_bytes_per_second=1e12, send_bytes_per_second=1e12)
MB, MIB = 1e6, 1 << 20
DOCS = Path(__file__).parents[2] / "docs"


def job(**changed) -> Job:
    return dataclasses.replace(Job(ranks=16, batch_bytes=10 * MB, step_seconds=0.1, link_gbit=8.0), **changed)


# ---- By hand.


def test_all_ranks_on_the_readers_host_need_no_link():
    told = predict(job(ranks=8, link_gbit=1e-6), costs=ROUND)
    assert (told.leaving_bytes_per_step, told.seconds["reader's link"], told.seconds["trainers' link"]) == (0, 0, 0)
    assert (told.steps_per_second, told.bound_by, told.keeps_up) == (10, "step", True)
    assert told.trainer_memory_bytes == 0  # their batches are the reader's memory


SLOW = job(prefetch=1, ranks=8, pipeline_bytes_per_second=160 * MB)  # 80 MB a step: 2 steps/s from one reader


@pytest.mark.parametrize("of, by, leaving, bound_by, seconds", [
    (job(step_seconds=0.0), Readers(), 80 * MB, "reader's link", 0.08),  # 8 of 16 ranks are on another host
    (job(), Readers(dedicated=1), 160 * MB, "reader's link", 0.16),
    (job(step_seconds=0.0), Readers(dedicated=2), 80 * MB, "reader's link", 0.08),
    # No more readers send at once than steps are on their way.
    (job(step_seconds=0.0, prefetch=2), Readers(dedicated=4), 40 * MB, "reader's link", 0.08),
    (job(step_seconds=0.0, prefetch=4), Readers(dedicated=4), 40 * MB, "trainers' link", 0.08),
    (job(step_seconds=0.0, prefetch=100), Readers(dedicated=100), 1.6 * MB, "trainers' link", 0.08),
    # All pipelines run ahead, whatever the prefetch is.
    (SLOW, Readers(dedicated=1), 80 * MB, "pipeline", 1 / 2),
    (SLOW, Readers(dedicated=4), 20 * MB, "pipeline", 1 / 8),
    # A reader on every host reads for its host, and sends nothing to others.
    (job(ranks=64, link_gbit=0.001, pipeline_bytes_per_second=400 * MB), Readers(per_node=1), 0, "pipeline", 0.2),
])  # fmt: skip
def test_what_a_step_takes(of, by, leaving, bound_by, seconds):
    told = predict(of, by, ROUND)
    assert (told.leaving_bytes_per_step, told.bound_by) == (pytest.approx(leaving), bound_by)
    assert told.seconds[bound_by] == pytest.approx(seconds) == pytest.approx(1 / told.steps_per_second)


def test_memory_is_the_formula_of_the_guarantees():
    """The reader: (prefetch + 1) x G, and some for each rank. A rank of another host: prefetch x S."""
    slots, rings, private = 2 * MIB, 320 << 10, 16 << 10
    told = predict(job(prefetch=3))
    assert told.reader_memory_bytes == 4 * 160 * MB + 16 * private + slots + 7 * rings
    assert told.trainer_memory_bytes == 3 * 10 * MB
    every = predict(job(prefetch=3), Readers(per_node=1))
    assert (every.reader_memory_bytes, every.trainer_memory_bytes) == (4 * 80 * MB + 8 * private + slots + 8 * rings, 0)
    # Two readers: each has half of the window, rounded up, and a step that waits for credit. They share no memory with
    # ranks.
    assert predict(job(prefetch=3), Readers(dedicated=2)).reader_memory_bytes == 3 * 160 * MB + 16 * private


@pytest.mark.parametrize("of, by, steps", [
    (job(), Readers(), 2),  # 160 MB a step: two in any case
    (job(batch_bytes=MIB), Readers(), 4),  # 16 MiB a step, four of them are 64 MiB
    (job(batch_bytes=MIB + 1), Readers(), 3),
    (job(batch_bytes=MIB), Readers(per_node=1), 8),  # a job of its own, of 8 ranks
    (job(batch_bytes=4096), Readers(), 64),
    (job(batch_bytes=4096, prefetch=5), Readers(), 5),
])  # fmt: skip
def test_the_default_is_as_wide_as_its_bytes_allow(of, by, steps):
    told = predict(of, by)
    served = 8 if by.per_node else 16
    assert told.window == steps
    batches = (steps + 1) * served * of.batch_bytes
    assert batches <= told.reader_memory_bytes <= batches + 5 * MIB
    if of.prefetch == "auto":  # as docs/guarantees.md has it
        assert batches <= max(plan.PREFETCH_BYTES, 2 * served * of.batch_bytes) + served * of.batch_bytes
    assert told.trainer_memory_bytes == (0 if by.per_node else steps * of.batch_bytes)


def test_the_default_is_what_the_library_does():
    header = (DOCS.parent / "csrc" / "channel" / "window.h").read_text()
    assert f"kLeast = {plan.LEAST_STEPS}, kMost = {plan.MOST_STEPS};" in header
    assert plan.PREFETCH_BYTES == read_settings({}).prefetch_bytes
    assert f"{plan.LEAST_STEPS} to {plan.MOST_STEPS}" in (DOCS / "memory.md").read_text()


def test_a_number_of_steps_is_advised_only_if_readers_need_more(capsys):
    """A number of steps would switch prefetch="auto" off."""
    assert choose(plans(job(ranks=8))).job.prefetch == "auto"
    small = choose(plans(job(ranks=64, batch_bytes=4096, step_seconds=0.0009, link_gbit=100)))  # a window of 64
    assert small.readers.dedicated == 3 and small.job.prefetch == "auto"
    for arguments, advice in (
        (["--ranks", "8"], "horovod_data.init()\n"),
        (["--ranks", "512"], "prefetch=4)\n"),
    ):
        calculator.main([*arguments, *USUAL])
        assert capsys.readouterr().out.endswith(advice)


def test_constants_are_those_of_the_published_benchmark():
    """4 ranks, the slowest of the settings of Horovod."""
    published = json.loads((DOCS / "benchmark_delivery.json").read_text())["results"]

    def slowest(name, size):
        found = [r for r in published if (r["kind"], r["ranks"], r["name"], r["bytes"]) == ("ours", 4, name, size)]
        return max(found, key=lambda r: statistics.median(r["seconds"]) / r["steps"])

    small, large = slowest("horovod_data, per_rank", 4096), slowest("horovod_data, global", 16 << 20)
    per_batch = statistics.median(small["seconds"]) / small["steps"] / small["ranks"]
    rate = large["steps"] * large["ranks"] * large["bytes"] / statistics.median(large["seconds"])
    # Two runs of the benchmark differ by up to this much. If it fails, bring the constants up to date.
    assert plan.MEASURED.seconds_per_batch == pytest.approx(per_batch, rel=0.3)
    assert plan.MEASURED.copy_bytes_per_second == pytest.approx(rate, rel=0.3)


def told_and_measured(r: dict, gbit: float, per_host: int, by: Readers):
    """The prediction for a result of the published benchmark of scaling, and the steps per second that it had."""
    of = Job(
        r["trainers"], r["bytes"], 0, gbit, ranks_per_host=per_host, pipeline_bytes_per_second=r["bytes"] / r["pace"]
    )
    return predict(of, by), r["batches"] / statistics.median(r["seconds"]) / r["trainers"]


def test_the_model_says_what_was_measured_with_more_readers():
    """The pipeline's pace, the line's, or both. No constant is fitted to it."""
    published = json.loads((DOCS / "benchmark_scaling.json").read_text())
    rates = {}
    for r in published["one_host"]:
        told, steps = told_and_measured(r, 1, r["trainers"], Readers(dedicated=r["readers"], own_hosts=False))
        assert told.bound_by == "pipeline" and steps == pytest.approx(told.steps_per_second, rel=0.15)
        rates[r["readers"]] = steps * r["trainers"]
    assert rates[2] >= 1.9 * rates[1] and rates[4] >= 3.6 * rates[1]
    for r in published["over_hosts"]:
        if r["name"] != "hvd.broadcast + slice":
            by = Readers(per_node=int(r["name"] == "a reader on each host"))
            told, steps = told_and_measured(r, r["gbit"], 2, by)
            assert steps == pytest.approx(told.steps_per_second, rel=0.2)


def test_the_model_says_what_was_measured_with_hundreds_of_ranks():
    """The published benchmark of scale, over TCP on loopback: the reader's busiest thread, and its memory."""
    results = json.loads((DOCS / "benchmark_scale.json").read_text())["results"]
    assert [r["trainers"] for r in results] == [8, 32, 128, 256]
    for r in results:
        here = r["trainers"] // r["hosts"]
        of = Job(r["trainers"], r["bytes"], 0, 1e6, prefetch=2, ranks_per_host=here)
        told = predict(of, Readers(dedicated=1, own_hosts=False))
        comm = r["plain"]["comm"]
        busiest = r["trainers"] * max(comm, r["plain"]["reader"] - comm)
        assert told.bound_by == "batches" and 0.6 < busiest / told.delivery_seconds < 1.8, (busiest, told)
        memory = r["reader_private"] + r["reader_shared"]
        assert 0.6 < memory / told.reader_memory_bytes < 1.2, (memory, told)


def test_recommendations_take_the_simplest_that_suffices():
    assert choose(plans(job(ranks=8))).readers == Readers()
    chosen = choose(plans(job(ranks=16, link_gbit=20)))  # 80 MB leave rank 0's host in 33 ms
    assert chosen.readers == Readers() and chosen.relaxed
    # 560 MB at 4 GB/s take rank 0 140 ms; 640 MB two dedicated readers 80 ms each, three 53 ms of at most 0.8 x 90.
    chosen = choose(plans(job(ranks=64, link_gbit=40, step_seconds=0.09)))
    assert chosen.readers.dedicated == 3 and chosen.job.prefetch == 3
    chosen = choose(plans(job(ranks=64, link_gbit=1)))  # 80 MB into a host in no time but 670 ms
    assert chosen.readers == Readers(per_node=1) and chosen.relaxed
    chosen = choose(plans(job(ranks=4096, link_gbit=1, pipeline_bytes_per_second=MB)))  # a pipeline that is too slow
    assert not chosen.prediction.keeps_up and chosen.prediction.bound_by == "pipeline"
    # From 100 readers on the trainers' links bind, but rounding makes 101 readers a little faster.
    assert plans(Job(100, 0.1 * MB, 0.0, 1.0, ranks_per_host=1))[1].readers.dedicated == 100


# ---- For all jobs.

sizes = st.floats(1.0, 1e10)
some_jobs = st.builds(
    Job, ranks=st.integers(1, 5000), batch_bytes=sizes, step_seconds=st.floats(0.0, 10.0),
    link_gbit=st.floats(0.01, 1000.0), ranks_per_host=st.integers(1, 64), prefetch=st.integers(1, 20) | st.just("auto"),
    pipeline_bytes_per_second=st.none() | sizes)  # fmt: skip
on_hosts = st.just(Readers(per_node=1))
some_readers = st.builds(Readers, dedicated=st.integers(0, 40), own_hosts=st.booleans()) | on_hosts


def rate(of: Job, by: Readers) -> float:
    return predict(of, by).steps_per_second


@given(some_jobs, some_readers)
def test_a_step_takes_what_binds_it(of, by):
    told = predict(of, by)
    assert told.steps_per_second * max(told.seconds.values()) == pytest.approx(1)
    assert told.seconds[told.bound_by] == max(told.seconds.values())
    assert told.keeps_up == (told.delivery_seconds <= of.step_seconds)
    assert min(told.seconds.values()) >= 0 and told.reader_memory_bytes > 0


@given(some_jobs, st.integers(1, 40), st.booleans())
def test_more_readers_are_never_slower(of, count, own):
    assert rate(of, Readers(dedicated=count + 1, own_hosts=own)) >= rate(of, Readers(dedicated=count, own_hosts=own))


@given(some_jobs, some_readers, st.floats(1.0, 100.0))
def test_what_never_makes_it_faster(of, by, factor):
    for changed in (dict(batch_bytes=of.batch_bytes * factor), dict(step_seconds=of.step_seconds * factor),
                    dict(link_gbit=of.link_gbit / factor), dict(ranks=of.ranks + int(factor)),
                    dict(pipeline_bytes_per_second=(of.pipeline_bytes_per_second or 1e30) / factor)):  # fmt: skip
        assert rate(dataclasses.replace(of, **changed), by) <= rate(of, by)


@given(some_jobs, some_readers, st.integers(1, 10))
def test_prefetch_costs_memory_and_no_time(of, by, more):
    told = predict(of, by)
    wider = predict(dataclasses.replace(of, prefetch=told.window + more), by)
    assert wider.steps_per_second >= told.steps_per_second
    assert wider.reader_memory_bytes >= told.reader_memory_bytes
    assert wider.trainer_memory_bytes >= told.trainer_memory_bytes


@settings(max_examples=50)
@given(some_jobs)
def test_the_recommended_keeps_up_if_anything_does_and_else_is_the_fastest(of):
    chosen, others = choose(plans(of)), plans(of)
    if not chosen.relaxed:
        assert not any(one.relaxed for one in others)
        fastest = min(one.prediction.delivery_seconds for one in others)
        assert chosen.prediction.delivery_seconds == pytest.approx(fastest, rel=2e-9)


# ---- Wrong arguments.


@pytest.mark.parametrize("changed, text", [
    ({"ranks": np.bool_(True)}, "ranks must be a whole number of 1 or more, not"),
    ({"step_seconds": float("inf")}, "step_seconds must be a finite number of 0 or more, not inf"),
])  # fmt: skip
def test_jobs_that_only_python_can_ask_for(changed, text):
    with pytest.raises(ValueError) as error:
        job(**changed)
    assert text in str(error.value)


def test_numbers_of_numpy():
    of, by = job(ranks=np.int64(16), prefetch=np.int32(2)), Readers(dedicated=np.uint8(1))
    assert (of, by) == (job(ranks=16, prefetch=2), Readers(dedicated=1))
    json.dumps([dataclasses.asdict(of), dataclasses.asdict(by)])


@pytest.mark.parametrize("option", [None, "--readers", "--ranks-per-host"])
def test_the_largest_numbers_can_be_counted_with(capsys, option):
    most = str((1 << 31) - 1)  # a rank of MPI is a C int
    assert calculator.main(["--ranks", most, *USUAL, *([option, most] if option else [])]) in (0, 1)


@pytest.mark.parametrize("given, text", [
    ({"dedicated": 1, "per_node": 1}, "dedicated=1 and per_node=1 contradict each other"),
    ({"per_node": 2}, "per_node=2: a host can have one reader of its own. Use per_node=1, or dedicated=R for R readers that deal"),
])  # fmt: skip
def test_readers_that_only_python_can_ask_for(given, text):
    with pytest.raises(ValueError, match=text):
        Readers(**given)


# ---- The command.

USUAL = ["--batch-mb", "4", "--step-ms", "200", "--link-gbit", "100"]


def test_one_job(capsys):
    assert calculator.main(["--ranks", "512", *USUAL]) == 0
    out = capsys.readouterr().out
    assert out.startswith("512 ranks on 64 hosts: 2.05 GB per step, 10.2 GB/s\n")
    assert '\nrank 0 reads, prefetch="auto" (up to 2 steps): does not keep up' in out
    assert "dedicated readers, prefetch=" in out and "\n1 reader on every host" in out
    assert "Recommended: 4 dedicated readers, each on a host of its own: horovod_data.init(readers=4), " in out


def test_no_computation_to_keep_up_with(capsys):
    """The fastest is recommended, and the status is 0."""
    assert calculator.main(["--ranks", "64", "--batch-mb", "4", "--step-ms", "0", "--link-gbit", "10"]) == 0
    out = capsys.readouterr().out
    assert out.count("as fast as it goes") == 3 and "keep" not in out
    assert "Nothing here is faster; it is bound by: copy" in out


def test_given_readers_are_judged_and_nothing_is_recommended(capsys):
    assert calculator.main(["--ranks", "512", *USUAL, "--readers", "0"]) == 1
    out = capsys.readouterr().out
    assert "does not keep up" in out and "bound by: sending" in out and "Recommended" not in out
    assert calculator.main(["--ranks", "512", *USUAL, "--readers-per-node", "1"]) == 0
    assert '1 reader on every host, prefetch="auto" (up to 2 steps): keeps up' in capsys.readouterr().out


def test_json(capsys):
    assert calculator.main(["--ranks", "512", *USUAL, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["readers"]["dedicated"] == told["processes_that_read"] == 4 and told["keeps_up"]
    assert len(told["alternatives"]) == 3


def test_pipeline_given_either_way(capsys):
    for option in (["--pipeline-ms", "10"], ["--pipeline-mb-s", "400"]):
        calculator.main(["--ranks", "8", *USUAL, *option, "--readers", "0", "--json"])
        assert json.loads(capsys.readouterr().out)["seconds"]["pipeline"] == pytest.approx(0.08)


@pytest.mark.parametrize("arguments, text", [
    (["--ranks", "0"], "ranks must be a whole number of 1 or more, not 0"),
    (["--ranks", "many"], "--ranks: invalid int value: 'many'"),
    (["--batch-mb", "1e308"], "batch_bytes must be a finite number above 0, not inf"),
    (["--step-ms", "nan"], "step_seconds must be a finite number of 0 or more, not nan"),
    (["--pipeline-mb-s", "0"], "pipeline_bytes_per_second must be a finite number above 0, not 0.0"),
    (["--pipeline-ms", "0"], "pipeline_bytes_per_second must be a finite number above 0, not 0.0"),
    (["--pipeline-ms", "1e-320"], "pipeline_bytes_per_second must be a finite number above 0, not inf"),
    (["--readers", "-1"], "dedicated must be a whole number of 0 or more, not -1"),
    (["--readers-per-node", "2"], "--readers-per-node: invalid choice: 2"),
    (["--readers", "1", "--readers-per-node", "1"], "not allowed with"),
    (["--cache-gb", "4"], "--cache-gb and --host-gb belong together"),
    (["--cache-gb", "4", "--host-gb", "0"], "host_bytes must be a finite number above 0"),
    (["--cache-gb", "4", "--host-gb", "2", "--readers-per-node", "1"], "Leave out --readers-per-node"),
])  # fmt: skip
def test_wrong_arguments(capsys, arguments, text):
    with pytest.raises(SystemExit) as stop:
        calculator.main(["--ranks", "8", *USUAL, *arguments])
    assert stop.value.code == 2 and text in capsys.readouterr().err


def test_the_command_needs_no_tensorflow(tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('not here')\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    ran = subprocess.run([sys.executable, "-m", "horovod_data.plan", "--ranks", "8", *USUAL], text=True,
                         capture_output=True, env={**os.environ, "PYTHONPATH": path}, timeout=170)  # fmt: skip
    assert ran.returncode == 0 and "rank 0 reads" in ran.stdout, ran.stderr


# ---- cache="job"


@pytest.mark.parametrize("readers, hosts, fits", [
    (Readers(), 2, False), (Readers(dedicated=1), 3, True), (Readers(dedicated=1, own_hosts=False), 2, False)
])  # fmt: skip
def test_the_memory_of_all_hosts(readers, hosts, fits):
    """16 ranks on 2 hosts, and 300 GB of data. A dedicated reader's own host counts."""
    assert plan.kept(job(), readers, 300e9, 100e9) == plan.Kept(hosts, 300e9 / hosts, fits, 3)


def test_the_fullest_host_must_have_room(capsys):
    """Of 9 ranks 8 are on the first host, so it keeps 8 of 9 parts.

    A reader's own host keeps as much as the average.
    """
    uneven = job(ranks=9)
    assert plan.kept(uneven, Readers(), 90e9, 60e9) == plan.Kept(2, pytest.approx(80e9), False, 2)
    beside = plan.kept(uneven, Readers(dedicated=1), 90e9, 60e9)  # 8, 1 and 4.5 of 13.5 parts
    assert (beside.hosts, beside.bytes_per_host, beside.fits) == (3, pytest.approx(90e9 * 8 / 13.5), True)
    arguments = ["--ranks", "9", *USUAL, "--readers", "0", "--cache-gb", "90", "--host-gb", "60"]
    assert calculator.main(arguments) == 1
    assert 'cache="job" would keep up to 80 GB on each of 2 hosts, which may keep 60 GB' in capsys.readouterr().out


def test_the_command_says_whether_the_data_fit(capsys):
    memory = ["--ranks", "512", *USUAL, "--cache-gb", "400", "--host-gb"]
    assert calculator.main([*memory, "96"]) == 0
    out = capsys.readouterr().out
    assert 'cache="job" keeps' in out and ": it fits" in out and "readers_per_node" not in out
    assert calculator.main([*memory, "1"]) == 1
    assert (
        "it does not fit. 400 equally full hosts would be enough, or files in HOROVOD_DATA_CACHE_DIR"
        in capsys.readouterr().out
    )
    assert calculator.main([*memory, "1", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["cache"]["hosts_needed"] == 400
