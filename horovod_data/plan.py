# SPDX-License-Identifier: Apache-2.0
"""A model of the readers, links and memory that a job needs, and a calculator: python -m horovod_data.plan --help

Pure arithmetic: no TensorFlow, no MPI. docs/planning.md has the formulas and their assumptions. MB, GB and Gbit are powers of ten,
as on network cards.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
import sys
from typing import Any, Callable, Optional, Sequence, Union

from .errors import explained, whole
from .job.settings import too_many_per_node

# A plan that just keeps up falls behind at the first delay. A recommended one needs at most this part of a step.
HEADROOM = 0.8
# The most dedicated readers that the search tries: switches have no more lines.
MOST_READERS = 256
USUAL_RANKS = (8, 64, 512, 4096)
MOST = (1 << 31) - 1  # of ranks and everything else that is counted: MPI has no more ranks
# prefetch="auto", as in csrc/channel/window.h. Its bytes are those of HOROVOD_DATA_PREFETCH_MB.
AUTO = "auto"
LEAST_STEPS, MOST_STEPS = 2, 64
PREFETCH_BYTES = 64 << 20
# Memory of a reader besides its batches. Shared (csrc/arena/segment.h): counters of its slots, and rings for each other rank of its host.
SLOTS_BYTES, RINGS_BYTES = 2 << 20, 320 << 10
# Private, for each rank that it serves: benchmarks/scale.py.
RANK_BYTES = 16 << 10


@dataclasses.dataclass(frozen=True)
class Costs:
    """Measured costs, each with its source. Other machines have other costs."""

    # Payload over MPI and TCP, as a part of the line's rate: 0.954 Gbit/s at 1 Gbit/s, by benchmarks/hosts.py.
    goodput: float = 0.954
    # Seconds of a reader for one batch of any size: docs/benchmark_delivery.json, 4 ranks, 4 KiB, default settings, the slowest of its
    # settings of Horovod: 1 / (9231 steps/s x 4). Four ranks share two cores there, so it is rather too high.
    seconds_per_batch: float = 27e-6
    # One reader's copies into shared memory, for all ranks of its host: the same file, 16 MiB, global. Its elements of 64 MiB come
    # from memory, not from a cache.
    copy_bytes_per_second: float = 22e9
    # One communication thread's sends over TCP: delivery.py with OMPI_MCA_btl=tcp,self and HOROVOD_DATA_PAYLOAD=message. There both
    # ends take 0.5 s of processor time for a GB, half of it the sender.
    send_bytes_per_second: float = 4e9
    # Processor seconds of all processes for each GB: the same two runs, 16 MiB. The work of the pipeline comes on top.
    cpu_seconds_per_gb_shared: float = 0.09
    cpu_seconds_per_gb_sent: float = 0.5


MEASURED = Costs()


def _counted(name: str, value: Any, least: int) -> int:
    """`value` as an int, also a number of numpy. Raises ValueError unless it is a whole number from `least` to MOST."""
    number = whole(value)
    if number is None or number < least:
        raise explained(ValueError, f"{name} must be a whole number of {least} or more, not {value!r}")
    if number > MOST:
        raise explained(ValueError, f"{name} must be {MOST} or less, not {number}")
    return number


@dataclasses.dataclass(frozen=True)
class Job:
    """The job whose ranks get batches."""

    ranks: int  # trainers
    batch_bytes: float  # of one rank, in one step
    step_seconds: float  # the computation of a step; 0: the loop only iterates
    link_gbit: float  # Gbit/s of each host's line, each way, that batches may use
    ranks_per_host: int = 8
    prefetch: Union[int, str] = AUTO  # steps
    pipeline_bytes_per_second: Optional[float] = None  # of one reader's pipeline; None: more than enough
    prefetch_bytes: float = PREFETCH_BYTES  # with "auto"

    def __post_init__(self) -> None:
        for name, least in (("ranks", 1), ("ranks_per_host", 1), ("prefetch", 1)):
            if name != "prefetch" or self.prefetch != AUTO:
                object.__setattr__(self, name, _counted(name, getattr(self, name), least))
        for name in ("batch_bytes", "link_gbit", "pipeline_bytes_per_second", "prefetch_bytes"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise explained(ValueError, f"{name} must be a finite number above 0, not {value!r}")
        if not (math.isfinite(self.step_seconds) and self.step_seconds >= 0):
            raise explained(ValueError, f"step_seconds must be a finite number of 0 or more, not {self.step_seconds!r}")

    @property
    def hosts(self) -> int:
        """Hosts with ranks that train."""
        return -(-self.ranks // self.ranks_per_host)

    @property
    def fullest(self) -> int:
        """Ranks on the fullest host."""
        return min(self.ranks, self.ranks_per_host)

    @property
    def step_bytes(self) -> float:
        """Bytes of all ranks together, in one step."""
        return self.ranks * self.batch_bytes

    def window(self, served: int) -> int:
        """The most steps that may be on their way from one reader to the ranks that it serves."""
        if isinstance(self.prefetch, int):
            return self.prefetch
        fitting = self.prefetch_bytes / (served * self.batch_bytes)
        return LEAST_STEPS if fitting < LEAST_STEPS else int(min(fitting, MOST_STEPS))


@dataclasses.dataclass(frozen=True)
class Readers:
    """The readers of a job. The default: rank 0 reads and trains."""

    dedicated: int = 0  # the number of dedicated readers
    per_node: int = 0  # 1: one reader on each host, for the ranks of that host alone
    own_hosts: bool = True  # each dedicated reader has a host of its own; False: they share the ranks' hosts

    def __post_init__(self) -> None:
        for name in ("dedicated", "per_node"):
            object.__setattr__(self, name, _counted(name, getattr(self, name), 0))
        if self.dedicated and self.per_node:
            raise explained(
                ValueError,
                f"dedicated={self.dedicated} and per_node={self.per_node} contradict each other",
                "Give one of them",
            )
        if self.per_node > 1:
            raise ValueError(too_many_per_node(f"per_node={self.per_node}", "per_node=1", "dedicated=R"))

    def count(self, job: Job) -> int:
        """Processes that read."""
        return job.hosts if self.per_node else self.dedicated or 1

    def __str__(self) -> str:
        if self.per_node:
            return "1 reader on every host"
        where = "" if self.own_hosts else " on the ranks' hosts"
        return (
            f"{self.dedicated} dedicated reader{'s' * (self.dedicated > 1)}{where}"
            if self.dedicated
            else "rank 0 reads"
        )


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The pace and the memory of a job with given readers."""

    steps_per_second: float
    window: int  # steps that may be on their way, at most
    bound_by: str  # the key of the longest of `seconds`
    seconds: dict[str, float]  # of each part of a step; the parts overlap, so the longest is the step
    keeps_up: bool  # a step takes no longer than its computation
    leaving_bytes_per_step: float  # that leave a reader's host, on average over the steps
    reader_memory_bytes: float  # of each reader
    trainer_memory_bytes: float  # of each rank on another host than the reader; 0 if there is none
    cpu_seconds_per_step: float  # of all processes together, for delivering

    @property
    def delivery_seconds(self) -> float:
        """Seconds of a step if computation took no time."""
        return max(seconds for name, seconds in self.seconds.items() if name != "step")


