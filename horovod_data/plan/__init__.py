# SPDX-License-Identifier: Apache-2.0
"""A model of the readers, links and memory that a job needs. __main__.py is a calculator: python -m horovod_data.plan
--help

Pure arithmetic: no TensorFlow, no MPI. docs/planning.md has the formulas and their assumptions. MB, GB and Gbit are
powers of ten, as on network cards.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Optional, Sequence, Union

from ..errors import at_least, explained
from ..job.settings import too_many_per_node

# A plan without slack falls behind at the first delay. So delivery in a recommended plan takes at most this part of a
# step.
MOST_USED = 0.8
# The search tries at most this many dedicated readers, because a switch has no more ports.
MOST_READERS = 256
# prefetch="auto", as in csrc/channel/window.h. PREFETCH_BYTES is the default of HOROVOD_DATA_PREFETCH_MB.
AUTO = "auto"
LEAST_STEPS, MOST_STEPS = 2, 64
PREFETCH_BYTES = 64 << 20
# Memory of a reader besides its batches. Shared memory (csrc/arena/segment.h): counters of its slots, and two rings to
# every other rank on its host.
SLOTS_BYTES, RINGS_BYTES = 2 << 20, 320 << 10
# Private memory, for each rank that it serves. Measured by benchmarks/scale.py.
RANK_BYTES = 16 << 10


@dataclasses.dataclass(frozen=True)
class Costs:
    """Measured costs, each with its source. Other machines have other costs."""

    # Payload over MPI and TCP, as a part of the link's rate. Measured: 0.954 Gbit/s at 1 Gbit/s, by
    # benchmarks/hosts.py.
    goodput: float = 0.954
    # Seconds that a reader takes for one batch of any size. Source: docs/benchmark_delivery.json, 4 ranks, 4 KiB,
    # default settings, the slowest Horovod setting in that file: 1 / (9231 steps/s x 4). Four ranks shared two cores,
    # so the value is rather high.
    seconds_per_batch: float = 27e-6
    # One reader's copies into shared memory, for all ranks of its host. Source: the same file, 16 MiB, global. An
    # element of 64 MiB does not fit in a cache, so it comes from memory.
    copy_bytes_per_second: float = 22e9
    # One communication thread's sends over TCP. Source: delivery.py with OMPI_MCA_btl=tcp,self and
    # HOROVOD_DATA_PAYLOAD=message. Both sides together take 0.5 s of processor time for a GB, half of it in the sender.
    send_bytes_per_second: float = 4e9


MEASURED = Costs()


def _above_0(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise explained(ValueError, f"{name} must be a finite number above 0, not {value!r}")


@dataclasses.dataclass(frozen=True)
class Job:
    """The job whose ranks get batches."""

    ranks: int  # trainers
    batch_bytes: float  # bytes of one rank's batch, in one step
    step_seconds: float  # seconds of the computation of a step; 0: the loop only iterates
    link_gbit: float  # Gbit/s that batches may use of each host's link, in each direction
    ranks_per_host: int = 8
    prefetch: Union[int, str] = AUTO  # steps
    # bytes/s that one reader's pipeline yields; None: more than enough
    pipeline_bytes_per_second: Optional[float] = None

    def __post_init__(self) -> None:
        for name in ["ranks", "ranks_per_host", *(["prefetch"] if self.prefetch != AUTO else [])]:
            object.__setattr__(self, name, at_least(1, name, getattr(self, name)))
        for name in ("batch_bytes", "link_gbit", "pipeline_bytes_per_second"):
            if (value := getattr(self, name)) is not None:
                _above_0(name, value)
        if not (math.isfinite(self.step_seconds) and self.step_seconds >= 0):
            raise explained(ValueError, f"step_seconds must be a finite number of 0 or more, not {self.step_seconds!r}")

    @property
    def hosts(self) -> int:
        """The number of hosts with trainers."""
        return -(-self.ranks // self.ranks_per_host)

    @property
    def fullest(self) -> int:
        """The number of ranks on the fullest host."""
        return min(self.ranks, self.ranks_per_host)

    @property
    def step_bytes(self) -> float:
        """The bytes of all ranks together, in one step."""
        return self.ranks * self.batch_bytes

    def window(self, served: int) -> int:
        """The most steps that may be on their way from all readers together to the `served` ranks."""
        if isinstance(self.prefetch, int):
            return self.prefetch
        fitting = PREFETCH_BYTES / (served * self.batch_bytes)
        return LEAST_STEPS if fitting < LEAST_STEPS else int(min(fitting, MOST_STEPS))


@dataclasses.dataclass(frozen=True)
class Readers:
    """The readers of a job. The default: rank 0 reads and trains."""

    dedicated: int = 0  # the number of dedicated readers
    per_node: int = 0  # 1: one reader on each host, for the ranks of that host alone
    own_hosts: bool = True  # True: each dedicated reader has its own host; False: they share the ranks' hosts

    def __post_init__(self) -> None:
        for name in ("dedicated", "per_node"):
            object.__setattr__(self, name, at_least(0, name, getattr(self, name)))
        if self.dedicated and self.per_node:
            both = f"dedicated={self.dedicated} and per_node={self.per_node}"
            raise explained(ValueError, f"{both} contradict each other", "Give one of them")
        if self.per_node > 1:
            raise too_many_per_node(f"per_node={self.per_node}", "per_node=1", "dedicated=R")

    def count(self, job: Job) -> int:
        """The number of processes that read."""
        return job.hosts if self.per_node else self.dedicated or 1

    def __str__(self) -> str:
        if self.per_node:
            return "1 reader on every host"
        if not self.dedicated:
            return "rank 0 reads"
        where = "" if self.own_hosts else " on the ranks' hosts"
        return f"{self.dedicated} dedicated reader{'s' * (self.dedicated > 1)}{where}"


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The pace and the memory of a job with given readers."""

    steps_per_second: float
    window: int  # the most steps that may be on their way
    bound_by: str  # the key of the longest part in `seconds`
    # The seconds of each part of a step. The parts overlap, so the longest decides.
    seconds: dict[str, float]
    keeps_up: bool  # delivery of a step takes no longer than its computation
    leaving_bytes_per_step: float  # bytes that leave a reader's host, on average over the steps
    reader_memory_bytes: float  # of each reader
    trainer_memory_bytes: float  # of each rank that is not on the reader's host; 0 if there is none

    @property
    def delivery_seconds(self) -> float:
        """Seconds of a step without any computation."""
        return max(seconds for name, seconds in self.seconds.items() if name != "step")


