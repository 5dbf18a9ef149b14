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
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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


def options(about: str | None, seconds: float = 0.5, limit: float = 285) -> argparse.ArgumentParser:
    """The options of every benchmark. `about` is the benchmark's docstring."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=seconds, help="about, per round and contestant")
    parser.add_argument(
        "--limit", type=float, default=limit, help="seconds for each job; what it has not measured then is missing"
    )
    parser.add_argument("--quick", action="store_true", help="small and short: whether every part runs, no measurement")
    parser.add_argument("--mpirun", default=shutil.which("mpirun") or "mpirun")
    parser.add_argument("--out", type=Path, default=HERE.parent / "build" / "bench")
    parser.add_argument("--docs", action="store_true", help="publish the results in docs/")
    return parser


def parsed(parser: argparse.ArgumentParser, **quick: Any) -> argparse.Namespace:
    """Parses the command line. `quick`: the defaults with --quick."""
    if "--quick" in sys.argv[1:]:
        parser.set_defaults(**{"rounds": 1, "seconds": 0.02, **quick})
    arguments = parser.parse_args()
    if arguments.quick and arguments.docs:
        parser.error("--quick measures nothing that --docs could publish: leave one out")
    _measure_this_checkout()
    return arguments


def _measure_this_checkout() -> None:
    """Builds the installed library again if sources changed, in an environment that `make` keeps.

    The ranks import the installed library, unless PYTHONPATH names another.
    """
    package = importlib.util.find_spec("horovod_data")
    installed = package is None or "site-packages" in (package.origin or "")
    if installed and (Path(sys.prefix) / ".stamps" / "op").exists():
        subprocess.run([HERE.parent / "scripts" / "setup.sh", "op"], check=True, env={**os.environ, "VENV": sys.prefix})


def run(
    module: str,
    ranks: int,
    arguments: argparse.Namespace,
    given: Mapping[str, Any],
    *,
    env: Mapping[str, str] | None = None,
    mpirun: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """Runs `module` of ranks/ in one job. A job that hangs is ended. Its results until then count."""
    with tempfile.TemporaryDirectory(prefix="hvdata-bench-") as directory:
        out = Path(directory) / "results.json"
        settings = {
            "rounds": arguments.rounds,
            "seconds": arguments.seconds,
            "out": str(out),
            "directory": directory,
            **given,
        }
        program = [sys.executable, "-m", f"ranks.{module}", json.dumps(settings)]
        command = [*(mpirun or shlex.split(arguments.mpirun)), "-np", str(ranks), *program]
        run_job(command, {**ENVIRONMENT, **os.environ, **(env or {})}, arguments.limit, f"{module}, {ranks} ranks")
        return json.loads(out.read_text()) if out.exists() else []


def run_job(command: Sequence[str], env: Mapping[str, str], limit: float, what: str) -> bool:
    """Runs a job for at most `limit` seconds. Logs how it ended. Returns whether its status was 0."""
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
    return status == 0


def _end(job: subprocess.Popen[bytes]) -> None:
    """Asks the launcher to end its ranks. If it does not end in time, kills it."""
    if job.poll() is None:
        job.terminate()
        try:
            job.wait(GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()


def described(only: Sequence[str]) -> dict[str, tuple[str, float]]:
    """For each contestant: NAME, ABOUT and LARGEST.

    A separate process reads them, because importing them starts MPI.
    """
    script = (
        "import json, rivals; print(json.dumps({r.__name__.rsplit('.', 1)[1]: (r.NAME, (r.ABOUT, getattr(r, 'LARGEST', 1e300))) "
        "for r in rivals.ALL}))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        cwd=HERE,
        env={**ENVIRONMENT, **os.environ},
        text=True,
        stdout=subprocess.PIPE,
        check=True,
    )
    known: dict[str, tuple[str, tuple[str, float]]] = json.loads(ran.stdout.splitlines()[-1])
    unknown = set(only) - set(known)
    if unknown:
        sys.exit(f"--only: not known: {', '.join(sorted(unknown))}. There are: {', '.join(known)}")
    return dict(known[key] for key in known if not only or key in only)
