# SPDX-License-Identifier: Apache-2.0
"""Runs a real job, and judges it: the start, the rows that arrive, the steps per second, and the way of its batches."""

from __future__ import annotations

import re
import shlex
import sys
from typing import Any, Mapping, Sequence

from ..errors import counted
from ..job import launch_checks
from . import children, environment
from .children import Output
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


def run(payload: str, np: int, seconds: float, launcher: Sequence[str], environ: Mapping[str, str]) -> Output:
    """Starts a job of `np` ranks that measures for `seconds`, with HOROVOD_DATA_PAYLOAD=`payload`."""
    command = [*launcher, "-np", str(np), sys.executable, "-m", _RANK, payload, str(seconds)]
    return children.run(command, _LIMIT + seconds, environment.for_job(environ))


def skipped(launcher: Sequence[str], mpi: str, only_srun: bool) -> Finding:
    """The finding for a missing launcher. `only_srun`: Slurm's srun starts jobs here."""
    name, value = "self-test.skipped", f"there is no {launcher[0]} in PATH"
    if only_srun and launcher[0] == "mpirun":
        how = launch_checks.command(mpi, 2, slurm=True, program="-m horovod_data.doctor")
        return warning(name, f"{value}; srun is there", f"See how a job runs by starting the doctor in one: {how}")
    return error(name, value, "Put MPI's mpirun into PATH, or name another launcher with --launcher")


def judge(output: Output, payload: str, launcher: Sequence[str]) -> list[Finding]:
    """The findings about a job that run() has started with this payload."""
    section = f"self-test, {payload}"
    where = f"{section}.{'run' if output.get('started') else 'start'}"
    ranks = output.get("ranks")
    if failed := [record for record in output.records if "failed" in record]:
        what, to_do = sentences(str(failed[0]["failed"]))
        return [error(where, f"on {failed[0]['host']}: {what}", to_do or "Look at the findings above")]
    by_hand = f"`{shlex.join(launcher)} -np 2 python -m horovod_data.doctor`"
    if ranks is None:
        value = f"the job ended {output.ended or 'without a result'}: {output.reason() or 'it printed nothing'}"
        to_do = f"Try `{shlex.join(launcher)} -np 2 hostname`, then {by_hand}, and look at their output"
        return [error(where, value, next((_REASONS[why] for why in _REASONS if re.search(why, output.stderr)), to_do))]
    found = of_ranks(ranks, payload, section, output.stderr)
    if output.ended:
        value = f"the job did its work, but {output.ending()}"
        found.append(error(f"{section}.end", value, f"Run it by hand to see more: {by_hand}"))
    return found


def of_ranks(ranks: Sequence[dict[str, Any]], payload: str, section: str, stderr: str = "") -> list[Finding]:
    """The findings about a job that has delivered. `ranks`: what each rank has found. `stderr`: of the job."""
    delivered = 'batch="per_rank" and batch="global": every rank got its own rows'
    found = [_started(ranks, f"{section}.start"), ok(f"{section}.delivery", delivered)]
    found.append(_together(ranks, f"{section}.together"))
    return found if payload == "message" else found + _way(ranks, f"{section}.shared memory", stderr)


def _started(ranks: Sequence[dict[str, Any]], name: str) -> Finding:
    hosts = list(dict.fromkeys(rank["host"] for rank in ranks))
    init = max(rank["init_seconds"] for rank in ranks)
    on = f"{counted(len(ranks), 'rank')} on {counted(len(hosts), 'host')}"
    shown = ", ".join(hosts[:4]) + ", ..." * (len(hosts) > 4)
    return ok(name, f"{on} ({shown}); {init:.1f} s for init()")


def _together(ranks: Sequence[dict[str, Any]], name: str) -> Finding:
    training = [rank for rank in ranks if rank["trains"]]
    small, large = (min(rank["steps_per_second"][size] for rank in training) for size in ("small", "large"))
    rate = large * len(training) * (4 << 20) / 1e9
    ways = " and ".join(way for way in ("arena", "message") if any(rank[way] for rank in ranks)) or "no other rank"
    steps = f"{small:,.0f} steps/s with 4 KiB per rank; {large:,.0f} steps/s with 4 MiB"
    return ok(name, f"{steps}, {rate:.2f} GB/s for all ranks ({ways})")


def _way(ranks: Sequence[dict[str, Any]], name: str, stderr: str) -> list[Finding]:
    """Says whether batches to ranks on the reader's host used shared memory."""
    for reader in ranks:
        near = [to for to in reader["serves"] if ranks[to]["host"] == reader["host"]]
        if near and (not reader["arena"] or (reader["message"] and near == reader["serves"])):
            break
    else:
        return []
    line = next((line for line in stderr.splitlines() if "horovod_data: " in line and "shared memory" in line), "")
    value = f"batches from rank {reader['rank']} to ranks on its host went as messages{line and f': {line}'}"
    why = "Memory is short, or each rank is in a container of its own, or a seccomp profile forbids memfd_create"
    to_do = "give all ranks of a host one network namespace and one user, or choose messages by HOROVOD_DATA_PAYLOAD=message"
    return [warning(name, value, f"{why}: {to_do}")]
