# SPDX-License-Identifier: Apache-2.0
"""Checks TensorFlow, our core, MPI and Horovod: whether they exist, and whether they fit together."""

from __future__ import annotations

import concurrent.futures
import os
import sys
from typing import Mapping, Optional

from ..job import launch_checks
from ..native.bindings import ThreadLevel
from . import children, environment
from .children import Output
from .findings import Finding, error, ok, sentences, warning

_REBUILD_HOROVOD = (
    "HOROVOD_WITH_{}=1 HOROVOD_WITH_MPI=1 pip install --no-cache-dir --force-reinstall --no-build-isolation horovod"
)
_LIMIT = 120.0  # seconds; importing TensorFlow from a slow file system takes long


def look(environ: Mapping[str, str]) -> dict[str, Output]:
    """Runs the checks of `inside` at the same time, each in a process."""
    env = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", **environment.without_launcher(environ)}

    def output(what: str) -> Output:
        return children.run([sys.executable, "-m", f"{__package__}.inside", what], _LIMIT, env)

    looks = ["core", "tensorflow", "horovod"]
    with concurrent.futures.ThreadPoolExecutor(len(looks)) as pool:
        return dict(zip(looks, pool.map(output, looks)))


def mpi_of(core: Output) -> Optional[str]:
    """mpi_name() of the MPI that the core was built with, or None."""
    return launch_checks.mpi_name(core.get("core")["mpi"]) if core.get("core") else None


def _why(output: Output) -> str:
    """Why a package can't be imported."""
    return str(output.get("error") or f"it {output.ending()}")


def check(looks: Mapping[str, Output], only_srun: bool = False) -> list[Finding]:
    """The findings about all results of look(). `only_srun`: Slurm's srun is the only launcher."""
    core = looks["core"]
    return [
        ok("software.Python", f"{'.'.join(map(str, sys.version_info[:3]))}, {sys.executable}"),
        tensorflow(looks["tensorflow"], core),
        ours(core),
        horovod(looks["horovod"], looks["tensorflow"], core),
        *mpi(core, only_srun),
        *one_mpi(core, looks["horovod"]),
    ]


def tensorflow(output: Output, core: Output) -> Finding:
    """TensorFlow is optional. If it is installed, it must work, and our ops must fit it."""
    name, version, built = "software.TensorFlow", output.get("version"), core.get("core")
    if output.get("installed") is False:
        return ok(name, "not installed: loader() works without it; distribute_dataset() needs it")
    if not output.get("path"):
        to_do = "Reinstall TensorFlow; an illegal instruction means that its build needs a newer processor"
        return error(name, f"can't be imported: {_why(output)}", to_do)
    value = f"{version}, C++11 ABI {output.get('abi')}, {output.get('path')}"
    if built and output.get("ops_error"):
        what, to_do = sentences(str(output.get("ops_error")))
        if built["tensorflow"] is None:
            return warning(
                name, f"{value}; {what}", f"distribute_dataset() needs this library, and loader() does not. {to_do}"
            )
        return error(name, f"{value}; {what}", to_do)
    if built and output.ended:
        return error(
            name, f"{value}; loading our ops {output.ending()}", "Rebuild horovod_data against this TensorFlow"
        )
    return ok(name, value)


def ours(core: Output) -> Finding:
    name, built = "software.horovod_data", core.get("core")
    if core.get("core_error"):
        what, to_do = sentences(str(core.get("core_error")))
        return error(name, what, to_do or "Rebuild horovod_data")
    if not built:
        return error(name, f"loading its C++ core {core.ending()}", "Rebuild it with this MPI")
    of = f"for TensorFlow {built['tensorflow']}" if built["tensorflow"] else "without TensorFlow"
    return ok(name, f"{core.get('core_path')}, built {of}, C++11 ABI {built['cxx11_abi']}, and {mpi_of(core)}")


def mpi(core: Output, only_srun: bool = False) -> list[Finding]:
    if not core.get("core"):
        return []
    paths = ", ".join(core.get("libraries") or []) or "path not known"
    found = [ok("MPI.library", f"{mpi_of(core)}, {paths}")]
    if level := core.get("thread_level"):
        try:
            launch_checks.check_thread_level(ThreadLevel[level], True, str(mpi_of(core)))
            found.append(ok("MPI.thread level", f"MPI_THREAD_{level}"))
        except RuntimeError as refused:
            found.append(error("MPI.thread level", *sentences(str(refused))))
    elif core.ended:
        value = f"MPI_Init_thread in a single process {core.ending()}"
        if only_srun:
            why = "A plain `python train.py` can't start MPI here. Ranks that srun starts may start MPI without its own programs"
            found.append(warning("MPI.start", value, f"{why} (Open MPI: orted): start the doctor by srun"))
        else:
            why = "MPI doesn't start here at all: its own programs must be in PATH (Open MPI: orted)"
            found.append(error("MPI.start", value, f"{why}; try `mpirun -np 1 hostname`"))
    return found


def horovod(output: Output, tensorflow: Output, core: Output) -> Finding:
    """Horovod is optional. If it is installed, it must work and support MPI."""
    name, version, built, framework = "software.Horovod", *map(output.get, ("version", "built", "framework"))
    if output.get("installed") is False:
        return ok(name, "not installed: horovod_data works without it")
    if not version:
        return error(name, f"can't be imported: {_why(output)}", "Reinstall Horovod")
    if not framework:
        return ok(name, f"{version}, not tried, because neither TensorFlow nor PyTorch is installed")
    if framework == "tensorflow" and not tensorflow.get("path"):
        return warning(name, f"{version}, can't be tried without TensorFlow", "Fix TensorFlow first")
    of = {"tensorflow": "TensorFlow", "torch": "PyTorch"}[framework]
    rebuild = _REBUILD_HOROVOD.format(of.upper())
    if not built:
        value = f"{version}, but horovod.{framework} can't be imported: {_why(output)}"
        to_do = f"rebuild it for this {of}: `{rebuild}`"
        if framework == "torch":
            return warning(name, value, f"If your program imports horovod.torch, {to_do}")
        return error(name, value, f"init() would go on without Horovod: {to_do}")
    controllers = ", ".join(what for what, there in built.items() if there)
    value = f"{version}, built with {controllers or 'no controller at all'}"
    if built["mpi"]:
        return ok(name, value)
    needed = f"It has no MPI, but horovod_data was built with {mpi_of(core) or 'one'}"
    return error(name, value, f"{needed}: `{rebuild}`")


def one_mpi(core: Output, horovod: Output) -> list[Finding]:
    """Says whether the core and Horovod use the same MPI library. Two libraries in one process see two jobs."""
    name = "MPI.one library"
    ours, theirs = (sorted(map(os.path.realpath, one.get("libraries") or [])) for one in (core, horovod))
    if not ours or not theirs:
        return []
    if ours == theirs:
        return [ok(name, "horovod_data and Horovod use the same")]
    value = f"horovod_data: {', '.join(ours)}; Horovod: {', '.join(theirs)}"
    return [error(name, value, "init() fails in a program that uses Horovod. Build both with the same MPI")]
