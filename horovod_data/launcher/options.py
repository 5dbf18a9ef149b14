# SPDX-License-Identifier: Apache-2.0
"""The command line of horovod-data-run: its own options, and horovodrun's options if Horovod is installed.

Horovod's own parser parses its options and its configuration file. Horovod's own code makes HOROVOD_* variables of
them. Our options replace Horovod's options of the same name.
"""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, Sequence

from .._version import __version__
from ..job.settings import read_roles
from . import LaunchError
from .arrangement import Request
from .command import Extras
from .hosts import parse_names
from .restarts import LEAVE_STATUS, STATE, Policy

_USAGE = """horovod-data-run -np N [--readers R | --readers-per-node 1 [--embedded]]
                        [-H HOST:SLOTS,... | --hostfile FILE] [--reader-hosts HOST,...]
                        [--state DIR [--max-restarts N] [--min-np N]] [OPTION...] [--] COMMAND..."""
# The variables that tell init() which processes read, and the options that replace them.
ROLES = {"HOROVOD_DATA_READERS": "--readers R", "HOROVOD_DATA_READERS_PER_NODE": "--readers-per-node 1",
         "HOROVOD_DATA_EMBEDDED": "--readers-per-node 1 --embedded"}  # fmt: skip
# Options of horovodrun that are impossible in a job with a fixed number of MPI processes.
_NOT_OURS = {
    "use_gloo": "--gloo", "use_jsrun": "--jsrun", "tcp_flag": "--tcp", "host_discovery_script": "--host-discovery-script",
    "max_num_proc": "--max-np", "slots": "--slots-per-host",
    "elastic_timeout": "--elastic-timeout", "reset_limit": "--reset-limit",
    "cooldown_range": "--blacklist-cooldown-range",
}  # fmt: skip


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parses the command line, without the program's name.

    Raises:
      SystemExit: after --help and --version. With status 2 if the options are invalid.
      LaunchError: an option of horovodrun has no meaning here, or Horovod's code refuses a value.
    """
    args = _parse_with_horovod(list(argv))
    if args is None:
        parser = argparse.ArgumentParser()
        _add_options(parser)
        args = parser.parse_args(argv)
    for name, option in _NOT_OURS.items():
        if getattr(args, name, None):
            what = f"{option} is an option of horovodrun's that horovod-data-run does not have"
            raise LaunchError(f"{what}: it starts a fixed number of processes, by mpirun", "Leave it out")
    if args.command[:1] == ["--"]:
        del args.command[0]
    return args


def request_of(args: argparse.Namespace, environ: Mapping[str, str]) -> Request:
    """The request in the options. Without an option for readers, the HOROVOD_DATA_* variables count, as in init()."""
    readers, per_node, embedded = args.readers, args.readers_per_node or None, args.embedded
    try:
        if readers is None and per_node is None:
            told = read_roles(environ)
            readers, per_node = told.readers or None, told.readers_per_node
            embedded = embedded or told.embedded
        elif per_node == 1 and not embedded:
            embedded = read_roles(environ, readers_per_node=per_node).embedded
    except ValueError as error:
        raise LaunchError(str(error)) from error
    reader_hosts = () if args.reader_hosts is None else parse_names(args.reader_hosts, "--reader-hosts")
    return Request(args.np, readers, per_node, embedded, reader_hosts)


def extras_of(args: argparse.Namespace, environ: Mapping[str, str], exported: Sequence[str]) -> Extras:
    """The words and variables for mpirun without the placement."""
    timeline = _file(args.timeline, "--timeline-filename", "trace.json")
    if timeline is not None:  # then Horovod writes its own timeline to a file beside it
        beside = str(timeline.with_name(f"{timeline.stem}.horovod{timeline.suffix}"))
        args.timeline_filename = args.timeline_filename or beside
    variables = _horovod_environ(args)
    if timeline is not None:
        variables["HOROVOD_DATA_TIMELINE"] = str(timeline)
    for name in "audit", "report", "progress":
        if getattr(args, name):
            variables[f"HOROVOD_DATA_{name.upper()}"] = "1"
    interfaces = [name for text in args.network_interfaces or () for name in text.split(",") if name]
    if interfaces:
        variables["NCCL_SOCKET_IFNAME"] = ",".join(interfaces)
    for text in args.x or ():
        name, given, value = text.partition("=")
        if name in ROLES:
            what = f"-x {text} would make init() expect readers, but starts no process for them"
            raise LaunchError(what, f"Use {ROLES[name]}, which does both")
        if not given and name not in environ:
            raise LaunchError(f"-x {name}: there is no such environment variable", f"Set it, or write -x {name}=VALUE")
        variables[name] = value if given else environ[name]
    if (certificate := _file(args.certificate, "--certificate", "certificate.json")) is not None:
        variables |= {"HOROVOD_DATA_VERIFY": "1", "HOROVOD_DATA_CERTIFICATE": str(certificate)}
    return Extras(
        environ=variables,
        exported=[name for name in exported if name not in variables],
        mpi_args=_words(args.mpi_args, "--mpi-args", "--mca btl_tcp_links 2"),
        binding_args=_words(args.binding_args, "--binding-args", "--bind-to core"),
        interfaces=interfaces,
        ssh_port=args.ssh_port or 0,
        ssh_identity_file=args.ssh_identity_file or "",
        output_filename=args.output_filename or "",
        tag_output=args.tag_output,
        timestamps=args.prefix_output_with_timestamp,
        root=os.geteuid() == 0,
    )


def _file(text: Optional[str], option: str, example: str) -> Optional[Path]:
    """The whole path of a file that an option names, or None."""
    if text is not None and not Path(text).name:
        raise LaunchError(f"{option} {text!r} names no file", f"Name one, as in {option} {example}")
    try:
        return None if text is None else Path(text).absolute()
    except OSError as error:
        to_do = "Start it in a folder that exists, or name the file with its whole path"
        raise LaunchError(f"{option} {text!r} can't be found from here: {error.strerror}", to_do) from None


def environ_of(args: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the ranks: the launcher's own, with the values of -x."""
    return {**environ, **dict(text.split("=", 1) for text in args.x or () if "=" in text)}


