# SPDX-License-Identifier: Apache-2.0
"""Checks whether this process was started in a way that can work. It calls neither MPI nor TensorFlow.

Each check raises RuntimeError, whose text says what to change. `mpi` is mpi_name() of the MPI library that the core was
built with.
"""

from __future__ import annotations

import multiprocessing
import re
import socket
from typing import Mapping, NamedTuple, Optional, Sequence

from ..errors import explained, place

# Open files that MPI and TensorFlow need, and those that this library needs (besides one for each process of the host).
_MPI_FILES, _OUR_FILES = 24, 12

_LEVELS = {0: "MPI_THREAD_SINGLE", 1: "MPI_THREAD_FUNNELED", 2: "MPI_THREAD_SERIALIZED", 3: "MPI_THREAD_MULTIPLE"}

# Variables of Open MPI, PMI, PMIx, Slurm and horovodrun. They have this process's rank before MPI knows it.
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID", "HOROVOD_RANK")


class Launcher(NamedTuple):
    """The launcher of this process, as far as the environment shows it."""

    name: str
    size: int  # processes in the job; a lower bound if the launcher doesn't say
    evidence: str  # the variable that shows this launcher


def find_launcher(environ: Mapping[str, str]) -> Optional[Launcher]:
    """The innermost launcher whose variable has the number of processes. None for a plain `python`."""
    sizes = (
        ("horovodrun with Gloo", "HOROVOD_SIZE"),
        ("Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE"),
        ("a PMI launcher (mpirun of MPICH or Intel MPI, or srun --mpi=pmi2)", "PMI_SIZE"),
        # Not SLURM_NTASKS: it is also set in the shell of an allocation, where a plain `python` is a job of one
        # process.
        ("Slurm's srun", "SLURM_STEP_NUM_TASKS"),
    )
    for name, variable in sizes:
        size = _number(environ, variable)
        if size is not None and size > 0:
            return Launcher(name, size, f"{variable}={size}")
    rank = _number(environ, "PMIX_RANK")
    if rank is not None:
        return Launcher("a PMIx launcher", rank + 1, f"PMIX_RANK={rank}")
    return None


def rank_before_mpi(environ: Mapping[str, str]) -> Optional[int]:
    """The rank of this process, from the variables of its launcher. MPI's rank may differ. None: they don't have it."""
    return next((int(environ[name]) for name in _RANK_VARIABLES if environ.get(name, "").isdigit()), None)


def place_before_mpi(environ: Mapping[str, str]) -> str:
    """The `where` of this process before MPI runs."""
    rank = rank_before_mpi(environ)
    return f"a rank on {socket.gethostname()}" if rank is None else place(rank, socket.gethostname())


def check_files(spare: int, limit: int, mpi_runs: bool, where: str) -> None:
    """Checks that MPI and TensorFlow find enough file descriptors.

    Otherwise MPI hangs, or TensorFlow ends the process.
    """
    least = _OUR_FILES + (0 if mpi_runs else _MPI_FILES)
    if spare < least:
        raise explained(
            RuntimeError,
            f"This process may open only {spare} more files (it may have {limit}): too few for MPI, TensorFlow and shared "
            f"memory, which need at least {least}, besides those of your program",
            "Raise the limit where the job is started, as with `ulimit -n 1024`, or the limit of its container",
            where,
        )


def check_main_guard(where: str) -> None:
    """Refuses processes that multiprocessing starts by "spawn" or "forkserver". Each imports the program before it does
    its work.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise explained(
            RuntimeError,
            "init() was called by a process that multiprocessing has started: such a process imports the program, and runs "
            "its top level again",
            'Put the program\'s work behind `if __name__ == "__main__":`',
            where,
        )


def check_before_mpi(environ: Mapping[str, str], mpi: str) -> None:
    """Refuses jobs that can't work, before any call of MPI."""
    size = _number(environ, "HOROVOD_SIZE") or 1
    gloo = [
        f"{name}={environ[name]}"
        for name in ("HOROVOD_CONTROLLER", "HOROVOD_GLOO_RENDEZVOUS_ADDR")
        if environ.get(name) and (name != "HOROVOD_CONTROLLER" or environ[name].lower() == "gloo")
    ]
    if gloo and size > 1:
        raise explained(
            RuntimeError,
            f"This job of {size} processes was started by horovodrun with Gloo ({gloo[0]}): there is no MPI between "
            f"its processes, but horovod_data delivers batches over MPI (built with {mpi})",
            f"Start it with {command(mpi, size)}",
        )
    if (_number(environ, "HOROVOD_MPI_THREADS_DISABLE") or 0) > 0:
        raise explained(
            RuntimeError,
            "HOROVOD_MPI_THREADS_DISABLE=1 forbids the use of MPI from several threads, but horovod_data has a "
            "communication thread of its own beside Horovod's",
            "Unset HOROVOD_MPI_THREADS_DISABLE on all ranks",
        )


