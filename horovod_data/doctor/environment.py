# SPDX-License-Identifier: Apache-2.0
"""Checks the environment: the launcher in PATH, the variables of launchers, and the variables of horovod_data."""

from __future__ import annotations

import difflib
import os
import re
import shutil
from typing import Mapping, Optional

from ..job import launch_checks, settings
from .findings import Finding, error, ok, sentences, warning

_OURS = "HOROVOD_DATA_"
# All variables of horovod_data. A test compares them with the sources.
KNOWN = [
    _OURS + name
    for name in "ARENA_MB ATTEMPT AUDIT CACHE_DIR CACHE_GB CERTIFICATE CHECK_REPLAY EMBEDDED LEAVE_STATUS PAYLOAD PREFETCH_MB "
    "PROGRESS PROGRESS_SECONDS READERS READERS_PER_NODE REPORT STALL_SECONDS STATE TIMELINE TIMELINE_MB TIMEOUT VERIFY".split()
]
_OF_MPI = re.compile(r"(OMPI_MCA|UCX|FI|MPIR_CVAR)_.*")
_LAUNCHERS_OWN = re.compile(
    r"OMPI_MCA_(orte|ess|pmix|prte|initial_wdir|mpi_oversubscribe|shmem_RUNTIME).*|MPIR_CVAR_CH3_INTERFACE_HOSTNAME"
)
_FORBIDDING = ("HOROVOD_MPI_THREADS_DISABLE", "HOROVOD_CONTROLLER")
_OF_A_RANK = re.compile(
    r"(OMPI_COMM_WORLD_|OMPI_UNIVERSE|OMPI_MCA_(ess|orte|pmix)|PMIX_|PMI2?_|SLURM_|HOROVOD_(RANK|SIZE)|HYDI_).*"
)


def launched(environ: Mapping[str, str], mpi: Optional[str]) -> list[Finding]:
    """Finds the launcher of this process, and the variables that the launcher and the user have set.

    `mpi`: mpi_name() of the MPI that horovod_data was built with. None: unknown.
    """
    launcher = launch_checks.find_launcher(environ)
    of_mpi = {name for name in environ if _OF_MPI.fullmatch(name) and not _LAUNCHERS_OWN.fullmatch(name)}
    of_horovod = {name for name in environ if name.startswith("HOROVOD_") and not name.startswith(_OURS)}
    found = [
        ok("environment.started by", f"{launcher.name} ({launcher.evidence})" if launcher else "none: a plain process"),
        *_shown("environment.MPI settings", environ, of_mpi),
    ]
    try:
        launch_checks.check_before_mpi(environ, mpi or "an unknown MPI")
    except RuntimeError as refused:
        return [*found, error("environment.variables of Horovod", *sentences(str(refused)))]
    return [*found, *_shown("environment.variables of Horovod", environ, of_horovod)]


def _shown(name: str, environ: Mapping[str, str], chosen: set[str]) -> list[Finding]:
    return [ok(name, ", ".join(f"{one}={environ[one]}" for one in sorted(chosen)))] if chosen else []


def ours(environ: Mapping[str, str]) -> list[Finding]:
    """Shows the HOROVOD_DATA_* variables that are set. Says whether their names exist and their values fit together."""
    given = {name: environ[name] for name in sorted(environ) if name.startswith(_OURS)}
    found = []
    for name in [name for name in given if name not in KNOWN]:
        close = difflib.get_close_matches(name[len(_OURS) :], [known[len(_OURS) :] for known in KNOWN], 1)
        to_do = f"is {_OURS}{close[0]} meant?" if close else "unset it"
        what = "It has no effect, because there is no such variable"
        found.append(warning("environment.unknown", f"{name}={given[name]}", f"{what}: {to_do}"))
    name = "environment.variables of horovod_data"
    try:
        read = settings.read_settings(environ)
    except ValueError as refused:
        what, to_do = sentences(str(refused))
        return [*found, error(name, what, to_do or "Fix the variable, or unset it")]
    meaning = f"dedicated readers: {read.readers}" if read.readers else "rank 0 reads"
    if read.embedded:
        meaning = "the first trainer of every host reads for its host"
    elif read.readers_per_node is not None:
        meaning = "a dedicated reader on every host"
    shown = ", ".join(f"{name}={value}" for name, value in given.items() if name in KNOWN) or "none set"
    value = (
        f"{shown}: {meaning}, payload {read.payload}, arena of {read.arena_bytes / 2**20:,.0f} MiB at most, "
        f"reports stalls after {read.stall_seconds:g} s, time limit {read.timeout_seconds:g} s"
    )
    return [*found, ok(name, value + ", every channel verified" * read.verify)]


def only_srun(environ: Mapping[str, str]) -> bool:
    """Says whether PATH has Slurm's srun, and no mpirun."""
    path = environ.get("PATH", "")
    return shutil.which("mpirun", path=path) is None and shutil.which("srun", path=path) is not None


def launcher_in_path(environ: Mapping[str, str], mpi: Optional[str]) -> Finding:
    """Says which mpirun PATH has. The self-test finds out whether it belongs to the MPI `mpi`."""
    name = "environment.mpirun"
    if only_srun(environ):
        return ok(name, "none in PATH; srun is there")
    path = shutil.which("mpirun", path=environ.get("PATH", ""))
    if path is None:
        to_do = "Nothing can start a job: put the bin folder of the MPI that horovod_data was built with into PATH"
        to_do = f"{to_do}, or load its module{f' ({mpi})' if mpi else ''}"
        return error(name, "neither mpirun nor srun is in PATH", to_do)
    return ok(name, path)


def without_launcher(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the launcher's variables, for a process that is not a rank of this job."""
    return {name: value for name, value in environ.items() if not _OF_A_RANK.fullmatch(name)}


def for_job(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for the launcher of a self-test. It allows root, and more ranks than cores.

    mpirun places consecutive ranks on different hosts, because the self-test measures lanes between hosts. The result
    lacks the variables of horovod_data. A wrong variable has its own finding, and must not fail the job as well. The
    ranks set the variables that they need.
    """
    given = {
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_rmaps_base_mapping_policy": "node:OVERSUBSCRIBE",
        "PRTE_MCA_rmaps_default_mapping_policy": "node:oversubscribe",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        **{name: value for name, value in environ.items() if not name.startswith((_OURS, *_FORBIDDING))},
    }
    if os.geteuid() == 0:
        given |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return given