def policy_of(
    args: argparse.Namespace, environ: Mapping[str, str], np: int, readers_per_node: Optional[int]
) -> Optional[Policy]:
    """The limits of the restarts. None: the launcher becomes mpirun.

    `environ`: that of the ranks. `np`: the trainers of a full job.
    """
    if args.state is None and environ.get(STATE, "").strip() and args.max_restarts is not None:
        args.state = environ[STATE]
    if args.state is None:
        for option, given in (("--max-restarts", args.max_restarts), ("--min-np", args.min_num_proc)):
            if given is not None:
                to_do = "Add --state DIR, a directory that all hosts share"
                raise LaunchError(f"{option} {given}: a job can only go on from the state that it saves", to_do)
        return None
    if not args.state.strip():
        raise LaunchError(f"--state {args.state!r} names no directory", "Name one, as in --state /shared/my-job")
    numbers = {"--max-restarts": (args.max_restarts, 0, 0), "--restart-window": (args.restart_window, 1, 3600),
               "--min-np": (args.min_num_proc, 1, np), "--grace-seconds": (args.grace_seconds, 1, 60)}  # fmt: skip
    for option, (given, least, _) in numbers.items():
        if given is not None and given < least:
            raise LaunchError(f"{option} {given}: give {least} or more")
    restarts, window, min_np, args.grace_seconds = (
        default if given is None else given for given, _, default in numbers.values()
    )
    if min_np > np:
        raise LaunchError(f"--min-np {min_np} is more than the {np} processes that train", f"Give {np} or less")
    if min_np < np and readers_per_node:
        to_do = "Leave out --min-np, or use --readers R"
        what = "--min-np: with --readers-per-node, fewer hosts have fewer readers, which can't restore the state"
        raise LaunchError(what, to_do)
    text = environ.get(LEAVE_STATUS, "").strip() or "75"
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 125):
        raise LaunchError(f"{LEAVE_STATUS}={text} is no exit status", "Set it to a number from 1 to 125")
    return Policy(np, min_np, restarts, float(window), int(text))