def predict(job: Job, readers: Readers = Readers(), costs: Costs = MEASURED) -> Prediction:
    """Steps per second, and what binds them. Never fails for a valid job."""
    goodput = job.link_gbit * 1e9 / 8 * costs.goodput
    if readers.per_node:
        # Every host is a job of its own; all of them go at the same pace.
        served, local, each = job.fullest, job.fullest, 1
    else:
        served, each = job.ranks, max(1, readers.dedicated)
        local = 0 if readers.dedicated and readers.own_hosts else job.fullest
    remote = served - local
    # Readers take turns, each with a whole step. As many readers are at work at once as the window has steps. Their pipelines run
    # ahead in their own buffers.
    window = job.window(served)
    at_work = min(each, window)
    lines = at_work if local == 0 else min(at_work, job.hosts)
    pipeline = served * job.batch_bytes / job.pipeline_bytes_per_second if job.pipeline_bytes_per_second else 0.0
    received = min(job.ranks_per_host, remote) * job.batch_bytes
    seconds = {
        "step": job.step_seconds,
        "pipeline": pipeline / each,
        "batches": served * costs.seconds_per_batch / at_work,
        "copy": local * job.batch_bytes / costs.copy_bytes_per_second / at_work,
        "sending": remote * job.batch_bytes / costs.send_bytes_per_second / at_work,
        "reader's link": remote * job.batch_bytes / goodput / lines,
        "trainers' link": received / goodput,
    }
    bound_by = max(seconds, key=lambda name: seconds[name])  # the first of equal ones: "step"
    hosts_of_readers = 1 if readers.per_node else each if local == 0 else min(each, job.hosts)
    held = -(-window // each) + 1  # steps in each reader: its part of the window, and one that waits for room
    beside = local if readers.per_node or readers.dedicated else local - 1  # ranks that share its memory
    kept = RANK_BYTES * served + (SLOTS_BYTES + RINGS_BYTES * beside if beside else 0)
    shared = (job.ranks if readers.per_node else local) * job.batch_bytes
    return Prediction(
        steps_per_second=1 / seconds[bound_by],
        window=window,
        bound_by=bound_by,
        seconds=seconds,
        keeps_up=bound_by == "step",
        leaving_bytes_per_step=remote * job.batch_bytes / hosts_of_readers,
        reader_memory_bytes=held * served * job.batch_bytes + kept,
        trainer_memory_bytes=window * job.batch_bytes if remote else 0.0,
        cpu_seconds_per_step=(
            shared * costs.cpu_seconds_per_gb_shared + remote * job.batch_bytes * costs.cpu_seconds_per_gb_sent
        )
        / 1e9,
    )


@dataclasses.dataclass(frozen=True)
class Plan:
    """A job with its readers. `job` has a prefetch that lets the readers work at the same time."""

    job: Job
    readers: Readers
    prediction: Prediction

    @property
    def relaxed(self) -> bool:
        """Says whether delivery keeps up, with room to spare."""
        return self.prediction.delivery_seconds <= HEADROOM * self.job.step_seconds


def judge(job: Job, readers: Readers, costs: Costs = MEASURED) -> Plan:
    """The plan for the job as it is, with these readers."""
    return Plan(job, readers, predict(job, readers, costs))


def plans(job: Job, own_hosts: bool = True, costs: Costs = MEASURED) -> list[Plan]:
    """The plans for the three layouts, the simplest first: rank 0, the fewest dedicated readers that suffice, readers on every host.

    If no number of dedicated readers suffices, it takes the fewest that come closest.
    """
    found = [judge(job, Readers(), costs)]
    best: Optional[Plan] = None
    for count in range(1, MOST_READERS + 1):
        wide = job if job.window(job.ranks) >= count else dataclasses.replace(job, prefetch=count)
        plan = judge(wide, Readers(dedicated=count, own_hosts=own_hosts), costs)
        if best is None or plan.prediction.delivery_seconds < best.prediction.delivery_seconds * (1 - 1e-9):
            best = plan
        if best.relaxed:
            break
    assert best is not None
    return [*found, best, judge(job, Readers(per_node=1), costs)]


def recommend(job: Job, own_hosts: bool = True, costs: Costs = MEASURED) -> Plan:
    """The first of plans() that keeps up with room to spare. Otherwise the fastest."""
    candidates = plans(job, own_hosts, costs)
    return next(
        (plan for plan in candidates if plan.relaxed),
        min(candidates, key=lambda plan: plan.prediction.delivery_seconds),
    )


# ---- The calculator.


def _size(count: float) -> str:
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}" if count < 999.5 * factor else f"{count / factor:,.0f} {unit}"
    return f"{count:.0f} B"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds * 1e3:,.0f} ms"


