# SPDX-License-Identifier: Apache-2.0
"""horovod-data-run: reads the command line, finds the hosts, places the processes, and becomes mpirun.

mpirun replaces the launcher's process, so signals reach mpirun. On Ctrl-C and SIGTERM it ends all ranks on all hosts.
The exit status of mpirun is the launcher's. launcher/rank.py makes it the status of the first rank that fails.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import errno
import io
import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Iterable, Mapping, NoReturn, Optional, Sequence

from ..errors import explain, explained
from ..job.cgroups import quota
from . import LaunchError, hydra, open_mpi, options
from .allocation import Allocation, find_allocation, read_hostfile
from .arrangement import Arrangement, arrange, is_oversubscribed
from .command import Command, exportable, on_rank, take_apart
from .hosts import Host, parse_hostfile, parse_hosts

_MOST_OF_A_COMMAND = 6 << 20  # the limit of Linux, which SC_ARG_MAX may not show
_MOST_OF_A_WORD = 128 << 10


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Starts the job. Returns an exit status only if there is nothing to start."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # --dry-run prints words that are not valid text without change
        sys.stdout.reconfigure(errors="surrogateescape")
    try:
        args = options.parse(sys.argv[1:] if argv is None else argv)
        if not args.command:
            raise explained(
                LaunchError,
                "There is no command to start",
                "Write it behind the options, as in `horovod-data-run -np 4 python train.py`",
            )
        request = options.request_of(args, os.environ)
        allocation = find_hosts(args, os.environ, request.np)
        given = [*(host.name for host in allocation.hosts), *request.reader_hosts]
        arrangement = arrange(request, allocation.hosts, own_names(given))
        mpirun = options.mpirun_of(args)
        version = mpi_version(mpirun)
        command = make_command(args, arrangement, mpirun, version)
        if "Open MPI" not in version and hydra.warning(arrangement):
            print(f"horovod-data-run: warning: {hydra.warning(arrangement)}", file=sys.stderr)
        if args.dry_run:
            print(command)
            return 0
        if args.verbose:
            print(
                f"horovod-data-run: {arrangement.describe()}; hosts from {allocation.source}; {version}\n{command}",
                flush=True,
            )
        start(command, args.output_filename)
    except LaunchError as error:
        print(f"horovod-data-run: error: {error}", file=sys.stderr)
        return 2


def find_hosts(args: argparse.Namespace, environ: Mapping[str, str], np: Optional[int]) -> Allocation:
    """The hosts of the options, otherwise of the batch system, otherwise this machine.

    Raises:
      LaunchError: the hosts can't be understood, or the number of processes is unknown.
    """
    if args.hosts is not None and args.hostfile is not None:
        raise explained(
            LaunchError, f"-H {args.hosts} and --hostfile {args.hostfile} contradict each other", "Give one of them"
        )
    if args.hosts is not None:
        return Allocation(parse_hosts(args.hosts), "-H")
    if args.hostfile is not None:
        text = read_hostfile(args.hostfile, "--hostfile")
        return Allocation(parse_hostfile(text, args.hostfile), f"--hostfile {args.hostfile}")
    found = find_allocation(environ)
    if found is not None:
        return found
    if np is None:
        raise explained(
            LaunchError,
            "How many processes are to train?",
            "Say it with -np N; only where hosts are named, or inside a job of Slurm, PBS or LSF, the slots say so",
        )
    # With --reader-hosts, other hosts need to know a name of this machine.
    return Allocation(
        (Host(socket.gethostname() if args.reader_hosts else "localhost", max(np, 1)),), "here: this machine alone"
    )


def own_names(given: Iterable[str] = ()) -> set[str]:
    """The names of this machine. The full name with the domain is included only if `given` has a name with a domain."""
    name = socket.gethostname()
    short = name.partition(".")[0]
    names = {"localhost", "127.0.0.1", name, short}
    if any(other.startswith(f"{short}.") for other in given if other not in names):
        names.add(socket.getfqdn())  # this asks the network
    return names


def mpi_version(mpirun: Sequence[str]) -> str:
    """`Open MPI 4.1.4` or `MPICH 4.0.2 (Hydra)`, from the output of mpirun --version.

    Raises:
      LaunchError: mpirun does not exist, or belongs to another MPI.
    """
    works = "horovod-data-run works with Open MPI and with MPICH"
    if shutil.which(mpirun[0]) is None:
        raise explained(
            LaunchError,
            f"There is no {mpirun[0]} in PATH: {works}",
            "Install one of them (Debian: apt-get install "
            "openmpi-bin), load its module, or name it with --mpirun /path/to/mpirun",
        )
    try:
        done = subprocess.run(
            [*mpirun, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
        said = done.stdout + done.stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    lines = [line.split() for line in said.splitlines() if line.strip()]
    if "Open MPI" in said or "OpenRTE" in said:
        return f"Open MPI {lines[0][-1]}"
    if "HYDRA" in said:
        return f"MPICH {next((line[1] for line in lines if line[0] == 'Version:'), '')} (Hydra)"
    raise explained(
        LaunchError,
        f"{shlex.join(mpirun)} --version says {' '.join(said.split())[:200]!r}, but {works}",
        "Name the mpirun of one of these with --mpirun",
    )


def make_command(args: argparse.Namespace, arrangement: Arrangement, mpirun: Sequence[str], version: str) -> Command:
    """The command line for the arrangement under that MPI.

    Raises:
      LaunchError: this MPI does not have an option, or the program's Python lacks horovod_data.
    """
    program = on_rank(args.command)
    here = own_names()  # under any other name, MPI may start processes of this machine by ssh, without our environment
    remote = any(host.name not in here for host in arrangement.hosts)
    extras = options.extras_of(args, os.environ, exportable(os.environ) if remote else ())
    # skipped for other hosts, because they may have another Python under this name
    if any(host.name in here for host in arrangement.hosts):
        check_python(args.command, {**os.environ, **extras.environ})
    if "Open MPI" in version:
        oversubscribed = is_oversubscribed(arrangement, usable_cores())
        command = open_mpi.command(mpirun, arrangement, program, extras, os.environ, oversubscribed, version)
    else:
        command = hydra.command(mpirun, arrangement, program, extras, os.environ)
    return dataclasses.replace(command, without=[name for name in options.ROLES if name in os.environ])


def usable_cores() -> float:
    """The cores that this process may use, or the container's quota if that is lower."""
    cores = len(os.sched_getaffinity(0))
    return min(cores, quota() or cores)


