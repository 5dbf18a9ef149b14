# SPDX-License-Identifier: Apache-2.0
"""Runs a real job, and judges it: the start, the rows that arrive, the pace of each lane, and the way of its
batches."""

from __future__ import annotations

import collections
import re
import shlex
import sys
from typing import Any, Mapping, Optional, Sequence

from ..errors import counted
from ..job import launch_checks
from . import children, environment
from .children import Told
from .findings import Finding, error, ok, sentences, warning

_LIMIT = 120.0  # seconds for a whole job; each wait inside it has a shorter limit
_RANK = f"{__package__}.rank"
_SLOTS = 'let the launcher put more ranks than cores on a host (`--launcher "mpirun --oversubscribe"`)'
_SSH = "ssh to every host must work without a password, and MPI must be installed there in the same folder"
# Texts of launchers that can't start a job, and what to do.
_REASONS = {
    "not enough slots": f"Ask for fewer ranks with --np, or {_SLOTS}",
    "run as root|allow-run-as-root": "Run as another user, or set OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
    "Permission denied|Host key verification|one or more daemons|ssh": f"The launcher can't reach a host: {_SSH}",
    "No such file or directory|command not found|could not find an executable": "A program is missing on one of the hosts: "
    "install Python and MPI in the same folders on all of them",
}


def run(payload: str, np: int, seconds: float, launcher: Sequence[str], environ: Mapping[str, str]) -> Told:
    """Starts a job of `np` ranks that measures for `seconds`, with HOROVOD_DATA_PAYLOAD=`payload`."""
    command = [*launcher, "-np", str(np), sys.executable, "-m", _RANK, payload, str(seconds)]
    return children.run(command, _LIMIT + seconds, environment.for_job(environ))


def run_as_rank(seconds: float, environ: Mapping[str, str], local: str) -> Told:
    """Takes this process's place in the job in which it was started. Collective over that job.

    `local`: this process's own findings, for rank 0.
    """
    command = [sys.executable, "-m", _RANK, environ.get("HOROVOD_DATA_PAYLOAD", "auto"), str(seconds), local]
    return children.run(command, _LIMIT + seconds, environ)


def skipped(launcher: Sequence[str], mpi: str, only_srun: bool) -> Finding:
    """The finding for a missing launcher. `only_srun`: Slurm's srun starts jobs here."""
    name, value = "self-test.skipped", f"there is no {launcher[0]} in PATH"
    if only_srun and launcher[0] == "mpirun":
        how = launch_checks.command(mpi, 2, slurm=True, program="-m horovod_data.doctor")
        return warning(name, f"{value}; srun is there", f"See how a job runs by starting the doctor in one: {how}")
    return error(name, value, "Put MPI's mpirun into PATH, or name another launcher with --launcher")


def judge(
    told: Told, payload: str, launcher: Sequence[str], mpi: Optional[str], environ: Mapping[str, str]
) -> list[Finding]:
    """The findings about a job with this payload. With "auto", it is the job of which the doctor itself is a rank."""
    section = "this job" if payload == "auto" else f"self-test, {payload}"
    where = f"{section}.{'run' if told.get('started') else 'start'}"
    ranks = told.get("ranks")
    if failed := [record for record in told.records if "failed" in record]:
        what, to_do = sentences(str(failed[0]["failed"]))
        return [error(where, f"on {failed[0]['host']}: {what}", to_do or "Look at the findings above")]
    by_hand = f"`{shlex.join(launcher)} -np 2 python -m horovod_data.doctor`"
    if ranks is None:
        value = f"the job ended {told.ended or 'without a result'}: {told.last_words() or 'it printed nothing'}"
        to_do = f"Try `{shlex.join(launcher)} -np 2 hostname`, then {by_hand}, and look at their output"
        return [error(where, value, next((_REASONS[why] for why in _REASONS if re.search(why, told.stderr)), to_do))]
    found = [
        _started(ranks, f"{section}.start"),
        _delivered(ranks, f"{section}.delivery"),
        _lanes(ranks, f"{section}.lanes"),
        _together(ranks, f"{section}.together"),
    ]
    if payload != "message":
        found += _way(ranks, f"{section}.shared memory", told.stderr)
    if payload == "auto" and (mpi or "").startswith("Open MPI"):
        found += _waiting(ranks, f"{section}.waiting") + _lost_hosts(ranks, f"{section}.lost hosts", str(mpi), environ)
    if told.ended:
        value = f"the job did its work, but {told.end()}"
        found.append(error(f"{section}.end", value, f"Run it by hand to see more: {by_hand}"))
    return found