def _describe(plan: Plan) -> list[str]:
    job, readers, told = plan.job, plan.readers, plan.prediction
    verdict = "keeps up" if told.keeps_up else "does not keep up" if job.step_seconds else "as fast as it goes"
    window = f'"{AUTO}" (up to {told.window} steps)' if job.prefetch == AUTO else job.prefetch
    parts = ", ".join(f"{name} {_milliseconds(seconds)}" for name, seconds in told.seconds.items() if seconds)
    return [
        f"{readers}, prefetch={window}: {verdict}, {told.steps_per_second:.3g} steps/s, bound by: {told.bound_by}",
        f"  a step waits for the longest of: {parts}",
        f"  leaves each reader's host: {_size(told.leaving_bytes_per_step)} per step, "
        f"{_size(told.leaving_bytes_per_step * told.steps_per_second)}/s",
        f"  memory: {_size(told.reader_memory_bytes)} in each of {readers.count(job)} "
        f"reader{'s' * (readers.count(job) > 1)}, {_size(told.trainer_memory_bytes)} in each rank on another host",
        f"  processor time for delivering: {told.cpu_seconds_per_step:.3g} s per step, all processes together",
    ]


def _advice(plan: Plan) -> str:
    readers = plan.readers
    how = (
        "horovod_data.init(readers_per_node=1)"
        if readers.per_node
        else f"horovod_data.init(readers={readers.dedicated})"
        if readers.dedicated
        else "horovod_data.init()"
    )
    where = ""
    if readers.dedicated and readers.own_hosts:
        where = ", on a host of its own" if readers.dedicated == 1 else ", each on a host of its own"
    # A number switches "auto" off, so it is given only where readers need more steps than "auto" allows.
    window = "" if plan.job.prefetch == AUTO else f", distribute_dataset(..., prefetch={plan.job.prefetch})"
    text = f"Recommended: {readers}{where}: {how}{window}"
    if plan.relaxed:
        return text
    bound = plan.prediction.bound_by
    if not plan.job.step_seconds:
        return f"{text}. Nothing here is faster; it is bound by: {bound}"
    if bound == "step":
        return f"{text}. It keeps up, but needs more than {HEADROOM:.0%} of a step"
    return f"{text}. Nothing here keeps up: even this is bound by: {bound}"


