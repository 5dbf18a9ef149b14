# SPDX-License-Identifier: Apache-2.0
"""Starts the MPI jobs of the benchmarks. Has the options that all benchmarks share.

A job is a module of ranks/ that every rank runs. It gets its settings as JSON, and writes its results as JSON.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import machine

HERE = Path(__file__).resolve().parent
GRACE = 10  # seconds that a launcher may take to end its ranks

ENVIRONMENT = {
    # Open MPI: allows root in a container and more ranks than cores. Ranks that wait give their core away.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # the same variable for Open MPI 5
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "CUDA_VISIBLE_DEVICES": "",
}
# Binds each process to a core of its own, with Open MPI and with MPICH.
BINDING = {"OMPI_MCA_hwloc_base_binding_policy": "core", "HYDRA_BINDING": "core"}

FAILED: list[str] = []  # the jobs and contestants that have failed


def options(about: str | None, quick: Mapping[str, Any], **settings: Any) -> argparse.ArgumentParser:
    """A parser with an option for each setting. `settings` has the defaults, and `quick` those with --quick.

    All benchmarks have `seconds` (of a round and contestant, about) and `limit` (seconds of a job).
    """
    settings = {"rounds": 7, "seconds": 0.5, "limit": 285.0, **settings}
    if "--quick" in sys.argv[1:]:
        settings |= {"rounds": 1, "seconds": 0.02, **quick}
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in settings.items():
        items = value if isinstance(value, list) else [value]
        several = "*" if value is items else None
        option = "--" + name.replace("_", "-")
        parser.add_argument(
            option, type=type(items[0]) if items else str, nargs=several, default=value, help=f"{value}"
        )
    parser.add_argument("--quick", action="store_true", help="small and short: whether every part runs, no measurement")
    parser.add_argument("--mpirun", default="mpirun")
    parser.set_defaults(settings=list(settings), machine=machine.describe())
    return parser


def parsed(about: str | None, quick: Mapping[str, Any], **settings: Any) -> argparse.Namespace:
    """The command line of a benchmark that writes a page. The arguments are those of options()."""
    parser = options(about, quick, **settings)
    parser.add_argument("--out", type=Path, default=HERE.parent / "build" / "bench")
    parser.add_argument("--docs", action="store_true", help="publish the results in docs/")
    arguments = parser.parse_args()
    if arguments.quick and arguments.docs:
        parser.error("--quick measures nothing that --docs could publish: leave one out")
    # The ranks import the installed library, unless PYTHONPATH names another. In an environment that `make` keeps, it
    # is built again if sources changed.
    package = importlib.util.find_spec("horovod_data")
    installed = package is None or "site-packages" in (package.origin or "")
    if installed and (Path(sys.prefix) / ".stamps" / "op").exists():
        subprocess.run([HERE.parent / "scripts" / "setup.sh", "op"], check=True, env={**os.environ, "VENV": sys.prefix})
    return arguments


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in arguments.settings}


def run(
    module: str,
    ranks: int,
    arguments: argparse.Namespace,
    given: Mapping[str, Any] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    mpirun: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """Runs `module` of ranks/ in one job, with the settings in `arguments` and in `given`.

    A job that hangs is ended. The results that it has written count.
    """
    with tempfile.TemporaryDirectory(prefix="hvdata-bench-") as directory:
        out = Path(directory) / "results.json"
        settings = {**settings_of(arguments), "out": str(out), "directory": directory, **(given or {})}
        program = [sys.executable, "-m", f"ranks.{module}", json.dumps(settings)]
        command = [*(mpirun or shlex.split(arguments.mpirun)), "-np", str(ranks), *program]
        run_job(command, {**ENVIRONMENT, **os.environ, **(env or {})}, arguments.limit, f"{module}, {ranks} ranks")
        results = json.loads(out.read_text()) if out.exists() else []
        FAILED.extend(result["name"] for result in results if result.get("error"))
        return results


def run_job(command: Sequence[str], env: Mapping[str, str], limit: float, what: str) -> None:
    """Runs a job for at most `limit` seconds. Logs how it ended."""
    began = time.monotonic()
    job = subprocess.Popen(command, cwd=HERE, env=env, stdin=subprocess.DEVNULL, start_new_session=True)
    status: object
    try:
        status = job.wait(limit)
    except subprocess.TimeoutExpired:
        status = f"none within {limit:.0f} s"
    finally:
        _end(job)
    how = "" if status == 0 else f", ended with status {status}"
    print(f"[bench] {what}: {time.monotonic() - began:.0f} s{how}", file=sys.stderr)
    if status != 0:
        FAILED.append(what)


def _end(job: subprocess.Popen[bytes]) -> None:
    """Asks the launcher to end its ranks. If it does not end in time, kills it."""
    if job.poll() is None:
        job.terminate()
        try:
            job.wait(GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