def mpirun_of(args: argparse.Namespace) -> list[str]:
    """The words that start mpirun."""
    words = ["mpirun"] if args.mpirun is None else _words(args.mpirun, "--mpirun", "/path/to/mpirun")
    if not words:
        raise LaunchError(f"--mpirun {args.mpirun!r} names no command", "Name one, as in --mpirun /path/to/mpirun")
    return words


def _words(text: Optional[str], option: str, example: str) -> list[str]:
    try:
        return shlex.split(text or "")
    except ValueError as error:
        what = f"{option}={text!r} can't be taken apart into words ({error})"
        raise LaunchError(what, f"Quote it as for a shell, as in {option}='{example}'") from error


# Each option with a value: its name, other names, the placeholder of the value, and the help text.
_VALUES = (
    ("--num-proc", ("-np", "-n"), "N", "processes that train; default: as many as the batch system gave slots"),
    ("--readers", (), "R", "additional processes that only read; default 0: rank 0 reads and trains"),
    ("--readers-per-node", (), "1", "one reader on each host: an additional process, except with --embedded"),
    ("--reader-hosts", (), "HOST,...", "where the --readers run; default: evenly on the hosts that train"),
    ("--hosts", ("-H",), "HOST:SLOTS,...", "hosts, and how many processes may train on each"),
    ("--hostfile", ("-hostfile",), "FILE", "lines `host slots=4`, `host:4`, or `host` for each slot"),
    ("-x", (), "NAME[=VALUE]", "an environment variable for all processes; may be repeated"),
    ("--mpi-args", (), "'ARGS'", "more arguments for mpirun, as in --mpi-args='--mca btl_tcp_links 2'"),
    ("--binding-args", (), "'ARGS'", "instead of `--bind-to none --map-by slot:OVERSUBSCRIBE` (Open MPI)"),
    ("--network-interfaces", ("--network-interface",), "NAME,...", "the network interfaces to use; may be repeated"),
    ("--ssh-port", ("-p",), "PORT", "the port of ssh on all other hosts"),
    ("--ssh-identity-file", ("-i",), "FILE", "the private key for ssh to other hosts"),
    ("--state", (), "DIR", "save and restore the job's state in this directory, which all hosts share"),
    ("--max-restarts", (), "N", "start the job again after a lost process or host, N times within --restart-window"),
    ("--restart-window", (), "SECONDS", "of --max-restarts; default: 3600"),
    ("--min-num-proc", ("--min-np",), "N", "the fewest processes that train after a restart; default: -np"),
    ("--grace-seconds", (), "SECONDS", "after SIGTERM or SIGUSR1, the time for the ranks to save; default: 60"),
    ("--output-filename", (), "FOLDER", "also write the output of each rank to files in this folder"),
    ("--mpirun", (), "COMMAND", "default: the mpirun in PATH"),
    ("--timeline-filename", (), "FILE", "write who did what when, for Perfetto, and Horovod's own file beside it"),
    ("--certificate", (), "FILE", "verify every batch, and write the certificate of each epoch to this file"),
)
_SWITCHES = (
    ("--embedded", "with --readers-per-node 1: the first process of each host reads and trains"),
    ("--audit", "report which rows go into Keras' Model.fit on which ranks, after each epoch"),
    ("--tag-output", "begin each line of output with its rank"),
    ("--prefix-output-with-timestamp", "begin each line of output with the time (Open MPI)"),
    ("--report", "at the end, say where the time went and who waited for whom"),
    ("--progress", "while the job runs, show how far the epochs are"),
    ("--dry-run", "print the command line, and start nothing"),
    ("--verbose", "print where the processes run, and the command line"),
)
_NUMBERS = (
    "--num-proc", "--readers", "--readers-per-node", "--ssh-port", "--max-restarts", "--restart-window", "--min-num-proc",
    "--grace-seconds",
)  # fmt: skip
_REPEATED = ("-x", "--network-interfaces")
# Attributes that aren't named like the option. Horovod's code reads `timeline_filename` as its own timeline.
_ATTRIBUTES = {"--num-proc": "np", "--timeline-filename": "timeline"}


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.conflict_handler = "resolve"  # our options replace Horovod's options of the same name
    parser.prog, parser.usage = "horovod-data-run", _USAGE
    parser.description = (
        "Starts a job of N processes that train, and of readers that only read, under Open MPI or MPICH. Where to run is taken "
        "from -H or --hostfile, else from Slurm, PBS, LSF or Kubernetes' MPI operator, else it is this machine."
    )
    group = parser.add_argument_group("horovod-data-run")
    group.add_argument("--version", "-v", action="version", version=f"horovod_data {__version__}")
    for name, others, metavar, text in _VALUES:
        more: dict[str, Any] = {"type": int} if name in _NUMBERS else {}
        more |= {"action": "append"} if name in _REPEATED else {}
        dest = _ATTRIBUTES.get(name, name.strip("-").replace("-", "_"))
        group.add_argument(*others, name, dest=dest, metavar=metavar, help=text, **more)
    for name, text in _SWITCHES:
        others = ("-prefix-timestamp",) if name == "--prefix-output-with-timestamp" else ()
        group.add_argument(*others, name, action="store_true", help=text)
    parser.set_defaults(timeline_filename=None)  # Horovod's own option. Only its configuration file can set it
    # Last, because it takes all words from the first word that is not an option.
    text = "the program and its arguments: python train.py, for example"
    group.add_argument("command", nargs=argparse.REMAINDER, help=text)