def _as_json(plan: Plan) -> dict[str, Any]:
    told = dataclasses.asdict(plan.prediction)
    told["delivery_seconds"] = plan.prediction.delivery_seconds
    return {
        "job": dataclasses.asdict(plan.job),
        "readers": dataclasses.asdict(plan.readers),
        "processes_that_read": plan.readers.count(plan.job),
        "relaxed": plan.relaxed,
        **told,
    }


def _table(found: Sequence[Plan]) -> list[str]:
    rows = [
        ("ranks", "all ranks take", "recommended", "prefetch", "steps/s", "bound by", "each reader sends", "and holds")
    ]
    for plan in found:
        told = plan.prediction
        rate = plan.job.step_bytes * told.steps_per_second
        rows.append(
            (
                f"{plan.job.ranks:,}",
                f"{_size(rate)}/s",
                str(plan.readers),
                f"{plan.job.prefetch}{f' ({told.window})' * (plan.job.prefetch == AUTO)}",
                f"{told.steps_per_second:.3g}",
                told.bound_by,
                f"{_size(told.leaving_bytes_per_step * told.steps_per_second)}/s",
                _size(told.reader_memory_bytes),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def _whole(least: int) -> Callable[[str], int]:
    """For argparse: takes a whole number from `least` to MOST."""

    def take(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d+", text):
            raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}")
        try:
            return _counted("it", int(text), least)
        except ValueError:
            bound = f"{least} or more" if int(text) < least else f"{MOST} or less"
            raise argparse.ArgumentTypeError(f"must be {bound}, not {text}") from None

    return take


def _steps(text: str) -> Union[int, str]:
    return text if text == AUTO else _whole(1)(text)


def _above_zero(text: str) -> float:
    """For argparse: takes a finite number above 0."""
    number = float(text)
    if not (math.isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"must be a finite number above 0, not {text}")
    return number


def _zero_or_more(text: str) -> float:
    """For argparse: takes a finite number of 0 or more."""
    return 0.0 if float(text) == 0 else _above_zero(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m horovod_data.plan",
        description="Readers, links and memory that a job needs; see docs/planning.md. "
        "Status 0: something keeps up, or there is nothing to keep up with (--step-ms 0); 1: nothing does; 2: wrong "
        "arguments.",
    )
    parser.add_argument(
        "--ranks", type=_whole(1), help=f"that train; left out: a table for {', '.join(map(str, USUAL_RANKS))}"
    )
    parser.add_argument(
        "--batch-mb", type=_above_zero, required=True, help="of one rank, in one step; 1 MB is 1,000,000 bytes"
    )
    parser.add_argument("--step-ms", type=_zero_or_more, required=True, help="of computation; 0: as fast as data comes")
    parser.add_argument(
        "--link-gbit", type=_above_zero, required=True, help="of each host's line, as far as batches may have it"
    )
    parser.add_argument("--ranks-per-host", type=_whole(1), default=8)
    parser.add_argument(
        "--prefetch",
        type=_steps,
        default=AUTO,
        metavar="auto|N",
        help="steps; auto (the default): as many as help, up to --prefetch-mb together, but two in any case",
    )
    parser.add_argument(
        "--prefetch-mb", type=_above_zero, metavar="MiB", help=f"with auto; by default {PREFETCH_BYTES >> 20}"
    )
    pipeline = parser.add_mutually_exclusive_group()
    pipeline.add_argument("--pipeline-mb-s", type=_above_zero, help="that the pipeline of one reader yields")
    pipeline.add_argument(
        "--pipeline-ms", type=_above_zero, help="in which the pipeline of one reader yields one rank's batch"
    )
    layout = parser.add_mutually_exclusive_group()
    layout.add_argument("--readers", type=_whole(0), help="judge this many dedicated readers; 0: rank 0 reads")
    layout.add_argument("--readers-per-node", type=int, choices=[1], help="judge one reader on every host")
    parser.add_argument("--shared-hosts", action="store_true", help="dedicated readers are on the hosts of the ranks")
    parser.add_argument("--json", action="store_true")
    return parser


def _job(given: argparse.Namespace, ranks: int) -> Job:
    if given.prefetch_mb is not None and given.prefetch != AUTO:
        raise ValueError(
            f"--prefetch-mb bounds --prefetch auto, but --prefetch {given.prefetch} says how many steps. Give one of them"
        )
    batch = given.batch_mb * 1e6
    pipeline = given.pipeline_mb_s and given.pipeline_mb_s * 1e6
    return Job(
        ranks,
        batch,
        given.step_ms / 1e3,
        given.link_gbit,
        given.ranks_per_host,
        given.prefetch,
        pipeline or (given.pipeline_ms and batch / given.pipeline_ms * 1e3),
        PREFETCH_BYTES if given.prefetch_mb is None else given.prefetch_mb * (1 << 20),
    )


def _given_readers(given: argparse.Namespace) -> Optional[Readers]:
    if given.shared_hosts and (given.readers_per_node is not None or given.readers == 0):
        layout = "--readers 0" if given.readers_per_node is None else "--readers-per-node 1"
        raise ValueError(
            f"--shared-hosts says where dedicated readers are, and with {layout} there are none. Leave it out"
        )
    if given.readers_per_node is not None:
        return Readers(per_node=1)
    return None if given.readers is None else Readers(dedicated=given.readers, own_hosts=not given.shared_hosts)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The calculator. Returns its exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        readers = _given_readers(given)
        jobs = [_job(given, ranks) for ranks in ([given.ranks] if given.ranks is not None else USUAL_RANKS)]
    except ValueError as error:
        parser.error(str(error))
    chosen = [judge(job, readers) if readers else recommend(job, not given.shared_hosts) for job in jobs]
    if given.json:
        told = [
            {
                **_as_json(plan),
                "alternatives": [] if readers else [_as_json(other) for other in plans(job, not given.shared_hosts)],
            }
            for job, plan in zip(jobs, chosen)
        ]
        print(json.dumps(told[0] if given.ranks is not None else told, indent=1))
    elif given.ranks is None:
        print("\n".join(_table(chosen)))
    else:
        (job,), (plan,) = jobs, chosen
        print(
            f"{job.ranks:,} ranks on {job.hosts:,} host{'s' * (job.hosts > 1)}: {_size(job.step_bytes)} per step"
            + (f", {_size(job.step_bytes / job.step_seconds)}/s" if job.step_seconds else "")
        )
        for one in [plan] if readers else plans(job, not given.shared_hosts):
            print("\n".join(_describe(one)))
        if not readers:
            print(_advice(plan))
    return 0 if all(plan.prediction.keeps_up or not plan.job.step_seconds for plan in chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
