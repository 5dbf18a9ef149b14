# SPDX-License-Identifier: Apache-2.0
"""Runs a real job, and judges it: the start, the rows that arrive, the pace of each lane, and the way of its
batches."""

from __future__ import annotations

import os
import re
import shlex
import sys
from typing import Any, Mapping, Optional, Sequence

from ..job import launch_checks
from . import children, environment, transports
from .children import Told
from .findings import Finding, error, ok, sentences, warning

_LIMIT = 120.0  # seconds for a whole job; each wait inside it has a shorter limit
_RANK = f"{__package__}.rank"
# Texts of launchers that can't start a job, and what to do.
_REASONS = (
    (
        r"not enough slots",
        "Ask for fewer ranks with --np, or let the launcher put more ranks than cores on a host "
        '(`--launcher "mpirun --oversubscribe"`)',
    ),
    (
        r"run as root|allow-run-as-root",
        "Run as another user, or set OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
    ),
    (
        r"Permission denied|Host key verification|reliably start one or more daemons|ssh",
        "The launcher can't reach a host: ssh to every host must work without a password, and MPI must be installed there in "
        "the same folder",
    ),
    (
        r"No such file or directory|command not found|could not find an executable",
        "A program is missing on one of the hosts: install Python and MPI in the same folders on all of them",
    ),
)


def run(payload: str, np: int, seconds: float, launcher: Sequence[str], environ: Mapping[str, str]) -> Told:
    """Starts a job of `np` ranks that measures for `seconds`, with HOROVOD_DATA_PAYLOAD=`payload`."""
    command = [*launcher, "-np", str(np), sys.executable, "-m", _RANK, payload, str(seconds)]
    return children.run(command, _LIMIT + seconds, environment.for_job(environ))


def run_as_rank(seconds: float, environ: Mapping[str, str], local: str) -> Told:
    """Takes this process's place in the job in which it was started. Collective over that job.

    Args:
      local: this process's own findings, for rank 0.
    """
    command = [sys.executable, "-m", _RANK, environ.get("HOROVOD_DATA_PAYLOAD", "auto"), str(seconds), local]
    return children.run(command, _LIMIT + seconds, environ, in_job=True)


def skipped(launcher: Sequence[str], mpi: str, only_srun: bool) -> Finding:
    """The finding for a missing launcher. `only_srun`: Slurm's srun starts jobs here."""
    name, value = "self-test.skipped", f"there is no {launcher[0]} in PATH"
    if only_srun and launcher[0] == "mpirun":
        how = launch_checks.command(mpi, 2, slurm=True, program="-m horovod_data.doctor")
        return warning(name, f"{value}; srun is there", f"See how a job runs by starting the doctor in one: {how}")
    return error(name, value, "Put MPI's mpirun into PATH, or name another launcher with --launcher")


def default_np() -> int:
    """The default number of ranks: 2 to 4, by the number of cores."""
    return min(4, max(2, len(os.sched_getaffinity(0))))


def judge(
    told: Told, payload: str, launcher: Sequence[str], mpi: Optional[str], environ: Mapping[str, str]
) -> list[Finding]:
    """The findings about a job with this payload. With "auto", it is the job of which the doctor itself is a rank."""
    section = "this job" if payload == "auto" else f"self-test, {payload}"
    failed = [record for record in told.records if "failed" in record]
    ranks = told.get("ranks")
    if failed:
        what, to_do = sentences(str(failed[0]["failed"]))
        return [
            error(
                f"{section}.start" if not told.get("started") else f"{section}.run",
                f"on {failed[0]['host']}: {what}",
                to_do or "Look at the findings above",
            )
        ]
    if ranks is None:
        return [_not_started(told, section, launcher)]
    found = [
        _started(ranks, section),
        _threads(ranks, section, mpi),
        _delivered(ranks, section),
        _lanes(ranks, section),
        _together(ranks, section),
        *_way(ranks, section, payload, told.stderr),
    ]
    if payload != "arena":  # not with "arena", because MPI's transports are the same in all jobs
        found += transports.check(told.stderr, ranks, mpi)
    if payload == "auto":
        found += [*_bound(ranks, section), *_yields(ranks, section), *_keepalive(ranks, section, mpi, environ)]
    if told.ended:
        found.append(
            error(
                f"{section}.end",
                f"the job did its work, but ended {told.ended}: {told.last_words()}",
                f"Run it by hand to see more: `{_shown(launcher)}`",
            )
        )
    return found


def _shown(launcher: Sequence[str]) -> str:
    return f"{shlex.join(launcher)} -np 2 python -m horovod_data.doctor"


def _not_started(told: Told, section: str, launcher: Sequence[str]) -> Finding:
    said = told.last_words()
    where = {True: "run"}.get(bool(told.get("started")), "start")
    to_do = next(
        (to_do for pattern, to_do in _REASONS if re.search(pattern, told.stderr)),
        f"Try `{shlex.join(launcher)} -np 2 hostname`, then `{_shown(launcher)}`, and look at what they say",
    )
    return error(
        f"{section}.{where}", f"the job ended {told.ended or 'without a word'}: {said or 'it said nothing'}", to_do
    )


def _started(ranks: Sequence[dict[str, Any]], section: str) -> Finding:
    hosts = list(dict.fromkeys(rank["host"] for rank in ranks))
    shown = ", ".join(hosts[:4]) + (", ..." if len(hosts) > 4 else "")
    return ok(
        f"{section}.start",
        f"{len(ranks)} rank{'s' * (len(ranks) > 1)} on {len(hosts)} host{'s' * (len(hosts) > 1)} "
        f"({shown}); {max(rank['import_seconds'] for rank in ranks):.1f} s for imports, "
        f"{max(rank['init_seconds'] for rank in ranks):.1f} s for init()",
    )


