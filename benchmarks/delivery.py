# SPDX-License-Identifier: Apache-2.0
"""Delivered batches per second: horovod_data beside the other ways to feed N ranks from one pipeline.

    python benchmarks/delivery.py                    # 2 and 4 ranks; 4 KiB, 1 MiB, 16 MiB; about 6 minutes
    python benchmarks/delivery.py --quick            # the same in a minute, for a look
    python benchmarks/delivery.py --docs             # and rewrite docs/benchmark.md

Starts its own MPI jobs, one per number of ranks; in each, all contestants take turns. Needs Horovod and mpi4py. Writes
delivery.json, delivery.md and, with matplotlib, delivery.png to --out. Status 1: something failed or is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machine
import report

HERE = Path(__file__).resolve().parent

# Horovod looks for work once in this many milliseconds. Its default of 1 is made for allreduces that come in crowds; an
# operation that is waited for, as those here are, is several times faster with 0.1. That keeps Horovod's thread busy on
# every rank also while the others are measured, us included: the choice favours Horovod's operations.
CYCLE_TIME = 0.1

ENVIRONMENT = {
    # Open MPI: root in a container, more ranks than cores, ranks that give the core away while they wait.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # Open MPI 5's name for it
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "CUDA_VISIBLE_DEVICES": "",
    "HOROVOD_CYCLE_TIME": f"{CYCLE_TIME:g}",
}


def launch(ranks: int, arguments: argparse.Namespace) -> list[dict]:
    """Runs one job. One that hangs is ended; what it had measured until then counts."""
    with tempfile.TemporaryDirectory(prefix="hvdata-bench-") as directory:
        out = Path(directory) / "results.json"
        command = [*shlex.split(arguments.mpirun), "-np", str(ranks), sys.executable, str(HERE / "ranks.py"),
                   "--out", str(out), "--rounds", str(arguments.rounds), "--seconds", str(arguments.seconds),
                   "--bytes", *map(str, arguments.bytes), "--only", *arguments.only]
        job = subprocess.Popen(command, env={**ENVIRONMENT, **os.environ}, stdin=subprocess.DEVNULL,
                               start_new_session=True)
        try:
            status = job.wait(arguments.limit)
        except subprocess.TimeoutExpired:
            status = f"none within {arguments.limit:.0f} s"
        finally:
            end(job)
        if status != 0:
            print(f"[bench] the job of {ranks} ranks ended with status {status}", file=sys.stderr)
        return json.loads(out.read_text()) if out.exists() else []


def end(job: subprocess.Popen) -> None:
    """The launcher ends its ranks when it is asked to; if it no longer can, so be it."""
    if job.poll() is None:
        job.terminate()
        try:
            job.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--bytes", type=int, nargs="+", default=[4 << 10, 1 << 20, 16 << 20], help="per rank's batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="about, per round and contestant")
    parser.add_argument("--limit", type=float, default=285,
                        help="seconds for each job; what it has not measured then is missing")
    parser.add_argument("--quick", action="store_true", help="3 rounds of 0.15 s: a look, not a measurement")
    parser.add_argument("--only", nargs="*", default=[], help="files in benchmarks/rivals, without .py")
    parser.add_argument("--mpirun", default=shutil.which("mpirun") or "mpirun")
    parser.add_argument("--out", type=Path, default=HERE.parent / "build" / "bench")
    parser.add_argument("--docs", action="store_true", help="rewrite docs/benchmark.md, its plot and its JSON")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.seconds = 3, 0.15

    about = described(arguments.only)
    measured = machine.describe()
    results: list[dict] = []
    for ranks in arguments.ranks:
        began = time.monotonic()
        results += launch(ranks, arguments)
        print(f"[bench] {ranks} ranks took {time.monotonic() - began:.0f} s", file=sys.stderr)
    measured["load_after"] = os.getloadavg()[0]
    told = {"machine": measured, "rounds": arguments.rounds, "seconds": arguments.seconds,
            "cycle_time": float(os.environ.get("HOROVOD_CYCLE_TIME", CYCLE_TIME)), "results": results}
    text = report.markdown(told, about)

    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "delivery.json").write_text(json.dumps(told, indent=1) + "\n")
    (arguments.out / "delivery.md").write_text(text)
    plotted = report.plot(told, arguments.out / "delivery.png")
    if arguments.docs:
        publish(arguments.out, text, plotted)
    print(text)
    expected = len(about) * len(arguments.ranks) * len(arguments.bytes)
    return 0 if len(results) == expected and not any(r["error"] for r in results) else 1


def publish(out: Path, text: str, plotted: bool) -> None:
    """Into docs/, with a link from where the documentation explains how to read it."""
    docs = HERE.parent / "docs"
    shutil.copy(out / "delivery.json", docs / "benchmark.json")
    picture = ""
    if plotted:
        shutil.copy(out / "delivery.png", docs / "benchmark.png")
        picture = "\n![Steps per second of all ways of delivery](benchmark.png)\n"
    (docs / "benchmark.md").write_text(
        "# Benchmark\n\nWritten by `python benchmarks/delivery.py --docs`. How to read it: "
        f"[Performance](performance.md). All rounds: [benchmark.json](benchmark.json).\n\n{text}{picture}")
    performance = docs / "performance.md"
    marker, link = "<!-- numbers -->", "## Numbers\n\n[The last published run](benchmark.md)."
    performance.write_text(performance.read_text().replace(marker, link))


def described(only: list[str]) -> dict[str, str]:
    """NAME and ABOUT of the contestants, from a process of its own: importing them starts MPI."""
    script = ("import json, rivals; print(json.dumps({r.__name__.rsplit('.', 1)[1]: (r.NAME, r.ABOUT) "
              "for r in rivals.ALL}))")
    ran = subprocess.run([sys.executable, "-c", script], cwd=HERE, env={**ENVIRONMENT, **os.environ}, text=True,
                         stdout=subprocess.PIPE, check=True)
    known: dict[str, tuple[str, str]] = json.loads(ran.stdout.splitlines()[-1])
    unknown = set(only) - set(known)
    if unknown:
        sys.exit(f"--only: not known: {', '.join(sorted(unknown))}. There are: {', '.join(known)}")
    return dict(known[key] for key in known if not only or key in only)


if __name__ == "__main__":
    sys.exit(main())