def _started(ranks: Sequence[dict[str, Any]], name: str) -> Finding:
    hosts = list(dict.fromkeys(rank["host"] for rank in ranks))
    init = max(rank["init_seconds"] for rank in ranks)
    on = f"{counted(len(ranks), 'rank')} on {counted(len(hosts), 'host')}"
    shown = ", ".join(hosts[:4]) + ", ..." * (len(hosts) > 4)
    return ok(name, f"{on} ({shown}); {init:.1f} s for init()")


def _delivered(ranks: Sequence[dict[str, Any]], name: str) -> Finding:
    if wrong := [rank["wrong"] for rank in ranks if rank["wrong"]]:
        to_do = "don't train with this. Report it, with the output of --json"
        return error(name, wrong[0], f"The rows that arrive are not those that were sent: {to_do}")
    return ok(name, 'batch="per_rank" and batch="global": every rank got its own rows, in order')


def _lanes(ranks: Sequence[dict[str, Any]], name: str) -> Finding:
    shown, last = [], None
    for lane in _sent(ranks):
        origin = "" if lane["reader"] == last else f"from rank {lane['reader']} "
        ways = " and ".join(way for way in ("arena", "message") if lane[way]) or "inline"
        shown.append(f"{origin}to {lane['to']} {lane['rate'] / 1e9:.2f} GB/s ({ways})")
        last = lane["reader"]
    if not shown:
        return ok(name, "none: no rank gets batches from another rank")
    return ok(name, f"one by one, batches of 4 MiB: {', '.join(shown)}")


def _sent(ranks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The measured lanes: for each, the reader's counts, and the rate that the rank measured."""
    return [
        {**ranks[lane["reader"]]["lanes"][i], "rate": ranks[lane["to"]]["lanes"][i]["rate"]}
        for i, lane in enumerate(ranks[0]["lanes"])
    ]


def _together(ranks: Sequence[dict[str, Any]], name: str) -> Finding:
    training = [rank for rank in ranks if rank["trains"]]
    small, large = (min(rank["steps_per_second"][size] for rank in training) for size in ("small", "large"))
    rate = large * len(training) * (4 << 20) / 1e9
    steps = f"{small:,.0f} steps/s with 4 KiB per rank; {large:,.0f} steps/s with 4 MiB"
    return ok(name, f"{steps}, {rate:.2f} GB/s for all ranks")


def _way(ranks: Sequence[dict[str, Any]], name: str, stderr: str) -> list[Finding]:
    """Says whether batches to ranks on the reader's host used shared memory."""
    sent = [lane for lane in _sent(ranks) if lane["message"]]
    by_message = [lane["to"] for lane in sent if ranks[lane["to"]]["host"] == ranks[lane["reader"]]["host"]]
    if not by_message:
        return []
    said = next((line for line in stderr.splitlines() if "horovod_data: " in line and "shared memory" in line), "")
    to = f"rank {', '.join(map(str, dict.fromkeys(by_message)))} on the reader's host"
    why = "Memory is short, or each rank is in a container of its own, or a seccomp profile forbids memfd_create"
    to_do = "give all ranks of a host one network namespace and one user, or choose messages by HOROVOD_DATA_PAYLOAD=message"
    return [warning(name, f"batches to {to} went as messages{said and f': {said}'}", f"{why}: {to_do}")]


def _waiting(ranks: Sequence[dict[str, Any]], name: str) -> list[Finding]:
    on = collections.Counter(rank["host"] for rank in ranks)
    crowded = sorted({one["host"] for one in ranks if on[one["host"]] > one["cores_present"] and not one["yields"]})
    if not crowded:
        return []
    value = f"more ranks than cores on {', '.join(crowded)}, and ranks that wait keep their core"
    return [
        warning(name, value, "Start the job with `--mca mpi_yield_when_idle 1`: it halves the time of a step there")
    ]


def _lost_hosts(ranks: Sequence[dict[str, Any]], name: str, mpi: str, environ: Mapping[str, str]) -> list[Finding]:
    several = len({rank["host"] for rank in ranks}) > 1
    if not several or not mpi.startswith("Open MPI v4") or "OMPI_MCA_oob_tcp_keepalive_time" in environ:
        return []
    options = " ".join(f"--mca oob_tcp_keepalive_{what}" for what in ("time 1", "intvl 1", "probes 5"))
    value = "Open MPI notices after minutes that a host is lost, and the others wait"
    return [warning(name, value, f"Start the job with `{options}`: then it ends within seconds")]
