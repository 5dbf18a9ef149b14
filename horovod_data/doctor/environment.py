# SPDX-License-Identifier: Apache-2.0
"""Checks the environment: the launcher in PATH, the variables of launchers, and the variables of horovod_data."""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
from typing import Mapping, Optional

from ..job import launch_checks, settings
from .findings import Finding, error, ok, sentences, warning

# All variables of horovod_data. A test compares them with the sources.
KNOWN = (
    "HOROVOD_DATA_ARENA_MB",
    "HOROVOD_DATA_AUDIT",
    "HOROVOD_DATA_CERTIFICATE",
    "HOROVOD_DATA_CHECK_REPLAY",
    "HOROVOD_DATA_EMBEDDED",
    "HOROVOD_DATA_PAYLOAD",
    "HOROVOD_DATA_PREFETCH_MB",
    "HOROVOD_DATA_PROGRESS",
    "HOROVOD_DATA_PROGRESS_SECONDS",
    "HOROVOD_DATA_READERS",
    "HOROVOD_DATA_READERS_PER_NODE",
    "HOROVOD_DATA_REPORT",
    "HOROVOD_DATA_STALL_SECONDS",
    "HOROVOD_DATA_TIMELINE",
    "HOROVOD_DATA_TIMELINE_MB",
    "HOROVOD_DATA_TIMEOUT",
    "HOROVOD_DATA_VERIFY",
)
_OURS = "HOROVOD_DATA_"
# Variables in which a launcher describes the job to its processes.
_TELLING = (
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "PMIX_RANK",
    "SLURM_JOB_ID",
    "SLURM_JOB_NUM_NODES",
    "SLURM_JOB_NODELIST",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_PROCID",
    "PBS_JOBID",
    "PBS_NODEFILE",
    "LSB_JOBID",
    "LSB_DJOB_HOSTFILE",
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
)
_FORBIDDING = ("HOROVOD_MPI_THREADS_DISABLE", "HOROVOD_CONTROLLER")
_LAUNCHERS_OWN = re.compile(
    r"OMPI_MCA_(orte|ess|pmix|prte|initial_wdir|mpi_oversubscribe|shmem_RUNTIME).*|"
    r"MPIR_CVAR_CH3_INTERFACE_HOSTNAME"
)


def check(environ: Mapping[str, str], mpi: Optional[str]) -> list[Finding]:
    """The findings. `mpi` is mpi_name() of the MPI with which the core was built. None: unknown."""
    return [*launcher_in_path(environ, mpi), *launched(environ, mpi), *ours(environ)]


def launched(environ: Mapping[str, str], mpi: Optional[str]) -> list[Finding]:
    """The launcher of this process, and the variables that it and the user have set."""
    launcher = launch_checks.find_launcher(environ)
    value = f"{launcher.name} ({launcher.evidence})" if launcher else "none: a plain process"
    found = [ok("environment.started by", value)]
    told = [f"{name}={environ[name]}" for name in _TELLING if name in environ]
    if told:
        found.append(ok("environment.job", ", ".join(told)))
    mca = [
        f"{name}={value}"
        for name, value in sorted(environ.items())
        if name.startswith(("OMPI_MCA_", "UCX_", "FI_", "MPIR_CVAR_")) and not _LAUNCHERS_OWN.fullmatch(name)
    ]
    if mca:
        found.append(ok("environment.MPI settings", ", ".join(mca)))
    horovod = [
        f"{name}={value}"
        for name, value in sorted(environ.items())
        if name.startswith("HOROVOD_") and not name.startswith(_OURS)
    ]
    try:
        launch_checks.check_before_mpi(environ, mpi or "an MPI that can't be found out")
        found += [ok("environment.Horovod's", ", ".join(horovod))] if horovod else []
    except RuntimeError as refused:
        found.append(error("environment.Horovod's", *sentences(str(refused))))
    return found


def ours(environ: Mapping[str, str]) -> list[Finding]:
    """The HOROVOD_DATA_* variables that are set. Says whether each exists, and whether they fit together."""
    found = []
    given = {name: environ[name] for name in sorted(environ) if name.startswith(_OURS)}
    for name in given:
        if name not in KNOWN:
            close = difflib.get_close_matches(name[len(_OURS) :], [known[len(_OURS) :] for known in KNOWN], 1)
            found.append(
                warning(
                    "environment.unknown",
                    f"{name}={given[name]}",
                    "It has no effect, for there is no such "
                    f"variable: {f'is {_OURS}{close[0]} meant?' if close else 'unset it'}",
                )
            )
    shown = ", ".join(f"{name}={value}" for name, value in given.items() if name in KNOWN) or "none set"
    try:
        read = settings.read_settings(environ)
    except ValueError as refused:
        what, to_do = sentences(str(refused))
        found.append(error("environment.horovod_data's", what, to_do or "Mend the variable, or unset it"))
    else:
        meaning = (
            "the first trainer of every host reads for its host"
            if read.embedded
            else "a dedicated reader on every host"
            if read.readers_per_node is not None
            else f"dedicated readers: {read.readers}"
            if read.readers
            else "rank 0 reads"
        )
        found.append(
            ok(
                "environment.horovod_data's",
                f"{shown}: {meaning}, payload {read.payload}, arena of "
                f"{read.arena_bytes / 2**20:,.0f} MiB at most, stall lines after {read.stall_seconds:g} s, "
                f"time limit {read.timeout_seconds:g} s{', every channel verified' if read.verify else ''}",
            )
        )
    return found


