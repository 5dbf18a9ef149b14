# SPDX-License-Identifier: Apache-2.0
"""The command: python -m horovod_data.doctor [--json] [--no-self-test] [--np N] [--launcher COMMAND]

Without a launcher, it checks this machine and starts its own jobs. Under mpirun or srun, it checks that job, and rank 0
reports for all ranks.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from typing import Optional, Sequence

from ..errors import show_any_text
from ..job import launch_checks
from ..native import bindings
from . import environment, libraries, machine, selftest
from .findings import Finding, as_json, as_text, error, ok, status


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
    if found:
        width = max(80, shutil.get_terminal_size((120, 24)).columns)
        print(as_json(found) if given.json else as_text(found, width), flush=True)
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
        output = selftest.run(payload, given.np, given.seconds, launcher, environ)
        found += selftest.judge(output, payload, launcher)
        if not output.get("started"):  # if it did not start, it would not start with the other payload
            break
    return found


def in_job(seconds: float) -> list[Finding]:
    """On rank 0, the findings about the job of which this process is a rank, otherwise none. Collective over the job.

    An error of init() has its own advice, so it is raised.
    """
    from . import rank  # it needs NumPy

    ranks = rank.measure(rank.join(), seconds)
    if not ranks:
        return []
    mpi = launch_checks.mpi_name(str(bindings.build_info()["mpi"]))
    found = machine.check() + environment.launched(os.environ, mpi) + environment.ours(os.environ)
    return found + selftest.of_ranks(ranks, os.environ.get("HOROVOD_DATA_PAYLOAD", "auto"), "this job")


if __name__ == "__main__":
    sys.exit(main())
