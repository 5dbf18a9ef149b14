# SPDX-License-Identifier: Apache-2.0
"""Checks TensorFlow, our core, MPI, Horovod and mpi4py: whether they exist, and whether they fit together."""

from __future__ import annotations

import concurrent.futures
import os
import re
import sys
from typing import Mapping, Optional

from ..job import launch_checks, unaveraged
from ..native.bindings import ThreadLevel
from . import children, environment
from .children import Told
from .findings import Finding, error, ok, sentences, warning

_REBUILD_HOROVOD = (
    "HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_MPI=1 pip install --no-cache-dir --force-reinstall "
    "--no-build-isolation horovod"
)
_LIMIT = 120.0  # seconds; importing TensorFlow from a slow file system takes long


def look(environ: Mapping[str, str], core: Optional[Told] = None) -> dict[str, Told]:
    """Runs the checks of `inside` at the same time, each in a process. `core`: the result for "core", if it is known."""
    env = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", **environment.without_launcher(environ)}

    def told(what: str) -> Told:
        return children.run([sys.executable, "-m", f"{__package__}.inside", what], _LIMIT, env)

    looks = ["horovod", "mpi4py"] if core else ["core", "horovod", "mpi4py"]
    with concurrent.futures.ThreadPoolExecutor(len(looks)) as pool:
        return {**({"core": core} if core else {}), **dict(zip(looks, pool.map(told, looks)))}


def mpi_of(core: Told) -> Optional[str]:
    """mpi_name() of the MPI that the core was built with, or None."""
    return launch_checks.mpi_name(core.get("mpi_text") or core.get("core")["mpi"]) if core.get("core") else None


def check(looks: Mapping[str, Told], only_srun: bool = False) -> list[Finding]:
    """The findings about all results of look(). `only_srun`: Slurm's srun is the only launcher."""
    core = looks["core"]
    return [
        ok("software.Python", f"{'.'.join(map(str, sys.version_info[:3]))}, {sys.executable}"),
        tensorflow(core),
        ours(core),
        horovod(looks["horovod"], core),
        mpi4py(looks["mpi4py"]),
        *mpi(core, only_srun),
        *one_mpi(looks),
    ]


def tensorflow(core: Told) -> Finding:
    name = "software.TensorFlow"
    if why := core.get("tensorflow_error"):
        to_do = "Install TensorFlow in this Python, then horovod_data against it"
        return error(name, f"can't be imported: {why}", to_do)
    if not core.get("tensorflow"):
        to_do = "Reinstall TensorFlow; an illegal instruction means that its build needs a newer processor"
        return error(name, f"importing it {core.end()}", to_do)
    version, abi, path = (core.get(what) for what in ("tensorflow", "tensorflow_abi", "tensorflow_path"))
    return ok(name, f"{version}, C++11 ABI {abi}, {path}")


def ours(core: Told) -> Finding:
    name, built = "software.horovod_data", core.get("core")
    if core.get("core_error"):
        what, to_do = sentences(str(core.get("core_error")))
        return error(name, what, to_do or "Rebuild horovod_data")
    if not core.get("tensorflow"):
        return error(name, "its C++ core can't be tried without TensorFlow", "Fix TensorFlow first")
    if not built:
        to_do = "Rebuild it against this TensorFlow and this MPI"
        return error(name, f"loading its C++ core {core.end()}", to_do)
    abi = built["cxx11_abi"]
    value = f"{core.get('core_path')}, built for TensorFlow {built['tensorflow']}, C++11 ABI {abi}, and {mpi_of(core)}"
    if abi != core.get("tensorflow_abi"):
        return error(name, value, "The C++ ABIs differ: rebuild horovod_data against this TensorFlow")
    return ok(name, value)