def only_srun(environ: Mapping[str, str]) -> bool:
    """Says whether PATH has Slurm's srun, and no mpirun."""
    path = environ.get("PATH", "")
    return shutil.which("mpirun", path=path) is None and shutil.which("srun", path=path) is not None


def launcher_in_path(environ: Mapping[str, str], mpi: Optional[str]) -> list[Finding]:
    """Says whether PATH has an mpirun, and whether it belongs to our MPI."""
    path = shutil.which("mpirun", path=environ.get("PATH", ""))
    if path is None:
        if only_srun(environ):
            return [ok("environment.mpirun", "none in PATH; srun is there")]
        return [
            error(
                "environment.mpirun",
                "neither mpirun nor srun is in PATH",
                "Nothing can start a job: put the bin folder of the MPI that horovod_data was built with into PATH, "
                f"or load its module{f' ({mpi})' if mpi else ''}",
            )
        ]
    try:
        ran = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=20,
            env=dict(environ),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        return [
            error("environment.mpirun", f"{path} doesn't run: {failure}", "Mend it, or put another MPI first in PATH")
        ]
    return [match(path, ran.stdout + ran.stderr, mpi)]


def match(path: str, version_text: str, mpi: Optional[str]) -> Finding:
    """Says whether an mpirun belongs to the MPI `mpi`. `version_text` is the output of `mpirun --version`."""
    name = "environment.mpirun"
    version = (re.findall(r"\d+\.\d+(?:\.\d+)*", version_text) or [""])[0]
    vendor = (
        "Open MPI"
        if re.search(r"Open ?MPI|OpenRTE|PRTE", version_text, re.IGNORECASE)
        else "Intel"
        if "Intel" in version_text
        else "MPICH"
        if "HYDRA" in version_text
        else "an unknown MPI"
    )
    value = f"{path} ({vendor} {version})".replace(" )", ")")
    if mpi is None or vendor == "an unknown MPI":
        return ok(name, value)
    family = "Open MPI" if mpi.startswith("Open MPI") else "Intel" if mpi.startswith("Intel") else "MPICH"
    # The launchers of Intel MPI and MPICH can start each other's processes.
    if vendor != family and {vendor, family} != {"Intel", "MPICH"}:
        return error(
            name,
            value,
            f"horovod_data was built with {mpi}: put the mpirun of that one first in PATH, or rebuild "
            "Horovod and horovod_data with this one",
        )
    built = re.findall(r"\d+\.\d+(?:\.\d+)*", mpi)
    if vendor == family == "Open MPI" and built and version and built[0].split(".")[:2] != version.split(".")[:2]:
        return warning(
            name,
            value,
            f"horovod_data was built with {mpi}: with another version's mpirun processes may not "
            "find each other; put that one's first in PATH",
        )
    return ok(name, value)


def without_launcher(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the launcher's variables, for a process that is not a rank of this job."""
    drop = (
        "OMPI_COMM_WORLD_",
        "OMPI_UNIVERSE",
        "OMPI_MCA_ess",
        "OMPI_MCA_orte",
        "OMPI_MCA_pmix",
        "PMIX_",
        "PMI_",
        "PMI2_",
        "SLURM_",
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "HYDI_",
    )
    return {name: value for name, value in environ.items() if not name.startswith(drop)}


def for_job(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for the launcher of a self-test. It allows root, and more ranks than cores.

    Ranks go to different hosts first, because the self-test measures lanes between hosts. Variables of horovod_data are
    left out: a wrong variable has its own finding, and must not fail the job as well. Ranks set the variables that they
    need.
    """
    given = {
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_rmaps_base_mapping_policy": "node:OVERSUBSCRIBE",
        "PRTE_MCA_rmaps_default_mapping_policy": "node:oversubscribe",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        **environ,
    }
    for name in [name for name in given if name.startswith(_OURS) or name in _FORBIDDING]:
        del given[name]
    if os.geteuid() == 0:
        given |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return given
