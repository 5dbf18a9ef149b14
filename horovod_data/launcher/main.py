# SPDX-License-Identifier: Apache-2.0
"""horovod-data-run: reads the command line, finds the hosts, places the processes, and becomes mpirun.

mpirun replaces the launcher's process, so signals reach mpirun. On Ctrl-C and SIGTERM it ends all ranks on all hosts.
The exit status of mpirun is the launcher's. launcher/rank.py makes it the status of the first rank that fails.

With --state the launcher's process stays, and supervises mpirun: launcher/supervisor.py.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Iterable, Mapping, NoReturn, Optional, Sequence

from ..job.cgroups import quota
from ..job.settings import timeout_in
from . import LaunchError, hydra, open_mpi, options
from .arrangement import Arrangement, Group, Request, arrange
from .command import Command, exportable, not_started, on_rank
from .hosts import Allocation, Host, find_allocation, given_name, parse_hosts, read_hostfile
from .notes import last_attempt
from .restarts import ATTEMPT, LEAVE_STATUS, STATE, Lost, Policy
from .supervisor import Job, supervise


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Starts the job. Returns an exit status only if there is nothing to start."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # --dry-run prints words unchanged, even if they are not valid text
        sys.stdout.reconfigure(errors="surrogateescape")
    try:
        args = options.parse(sys.argv[1:] if argv is None else argv)
        if not args.command:
            to_do = "Write it behind the options, as in `horovod-data-run -np 4 python train.py`"
            raise LaunchError("There is no command to start", to_do)
        request = options.request_of(args, os.environ)
        allocation = find_hosts(args, os.environ, request.np)
        given = [*(host.name for host in allocation.hosts), *request.reader_hosts]
        arrangement = arrange(request, allocation.hosts, own_names(given))
        mpirun = options.mpirun_of(args)
        version = mpi_version(mpirun)
        np = sum(group.processes for group in arrangement.groups if not group.reader)
        policy = options.policy_of(args, options.environ_of(args, os.environ), np, request.readers_per_node)
        if policy is not None:
            job = job_of(args, request, allocation.hosts, mpirun, version, policy)
            command, _ = job.command(job.hosts, np, last_attempt(job.state) + 1)
        else:
            command = make_command(args, arrangement, mpirun, version)
        if "Open MPI" not in version and hydra.warning(arrangement):
            print(f"horovod-data-run: warning: {hydra.warning(arrangement)}", file=sys.stderr)
        if args.dry_run:
            print(command)
            return 0
        if args.verbose:
            where = f"{arrangement.describe()}; hosts from {allocation.source}; {version}"
            print(f"horovod-data-run: {where}\n{command}", flush=True)
        make_folder(args.output_filename)
        if policy is not None:
            return supervise(job, policy)
        start(command)
    except LaunchError as error:
        print(f"horovod-data-run: error: {error}", file=sys.stderr)
        return 2


def find_hosts(args: argparse.Namespace, environ: Mapping[str, str], np: Optional[int]) -> Allocation:
    """The hosts of the options, otherwise of the batch system, otherwise this machine."""
    if args.hosts is not None and args.hostfile is not None:
        raise LaunchError(f"-H {args.hosts} and --hostfile {args.hostfile} contradict each other", "Give one of them")
    if args.hosts is not None:
        return Allocation(parse_hosts(args.hosts), "-H")
    if args.hostfile is not None:
        return Allocation(read_hostfile(args.hostfile, "--hostfile"), f"--hostfile {args.hostfile}")
    found = find_allocation(environ)
    if found is not None:
        return found
    if np is None:
        to_do = "Pass -np N. Without it, name hosts with their slots, or start in a job of Slurm, PBS or LSF"
        raise LaunchError("How many processes are to train?", to_do)
    # With --reader-hosts, other hosts need to know a name of this machine.
    here = socket.gethostname() if args.reader_hosts else "localhost"
    return Allocation((Host(here, max(np, 1)),), "here: this machine alone")


def own_names(given: Iterable[str] = ()) -> set[str]:
    """The names of this machine. The full name with the domain is included only if `given` has a name with a domain."""
    name = socket.gethostname()
    short = name.partition(".")[0]
    names = {"localhost", "127.0.0.1", name, short}
    if any(other.startswith(f"{short}.") for other in given if other not in names):
        names.add(socket.getfqdn())  # this asks the network
    return names


def mpi_version(mpirun: Sequence[str]) -> str:
    """`Open MPI 4.1.4` or `MPICH 4.0.2 (Hydra)`, from the output of mpirun --version."""
    works = "horovod-data-run works with Open MPI and with MPICH"
    if shutil.which(mpirun[0]) is None:
        to_do = "Install one of them (Debian: apt-get install openmpi-bin), load its module, or name it with --mpirun"
        raise LaunchError(f"There is no {mpirun[0]} in PATH: {works}", f"{to_do} /path/to/mpirun")
    try:
        done = subprocess.run([*mpirun, "--version"], capture_output=True, text=True, errors="replace", timeout=60,
                              stdin=subprocess.DEVNULL)  # fmt: skip
        said = done.stdout + done.stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    lines = [line.split() for line in said.splitlines() if line.strip()]
    if "Open MPI" in said or "OpenRTE" in said:
        return f"Open MPI {lines[0][-1]}"
    if "HYDRA" in said:
        return f"MPICH {next((line[1] for line in lines if line[0] == 'Version:'), '')} (Hydra)"
    what = f"{shlex.join(mpirun)} --version says {' '.join(said.split())[:200]!r}, but {works}"
    raise LaunchError(what, "Name the mpirun of one of these with --mpirun")


def job_of(
    args: argparse.Namespace,
    request: Request,
    hosts: Sequence[Host],
    mpirun: Sequence[str],
    version: str,
    policy: Policy,
) -> Job:
    """The job for the supervisor, which starts it on all hosts, or on some of them."""
    state = os.path.abspath(args.state)
    names = {host.name for host in hosts}
    # Hosts with readers only are hosts without slots.
    every = (*hosts, *(Host(name, 0) for name in request.reader_hosts if name not in names))
    own = own_names(host.name for host in every)

    def command(chosen: Sequence[Host], np: int, attempt: int) -> tuple[Command, str]:
        there = {host.name for host in chosen}
        asked = dataclasses.replace(
            request, np=np, reader_hosts=tuple(name for name in request.reader_hosts if name in there)
        )
        arrangement = arrange(asked, [host for host in chosen if host.slots], own)
        of_attempt = argparse.Namespace(**vars(args))
        of_attempt.x = [
            *(args.x or ()),
            f"{STATE}={state}",
            f"{ATTEMPT}={attempt}",
            f"{LEAVE_STATUS}={policy.leave_status}",
        ]
        if args.output_filename and attempt > 1:
            of_attempt.output_filename = os.path.join(args.output_filename, f"attempt-{attempt}")
            make_folder(of_attempt.output_filename)
        return make_command(of_attempt, arrangement, mpirun, version), arrangement.describe()

    def probe(chosen: Sequence[Host]) -> Command:
        without = {"command": ["true"], "output_filename": None, "tag_output": False, "binding_args": None}
        of_probe = argparse.Namespace(**{**vars(args), **without})
        return make_command(of_probe, Arrangement(tuple(Group(host.name, 1) for host in chosen), {}), mpirun, version)

    def lost(text: str) -> Optional[Lost]:
        found = (open_mpi if "Open MPI" in version else hydra).lost(text)
        if found is None:
            return None
        return dataclasses.replace(found, host=given_name(found.host, [host.name for host in every]))

    try:
        limit = timeout_in(options.environ_of(args, os.environ))
    except ValueError as error:
        raise LaunchError(str(error)) from None
    on_stdout = "Open MPI" not in version
    return Job(state, every, frozenset(own), args.grace_seconds, command, probe, lost, on_stdout, limit)


def make_command(args: argparse.Namespace, arrangement: Arrangement, mpirun: Sequence[str], version: str) -> Command:
    """The command line for the arrangement under that MPI."""
    program = on_rank(args.command)
    here = own_names()  # under any other name, MPI may start processes of this machine by ssh, without our environment
    remote = any(host.name not in here for host in arrangement.hosts)
    extras = options.extras_of(args, os.environ, exportable(os.environ) if remote else ())
    if "Open MPI" in version:
        cores = usable_cores()  # this assumes as many on each host
        oversubscribed = any(host.slots > cores for host in arrangement.hosts)
        command = open_mpi.command(mpirun, arrangement, program, extras, os.environ, oversubscribed, version)
    else:
        command = hydra.command(mpirun, arrangement, program, extras, os.environ)
    return dataclasses.replace(command, without=[name for name in options.ROLES if name in os.environ])


def usable_cores() -> float:
    """The cores that this process may use, or the container's quota if that is lower."""
    cores = len(os.sched_getaffinity(0))
    return min(cores, quota() or cores)


def make_folder(output_folder: Optional[str]) -> None:
    """Makes the folder of --output-filename."""
    if output_folder:
        try:
            Path(output_folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"--output-filename {output_folder}: this folder can't be made ({error.strerror})"
            raise LaunchError(what, "Name a folder to write the output of each rank to") from error


def start(command: Command) -> NoReturn:
    """Becomes mpirun."""
    environ = {name: value for name, value in os.environ.items() if name not in command.without}
    environ.update(command.environ)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # stdout is None, or a pipe without a reader
            stream.flush()
    try:
        os.execvpe(command.words[0], command.words, environ)
    except OSError as error:
        raise not_started(command, error) from error
