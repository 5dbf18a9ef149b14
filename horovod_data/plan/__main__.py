# SPDX-License-Identifier: Apache-2.0
"""The calculator: python -m horovod_data.plan"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any, Optional, Sequence

from ..errors import counted
from . import AUTO, MOST_USED, Job, Kept, Plan, Readers, choose, judge, kept, plans


def _size(count: float) -> str:
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}" if count < 999.5 * factor else f"{count / factor:,.0f} {unit}"
    return f"{count:.0f} B"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds * 1e3:,.0f} ms"


def _describe(plan: Plan) -> list[str]:
    job, readers, found = plan.job, plan.readers, plan.prediction
    verdict = "keeps up" if found.keeps_up else "does not keep up" if job.step_seconds else "as fast as it goes"
    window = f'"{AUTO}" (up to {found.window} steps)' if job.prefetch == AUTO else job.prefetch
    parts = ", ".join(f"{name} {_milliseconds(seconds)}" for name, seconds in found.seconds.items() if seconds)
    return [
        f"{readers}, prefetch={window}: {verdict}, {found.steps_per_second:.3g} steps/s, bound by: {found.bound_by}",
        f"  a step waits for the longest of: {parts}",
        f"  leaves each reader's host: {_size(found.leaving_bytes_per_step)} per step, "
        f"{_size(found.leaving_bytes_per_step * found.steps_per_second)}/s",
        f"  memory: {_size(found.reader_memory_bytes)} in each of {counted(readers.count(job), 'reader')}, "
        f"{_size(found.trainer_memory_bytes)} in each rank on another host",
    ]


def _advice(plan: Plan) -> str:
    readers, where = plan.readers, ""
    how = "readers_per_node=1" if readers.per_node else f"readers={readers.dedicated}" if readers.dedicated else ""
    if readers.dedicated:
        where = ", on a host of its own" if readers.dedicated == 1 else ", each on a host of its own"
    # A number switches "auto" off. So give a number only if readers need more steps than "auto" allows.
    window = "" if plan.job.prefetch == AUTO else f", distribute_dataset(..., prefetch={plan.job.prefetch})"
    text = f"Recommended: {readers}{where}: horovod_data.init({how}){window}"
    if plan.relaxed:
        return text
    bound = plan.prediction.bound_by
    if not plan.job.step_seconds:
        return f"{text}. Nothing here is faster; it is bound by: {bound}"
    if bound == "step":
        return f"{text}. It keeps up, but needs more than {MOST_USED:.0%} of a step"
    return f"{text}. Nothing here keeps up: even this is bound by: {bound}"


def _as_json(plan: Plan) -> dict[str, Any]:
    return {
        "job": dataclasses.asdict(plan.job),
        "readers": dataclasses.asdict(plan.readers),
        "processes_that_read": plan.readers.count(plan.job),
        "relaxed": plan.relaxed,
        **dataclasses.asdict(plan.prediction),
        "delivery_seconds": plan.prediction.delivery_seconds,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m horovod_data.plan",
        description="Readers, links and memory that a job needs; see docs/planning.md. "
        "Status 0: a layout keeps up, or --step-ms is 0; 1: none keeps up, or the data don't fit; 2: wrong arguments.",
    )
    parser.add_argument("--ranks", type=int, required=True, help="ranks that train")
    for name, text in (
        ("--batch-mb", "MB of one rank's batch; 1 MB is 1,000,000 bytes"),
        ("--step-ms", "ms of computation in a step; 0: as fast as data comes"),
        ("--link-gbit", "Gbit/s of each host's link that batches may use"),
    ):
        parser.add_argument(name, type=float, required=True, help=text)
    parser.add_argument("--ranks-per-host", type=int, default=8)
    pipeline = parser.add_mutually_exclusive_group()
    pipeline.add_argument("--pipeline-mb-s", type=float, help="MB/s that the pipeline of one reader yields")
    text = "ms in which the pipeline of one reader yields one rank's batch"
    pipeline.add_argument("--pipeline-ms", type=float, help=text)
    layout = parser.add_mutually_exclusive_group()
    layout.add_argument("--readers", type=int, help="judge this many dedicated readers; 0: rank 0 reads")
    layout.add_argument("--readers-per-node", type=int, choices=[1], help="judge one reader on every host")
    text = 'GB of the data that cache="job" would keep: do they fit in the memory of the hosts?'
    parser.add_argument("--cache-gb", type=float, metavar="GB", help=text)
    text = "with --cache-gb: GB that each host may keep (HOROVOD_DATA_CACHE_GB, which is in GiB)"
    parser.add_argument("--host-gb", type=float, metavar="GB", help=text)
    parser.add_argument("--json", action="store_true")
    return parser


def _job(given: argparse.Namespace) -> Job:
    batch = given.batch_mb * 1e6
    pipeline = None if given.pipeline_mb_s is None else given.pipeline_mb_s * 1e6
    if given.pipeline_ms is not None:
        pipeline = batch / given.pipeline_ms * 1e3 if given.pipeline_ms else 0.0
    return Job(
        given.ranks,
        batch,
        given.step_ms / 1e3,
        given.link_gbit,
        given.ranks_per_host,
        pipeline_bytes_per_second=pipeline,
    )


def _plans(given: argparse.Namespace) -> tuple[list[Plan], Plan]:
    """Returns the layouts to compare, and the one to judge or to recommend.

    If the options give the readers, there are no layouts to compare.
    """
    job = _job(given)
    if given.readers_per_node is not None:
        return [], judge(job, Readers(per_node=1))
    if given.readers is not None:
        return [], judge(job, Readers(dedicated=given.readers))
    # cache="job" refuses a reader on each of several hosts
    found = [plan for plan in plans(job) if given.cache_gb is None or not plan.readers.per_node]
    return found, choose(found)


def _kept(given: argparse.Namespace, plan: Plan) -> Optional[Kept]:
    if (given.cache_gb is None) != (given.host_gb is None):
        raise ValueError("--cache-gb and --host-gb belong together. Give both, or none")
    if given.cache_gb is None:
        return None
    if given.readers_per_node is not None:
        raise ValueError('cache="job" refuses a reader on each of several hosts. Leave out --readers-per-node')
    return kept(plan.job, plan.readers, given.cache_gb * 1e9, given.host_gb * 1e9)


def _about_memory(found: Kept, host_bytes: float) -> str:
    where = f"up to {_size(found.bytes_per_host)} on each of {counted(found.hosts, 'host')}"
    if found.fits:
        return f'cache="job" keeps {where}: it fits'
    to_do = f"{found.hosts_needed:,} equally full hosts would be enough, or files in HOROVOD_DATA_CACHE_DIR"
    return f'cache="job" would keep {where}, which may keep {_size(host_bytes)}: it does not fit. {to_do}'


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The calculator. Returns its exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        others, chosen = _plans(given)
        memory = _kept(given, chosen)
    except ValueError as error:
        parser.error(str(error))
    if given.json:
        cache = {} if memory is None else {"cache": dataclasses.asdict(memory)}
        described = {**_as_json(chosen), "alternatives": [_as_json(other) for other in others], **cache}
        print(json.dumps(described, indent=1))
    else:
        _show(others, chosen, memory, given.host_gb)
    fits = memory is None or memory.fits
    return 0 if fits and (chosen.prediction.keeps_up or not chosen.job.step_seconds) else 1


def _show(others: Sequence[Plan], chosen: Plan, memory: Optional[Kept], host_gb: float) -> None:
    job = chosen.job
    rate = f", {_size(job.step_bytes / job.step_seconds)}/s" if job.step_seconds else ""
    print(f"{counted(job.ranks, 'rank')} on {counted(job.hosts, 'host')}: {_size(job.step_bytes)} per step{rate}")
    for plan in others or [chosen]:
        print("\n".join(_describe(plan)))
    if others:
        print(_advice(chosen))
    if memory is not None:
        print(_about_memory(memory, host_gb * 1e9))


if __name__ == "__main__":
    sys.exit(main())