def check_python(program: Sequence[str], environ: Mapping[str, str]) -> None:
    """Checks that the program's Python has launcher/rank.py, if it is another Python than the launcher's.

    Raises:
      LaunchError: it does not have launcher/rank.py.
    """
    python, _ = take_apart(program)
    found = shutil.which(python[0], path=environ.get("PATH")) if python else None
    if found is None or [found, *python[1:]] == [sys.executable]:
        return
    try:
        done = subprocess.run(
            [*python, "-c", "import horovod_data.launcher.rank"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            stdin=subprocess.DEVNULL,
            env=environ,
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    if done.returncode:
        *_, said = ["it says nothing", *done.stderr.split("\n")[:-1]]
        raise explained(
            LaunchError,
            f"`{shlex.join(python)}` can't import horovod_data ({said})",
            f"Install horovod_data there, or start the program with a Python that has it, such as {sys.executable}",
        )


def start(command: Command, output_folder: Optional[str]) -> NoReturn:
    """Becomes mpirun.

    Raises:
      LaunchError: the system can't start mpirun, or the output folder can't be made.
    """
    if output_folder:
        try:
            Path(output_folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise explained(
                LaunchError,
                f"--output-filename {output_folder}: there can't be such a folder ({error.strerror})",
                "Name a folder to write the output of each rank to",
            ) from error
    environ = {name: value for name, value in os.environ.items() if name not in command.without}
    environ.update(command.environ)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # stdout is None, or a pipe without a reader
            stream.flush()
    try:
        os.execvpe(command.words[0], command.words, environ)
    except OSError as error:
        if error.errno != errno.E2BIG:
            raise explained(
                LaunchError,
                f"{command.words[0]} can't be started ({error.strerror})",
                "Name an mpirun that can with --mpirun",
            ) from error
        raise LaunchError(_too_long(command, environ)) from error


def _too_long(command: Command, environ: Mapping[str, str]) -> str:
    sizes = [len(os.fsencode(word)) + 1 for word in (*command.words, *map("=".join, environ.items()))]
    size = sum(sizes) + len(sizes) * ctypes.sizeof(ctypes.c_void_p)  # the size as Linux computes it
    most = min(os.sysconf("SC_ARG_MAX"), _MOST_OF_A_COMMAND)
    return explain(
        f"{command.words[0]} can't be started: the command has {len(command.words)} words, and with the environment "
        f"{size} bytes; the system takes {most}, and {_MOST_OF_A_WORD} in one word (the longest here has {max(sizes)})",
        "Under Open MPI each host with a reader repeats the names of all variables: unset those that ranks don't need, such "
        "as those of environment modules; or use --readers-per-node 1 --embedded, or --reader-hosts that don't train; or let "
        "the batch system's srun start the ranks, with HOROVOD_DATA_READERS_PER_NODE=1 or HOROVOD_DATA_READERS=R exported",
    )