def check_thread_level(level: int, initialized_by_us: bool, mpi: str) -> None:
    """Checks that MPI runs with MPI_THREAD_MULTIPLE."""
    if level >= 3:
        return
    needs = (
        f"MPI runs with {_LEVELS.get(level, f'level {level}')}, but horovod_data needs MPI_THREAD_MULTIPLE: "
        "its communication thread works beside Horovod's"
    )
    to_do = (
        f"That is all that {mpi} gives: use an MPI library that was built with thread support, and rebuild Horovod and "
        "horovod_data with it"
        if initialized_by_us
        else "MPI was initialised before horovod_data.init(): call horovod_data.init() first, or have MPI initialised with "
        "MPI_THREAD_MULTIPLE (mpi4py: set mpi4py.rc.thread_level = 'multiple' before `from mpi4py import MPI`)"
    )
    raise explained(RuntimeError, needs, to_do)


def check_world(environ: Mapping[str, str], world_size: int, mpi: str, horovod_size: Optional[int] = None) -> None:
    """Checks that MPI sees the whole job."""
    if world_size != 1:
        return
    launcher = find_launcher(environ)
    if launcher is not None and launcher.size > 1:
        seen, size = f"{launcher.name} started more of them ({launcher.evidence})", launcher.size
    elif horovod_size is not None and horovod_size > 1:
        seen, size = f"hvd.size() is {horovod_size}", horovod_size
    else:
        return
    slurm = launcher is not None and launcher.evidence.startswith(("SLURM_", "PMIX_")) and "SLURM_JOB_ID" in environ
    raise explained(
        RuntimeError,
        f"MPI sees this process alone, but {seen}: the launcher doesn't belong to the MPI that horovod_data was built "
        f"with, {mpi}",
        f"Start the job with {command(mpi, size, slurm)}",
    )


def check_one_mpi(libraries: Sequence[str], mpi: str) -> None:
    """Checks that all extensions of this process use the same MPI library."""
    if len(libraries) > 1:
        raise explained(
            RuntimeError,
            f"This process has loaded {len(libraries)} MPI libraries: {', '.join(libraries)}. Each of them sees a job "
            f"of its own. horovod_data was built with {mpi}",
            "Install Horovod and mpi4py for that library too (mpi4py: `MPICC=<its mpicc> pip install --force-reinstall "
            "--no-binary mpi4py mpi4py`), or rebuild horovod_data with theirs",
        )


def command(mpi: str, size: int, slurm: bool = False, program: str = "train.py") -> str:
    """The command lines that start `size` processes under the MPI library `mpi`."""
    open_mpi = mpi.startswith("Open MPI")
    if slurm:
        return f"`srun --mpi={'pmix' if open_mpi else 'pmi2'} -n {size} python {program}`"
    if open_mpi:
        return f"`horovodrun --mpi -np {size} python {program}` or `mpirun -np {size} python {program}`"
    return f"`mpirun -np {size} python {program}`, with the mpirun of {mpi}"


def mpi_name(version_text: str) -> str:
    """Shortens the text of MPI_Get_library_version to, for example, "Open MPI v4.1.4" or "MPICH 4.0.2"."""
    line = (version_text.strip().splitlines() or ["an unknown MPI"])[0]
    return re.sub(r"\s*Version:\s*", " ", line.split(",")[0]).strip()


def _number(environ: Mapping[str, str], name: str) -> Optional[int]:
    try:
        return int(environ[name])
    except (KeyError, ValueError):
        return None