def _parse_with_horovod(argv: list[str]) -> Optional[argparse.Namespace]:
    """The command line, parsed with Horovod's options and ours, and checked by Horovod's code. None if Horovod isn't
    installed.

    Horovod makes its parser and parses sys.argv in one function. So parse_args() is replaced while that function runs.
    """
    try:
        from horovod.runner import launch
    except Exception:  # not installed, or its launcher lacks a module
        return None
    parse_args: Callable[..., Any] = argparse.ArgumentParser.parse_args
    parsed: list[argparse.Namespace] = []

    def with_ours(parser: argparse.ArgumentParser, *_: Any) -> Any:
        argparse.ArgumentParser.parse_args = parse_args  # type: ignore[method-assign]
        for action in [action for action in parser._actions if action.dest == "command"]:
            parser._remove_action(action)
        _add_options(parser)
        parsed.append(parser.parse_args(argv))
        return parsed[0]

    argparse.ArgumentParser.parse_args = with_ours  # type: ignore[method-assign, assignment]
    try:
        args: argparse.Namespace = launch.parse_args()
        return args
    except Exception as error:  # it may be of any class, for example for a wrong configuration file
        if not parsed:
            raise
        path = parsed[0].config_file
        what = f"Horovod refuses its options ({type(error).__name__}: {' '.join(str(error).split())})"
        raise LaunchError(what, f"Fix them, or what --config-file {path} says" if path else "Fix them") from error
    finally:
        argparse.ArgumentParser.parse_args = parse_args  # type: ignore[method-assign]


def _horovod_environ(args: argparse.Namespace) -> dict[str, str]:
    """The HOROVOD_* variables for Horovod's own options."""
    if not hasattr(args, "fusion_threshold_mb"):  # parsed without Horovod
        return {}
    from horovod.runner.common.util import config_parser

    made: dict[str, str] = config_parser.set_env_from_args({}, args)
    return made
