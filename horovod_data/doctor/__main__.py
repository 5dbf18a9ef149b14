# SPDX-License-Identifier: Apache-2.0
"""The command: python -m horovod_data.doctor [--json] [--no-self-test] [--np N] [--launcher COMMAND]

Without a launcher, it checks this machine and starts its own jobs. Under mpirun or srun, it checks that job, and rank 0
reports for all ranks.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import shutil
import sys
import time
from typing import Any, Optional, Sequence

from ..errors import show_any_text
from ..job import launch_checks
from . import environment, libraries, machine, selftest
from .findings import Finding, as_json, as_text, error, ok, status

_HEAD_START = 10.0  # seconds; another rank's status ends the job, so rank 0 reports before other ranks exit


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the command. Returns the exit status: 0 without errors, 1 with errors, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m horovod_data.doctor",
        description="Finds faults in this environment, and says what to do. "
        "Status 0: no errors, perhaps warnings; 1: errors, so horovod_data does not work; 2: wrong arguments.",
        epilog="If mpirun or srun starts the doctor, it checks that job, and starts none of its own.",
    )
    parser.add_argument("--json", action="store_true", help="the report for programs")
    parser.add_argument("--no-self-test", action="store_true", help="start no job")
    np, text = min(4, max(2, len(os.sched_getaffinity(0)))), "ranks of the self-test (default %(default)s)"
    parser.add_argument("--np", type=int, default=np, help=text)
    text = "what starts the self-test, with options; it must take -np (default %(default)s)"
    parser.add_argument("--launcher", default="mpirun", type=shlex.split, help=text)
    parser.add_argument("--seconds", type=float, default=3.0, help="of measuring in each job (default %(default)s)")
    given = parser.parse_args(arguments)
    show_any_text()  # values in the environment may not be valid text
    if given.np < 1 or not 0 < given.seconds <= 600:
        parser.error("--np must be 1 or more, and --seconds above 0 and at most 600")
    if not given.launcher or not given.launcher[0]:
        parser.error("--launcher names no command")
    launcher = launch_checks.find_launcher(os.environ)
    launched = launcher is not None and launcher.size > 1 and not given.no_self_test
    found = in_job(given.seconds) if launched else alone(given)
    if found is None:
        return 0
    width = max(80, shutil.get_terminal_size((120, 24)).columns)
    print(as_json(found) if given.json else as_text(found, width), flush=True)
    if launched and status(found) != 0 and launch_checks.rank_before_mpi(os.environ):
        time.sleep(_HEAD_START)  # usually the end of rank 0 also ends this process
    return status(found)


def alone(given: argparse.Namespace) -> list[Finding]:
    """The findings about this machine, and about jobs that are started here."""
    looks = libraries.look(os.environ)
    mpi = libraries.mpi_of(looks["core"])
    found = machine.check() + libraries.check(looks, environment.only_srun(os.environ))
    found.append(environment.launcher_in_path(os.environ, mpi))
    found += environment.launched(os.environ, mpi) + environment.ours(os.environ)
    if given.no_self_test:
        return found + [ok("self-test.skipped", "--no-self-test")]
    if mpi is None:
        return found + [error("self-test.skipped", "horovod_data can't be loaded", "Fix the errors above first")]
    launcher = given.launcher
    if shutil.which(launcher[0]) is None:
        return found + [selftest.skipped(launcher, mpi, environment.only_srun(os.environ))]
    environ = environment.without_launcher(os.environ) if launch_checks.find_launcher(os.environ) else os.environ
    for payload in ("arena", "message"):
        told = selftest.run(payload, given.np, given.seconds, launcher, environ)
        found += selftest.judge(told, payload, launcher, mpi, environ)
        if not told.get("started"):  # if it did not start, it would not start with the other payload
            break
    return found


def in_job(seconds: float) -> Optional[list[Finding]]:
    """The findings about the job of which this process is a rank. Collective over it. None: only rank 0 reports."""
    mine = machine.check() + environment.ours(os.environ)
    told = selftest.run_as_rank(seconds, os.environ, json.dumps([dataclasses.asdict(one) for one in mine]))
    ranks = told.get("ranks")
    if ranks is None and told.get("done") and not told.ended:
        return None
    if ranks is None and launch_checks.rank_before_mpi(os.environ):  # rank 0 reports the rest
        found = [*mine, *selftest.judge(told, "auto", ["mpirun"], None, os.environ)]
        me = f"{launch_checks.place_before_mpi(os.environ)}, according to its launcher"
        return [ok("this process.is", me), *(one for one in found if one.level != "ok")]
    # The process of run_as_rank() has loaded the core, so no other process loads it. judge() looks at how that process
    # ended.
    looks = libraries.look(os.environ, dataclasses.replace(told, ended="") if told.get("core") else told)
    mpi = libraries.mpi_of(looks["core"])
    return [
        *(mine if ranks is None else _by_host(ranks)),
        *libraries.check(looks),
        *environment.launched(os.environ, mpi),
        *selftest.judge(told, "auto", ["mpirun"], mpi, os.environ),
    ]


def _by_host(ranks: Sequence[dict[str, Any]]) -> list[Finding]:
    """The findings of the first rank of each host. If all hosts have the same finding, it comes once."""
    hosts: dict[str, list[Finding]] = {}
    for rank in ranks:
        hosts.setdefault(rank["host"], [Finding(**one) for one in rank["findings"]])
    found: list[Finding] = []
    for name in dict.fromkeys(one.name for findings in hosts.values() for one in findings):
        same = {host: one for host, findings in hosts.items() for one in findings if one.name == name}
        if len(set(same.values())) == 1 and len(same) == len(hosts):
            found.append(next(iter(same.values())))
        else:
            found += [dataclasses.replace(one, value=f"{host}: {one.value}") for host, one in same.items()]
    return found


if __name__ == "__main__":
    sys.exit(main())