def _threads(ranks: Sequence[dict[str, Any]], section: str, mpi: Optional[str]) -> Finding:
    levels = sorted({rank["thread_level"] for rank in ranks})
    value = ", ".join(f"MPI_THREAD_{level}" for level in levels)
    if any(rank["horovod_threads"] is False for rank in ranks):
        return warning(
            f"{section}.threads",
            f"{value}, but Horovod says that its MPI has no thread support",
            f"Rebuild Horovod with {mpi or 'the MPI of horovod_data'}",
        )
    return ok(f"{section}.threads", value)  # init() refuses a lower level


def _delivered(ranks: Sequence[dict[str, Any]], section: str) -> Finding:
    wrong = [rank["wrong"] for rank in ranks if rank["wrong"]]
    if wrong:
        return error(
            f"{section}.delivery",
            wrong[0],
            "What arrives is not what was sent: don't train with this. Report it, with the output of --json",
        )
    return ok(f"{section}.delivery", 'batch="per_rank" and batch="global": every rank got its own, in order')


def _lanes(ranks: Sequence[dict[str, Any]], section: str) -> Finding:
    shown, last = [], None
    for lane in _sent(ranks):
        origin = "" if lane["reader"] == last else f"from rank {lane['reader']} "
        shown.append(f"{origin}to {lane['to']} {lane['rate'] / 1e9:.2f} GB/s ({_ways(lane)})")
        last = lane["reader"]
    return ok(
        f"{section}.lanes",
        f"one by one, batches of 4 MiB: {', '.join(shown)}"
        if shown
        else "none: no rank is given batches by another one",
    )


def _sent(ranks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The measured lanes: for each, the reader's counts, and the rate that the rank measured."""
    return [
        {**ranks[lane["reader"]]["lanes"][i], "rate": ranks[lane["to"]]["lanes"][i]["rate"]}
        for i, lane in enumerate(ranks[0]["lanes"])
    ]


def _ways(lane: Mapping[str, Any]) -> str:
    return " and ".join(way for way in ("arena", "message") if lane[way]) or "inline"


def _together(ranks: Sequence[dict[str, Any]], section: str) -> Finding:
    training = [rank for rank in ranks if rank["trains"]]
    small, large = (min(rank["together"][size]["steps_per_second"] for rank in training) for size in ("small", "large"))
    return ok(
        f"{section}.together",
        f"{small:,.0f} steps/s with 4 KiB per rank; {large:,.0f} steps/s with 4 MiB, "
        f"{large * len(training) * (4 << 20) / 1e9:.2f} GB/s for all ranks",
    )


def _way(ranks: Sequence[dict[str, Any]], section: str, payload: str, stderr: str) -> list[Finding]:
    """Says whether batches to ranks on the reader's host used shared memory, if they may."""
    if payload == "message":
        return []
    late = {
        lane["to"]: None
        for lane in _sent(ranks)
        if lane["message"] and ranks[lane["to"]]["host"] == ranks[lane["reader"]]["host"]
    }
    if not late:
        return []
    said = next((line for line in stderr.splitlines() if "horovod_data: " in line and "shared memory" in line), "")
    return [
        warning(
            f"{section}.shared memory",
            f"batches to rank {', '.join(map(str, late))} on the reader's host went as "
            f"messages{f': {said}' if said else ''}",
            "Memory is short, or each rank is in a container of its own: "
            "give all ranks of a host one network namespace and one user",
        )
    ]


def _bound(ranks: Sequence[dict[str, Any]], section: str) -> list[Finding]:
    bound = [rank for rank in ranks if rank["reads"] and rank["cores"] == 1 and rank["cores_present"] > 1]
    if bound:
        return [
            warning(
                f"{section}.binding",
                f"{_readers(bound)} may use one of {bound[0]['cores_present']} cores",
                "A reader's pipeline feeds many ranks: start the job with `--bind-to none`",
            )
        ]
    return []


def _readers(ranks: Sequence[dict[str, Any]]) -> str:
    which = transports.numbers([rank["rank"] for rank in ranks])
    return f"the reader, rank {which}," if len(ranks) == 1 else f"each of the readers, ranks {which},"


def _yields(ranks: Sequence[dict[str, Any]], section: str) -> list[Finding]:
    crowded = {
        rank["host"] for rank in ranks if sum(other["host"] == rank["host"] for other in ranks) > rank["cores_present"]
    }
    if crowded and any(rank["variables"].get("mpi_yield_when_idle") == 0 for rank in ranks if rank["host"] in crowded):
        return [
            warning(
                f"{section}.waiting",
                f"more ranks than cores on {', '.join(sorted(crowded))}, and those that wait keep their core",
                "Start the job with `--mca mpi_yield_when_idle 1`: it halves times there",
            )
        ]
    return []


def _keepalive(
    ranks: Sequence[dict[str, Any]], section: str, mpi: Optional[str], environ: Mapping[str, str]
) -> list[Finding]:
    several = len({rank["host"] for rank in ranks}) > 1
    if several and (mpi or "").startswith("Open MPI v4") and "OMPI_MCA_oob_tcp_keepalive_time" not in environ:
        return [
            warning(
                f"{section}.lost hosts",
                "Open MPI notices after minutes that a host is lost, and the others wait",
                "Start the job with `--mca oob_tcp_keepalive_time 1 --mca oob_tcp_keepalive_intvl 1 --mca "
                "oob_tcp_keepalive_probes 5`: then it ends within seconds",
            )
        ]
    return []