def mpi(core: Told, only_srun: bool = False) -> list[Finding]:
    if not core.get("core"):
        return []
    text = str(core.get("mpi_text") or core.get("core")["mpi"])
    device = re.search(r"Device:\s*(\S+)", text)
    paths = ", ".join(core.get("libraries") or []) or "path not known"
    told = [ok("MPI.library", f"{mpi_of(core)}{f' ({device[1]})' if device else ''}, {paths}")]
    if level := core.get("thread_level"):
        try:
            launch_checks.check_thread_level(ThreadLevel[level], True, str(mpi_of(core)))
            told.append(ok("MPI.thread level", f"MPI_THREAD_{level}"))
        except RuntimeError as refused:
            told.append(error("MPI.thread level", *sentences(str(refused))))
    elif core.ended:
        value = f"MPI_Init_thread in a single process {core.end()}"
        if only_srun:
            why = "A plain `python train.py` can't start MPI here. Ranks that srun starts may do so without MPI's own programs"
            told.append(warning("MPI.start", value, f"{why} (Open MPI: orted): start the doctor by srun"))
        else:
            why = "MPI doesn't start here at all: its own programs must be in PATH (Open MPI: orted)"
            told.append(error("MPI.start", value, f"{why}; try `mpirun -np 1 hostname`"))
    return told


def horovod(told: Told, core: Told) -> Finding:
    """Horovod is optional. If it is installed, it must work and support MPI."""
    name, version, built = "software.Horovod", told.get("version"), told.get("built")
    if told.get("installed") is False:
        return ok(name, "not installed: horovod_data works without it")
    if told.get("installed") is None:
        return error(name, f"importing it {told.end()}", "Reinstall Horovod")
    if not core.get("tensorflow"):
        return warning(name, f"{version}, can't be tried without TensorFlow", "Fix TensorFlow first")
    if not built:
        value = f"{version}, but horovod.tensorflow can't be imported: {told.get('error') or f'it {told.end()}'}"
        to_do = f"init() would go on without Horovod: rebuild it for this TensorFlow: `{_REBUILD_HOROVOD}`"
        return error(name, value, to_do)
    controllers = ", ".join(what for what, there in built.items() if there)
    value = f"{version}, built with {controllers or 'no controller at all'}"
    if built["mpi"] and told.get("keras"):
        what = f"{value}; its Keras layer is for Keras 2, and this is Keras {told.get('keras')}"
        return warning(name, what, unaveraged.TO_DO)
    if built["mpi"]:
        return ok(name, value)
    needed = f"It has no MPI, but horovod_data was built with {mpi_of(core) or 'one'}"
    return error(name, value, f"{needed}: `{_REBUILD_HOROVOD}`")


def mpi4py(told: Told) -> Finding:
    name = "software.mpi4py"
    if told.get("installed") is False:
        return ok(name, "not installed: only init(comm=...) needs it")
    if told.get("libraries") is None:
        to_do = "Build it with this MPI: `MPICC=mpicc pip install --force-reinstall --no-binary mpi4py mpi4py`"
        why = told.get("error") or f"it {told.end()}"
        return warning(name, f"can't be imported: {why}", f"Only init(comm=...) needs it. {to_do}")
    return ok(name, f"{told.get('version')}, {launch_checks.mpi_name(told.get('mpi'))}")


def one_mpi(looks: Mapping[str, Told]) -> list[Finding]:
    """Says whether the core, Horovod and mpi4py use the same MPI library. Two libraries in one process see two jobs."""
    name = "MPI.one library"
    shown = {"core": "horovod_data", "horovod": "Horovod", "mpi4py": "mpi4py"}
    uses = {shown[what]: sorted(map(os.path.realpath, told.get("libraries") or [])) for what, told in looks.items()}
    users = {what: paths for what, paths in uses.items() if paths}
    if len(users) < 2:
        return []
    if len(set(map(tuple, users.values()))) == 1:
        return [ok(name, f"{', '.join(users)} use the same")]
    value = "; ".join(f"{what}: {', '.join(map(os.path.basename, paths))}" for what, paths in users.items())
    libraries = sorted({path for paths in users.values() for path in paths})
    try:
        launch_checks.check_one_mpi(libraries, mpi_of(looks["core"]) or "an unknown MPI")
        to_do = "Rebuild them with the same MPI"
    except RuntimeError as refused:
        to_do = str(refused).rpartition(". ")[2]
    if users.get("Horovod", users.get("horovod_data")) != users.get("horovod_data"):
        return [error(name, value, to_do)]
    return [warning(name, value, f"A script that imports mpi4py.MPI fails in init(). {to_do}")]