def predict(job: Job, readers: Readers = Readers(), costs: Costs = MEASURED) -> Prediction:
    """Predicts the steps per second, and what limits them. Never fails for a valid job."""
    goodput = job.link_gbit * 1e9 / 8 * costs.goodput
    if readers.per_node:
        # Every host is a job of its own. All hosts have the same pace.
        served, local, in_turn = job.fullest, job.fullest, 1
    else:
        served, in_turn = job.ranks, max(1, readers.dedicated)
        local = 0 if readers.dedicated and readers.own_hosts else job.fullest
    remote = served - local
    # Readers take turns, each with a whole step. At most as many readers work at once as the window has steps. Their
    # pipelines run ahead in their own buffers.
    window = job.window(served)
    at_work = min(in_turn, window)
    links = at_work if local == 0 else min(at_work, job.hosts)
    pipeline = served * job.batch_bytes / job.pipeline_bytes_per_second if job.pipeline_bytes_per_second else 0.0
    received = min(job.ranks_per_host, remote) * job.batch_bytes
    seconds = {
        "step": job.step_seconds,
        "pipeline": pipeline / in_turn,
        "batches": served * costs.seconds_per_batch / at_work,
        "copy": local * job.batch_bytes / costs.copy_bytes_per_second / at_work,
        "sending": remote * job.batch_bytes / costs.send_bytes_per_second / at_work,
        "reader's link": remote * job.batch_bytes / goodput / links,
        "trainers' link": received / goodput,
    }
    bound_by = max(seconds, key=lambda name: seconds[name])  # If parts are equal, max() takes the first: "step".
    hosts_of_readers = 1 if readers.per_node else in_turn if local == 0 else min(in_turn, job.hosts)
    held = -(-window // in_turn) + 1  # steps in each reader: its part of the window, and one step that waits for credit
    beside = local if readers.per_node or readers.dedicated else local - 1  # ranks that share the reader's memory
    kept = RANK_BYTES * served + (SLOTS_BYTES + RINGS_BYTES * beside if beside else 0)
    return Prediction(
        steps_per_second=1 / seconds[bound_by],
        window=window,
        bound_by=bound_by,
        seconds=seconds,
        keeps_up=bound_by == "step",
        leaving_bytes_per_step=remote * job.batch_bytes / hosts_of_readers,
        reader_memory_bytes=held * served * job.batch_bytes + kept,
        trainer_memory_bytes=window * job.batch_bytes if remote else 0.0,
    )


@dataclasses.dataclass(frozen=True)
class Kept:
    """The memory that cache="job" needs. A host keeps a part in proportion to its number of ranks.

    A host that only reads keeps as much as an average host with ranks.
    """

    hosts: int  # that keep rows: those of the ranks, and those of dedicated readers
    bytes_per_host: float  # of the fullest host
    fits: bool
    hosts_needed: int  # that would be enough, if all keep equally much


def kept(job: Job, readers: Readers, data_bytes: float, host_bytes: float) -> Kept:
    """The memory for data of this size, if a host may keep `host_bytes`."""
    _above_0("data_bytes", data_bytes)
    _above_0("host_bytes", host_bytes)
    hosts = job.hosts + readers.dedicated * readers.own_hosts
    fullest = data_bytes * job.fullest * job.hosts / (job.ranks * hosts)
    return Kept(hosts, fullest, fullest <= host_bytes, math.ceil(data_bytes / host_bytes))


@dataclasses.dataclass(frozen=True)
class Plan:
    """A job with its readers.

    `plans()` raises the job's prefetch, so that all dedicated readers work at once. `judge()` keeps it.
    """

    job: Job
    readers: Readers
    prediction: Prediction

    @property
    def relaxed(self) -> bool:
        """Says whether delivery keeps up with some slack (MOST_USED)."""
        return self.prediction.delivery_seconds <= MOST_USED * self.job.step_seconds


def judge(job: Job, readers: Readers) -> Plan:
    """The plan for the job as it is, with these readers."""
    return Plan(job, readers, predict(job, readers))


def plans(job: Job) -> list[Plan]:
    """The plans for three layouts, the simplest first: rank 0 reads; the fewest dedicated readers that suffice; a
    reader per host.

    If no number of dedicated readers suffices, the second plan has the number that comes closest. If several are
    equally close, it has the smallest of them.
    """
    found = []
    for count in range(1, MOST_READERS + 1):
        wide = job if job.window(job.ranks) >= count else dataclasses.replace(job, prefetch=count)
        found.append(judge(wide, Readers(dedicated=count)))
    return [judge(job, Readers()), choose(found), judge(job, Readers(per_node=1))]


def choose(candidates: Sequence[Plan]) -> Plan:
    """The first plan that keeps up with some slack. Otherwise the first of the fastest plans."""
    fastest = min(plan.prediction.delivery_seconds for plan in candidates)
    # Rounding makes one of two equally fast plans a little faster.
    first = next(plan for plan in candidates if math.isclose(plan.prediction.delivery_seconds, fastest))
    return next((plan for plan in candidates if plan.relaxed), first)
