# SPDX-License-Identifier: Apache-2.0
"""Finds and loads the two libraries: _core.so, the C++ core, and _tf.so, the TensorFlow ops, which use the core.

A process has one copy of the core. The SONAME of _core.so is the name that _tf.so needs. The core is loaded first, so
the system's loader takes the loaded one. Both libraries are of one build, because _tf.so uses C++ classes of the core.

Nothing is loaded RTLD_GLOBAL. TensorFlow opens op libraries RTLD_LOCAL. MPI works with that, because its plugins name
the libraries that they need (Open MPI 3 and later, and MPICH). So our symbols, and the MPI of our build, do not collide
with Horovod and other extensions.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Iterable, NamedTuple, Optional

from ..errors import explained

_CORE = Path(__file__).parents[1] / "_core.so"
_OPS = _CORE.with_name("_tf.so")
_REBUILD = "`pip install --force-reinstall --no-deps --no-build-isolation .` in its source folder, and start Python in another folder"
# Matches the literal in csrc/ops/build.cc.
_BUILT = re.compile(rb'"build": "([\w.+-]+)", "tensorflow": "([\w.+-]+)"')
# Matches libmpi.so.40 (Open MPI), libmpi.so.12, libmpich.so.12 (MPICH, Intel, MVAPICH), libmpi_cray.so.12. Does not
# match libmpi_cxx and the like.
_MPI_LIBRARY = re.compile(r"lib(mpi|mpich|mpi_cray|mpi_ibm|mpi_abi)\.so(\.[\d.]+)?")


class Built(NamedTuple):
    """What _tf.so was built for."""

    build: str  # the mark of the core that it fits
    tensorflow: str  # the version


@functools.lru_cache(maxsize=None)
def load_core() -> ctypes.CDLL:
    """Loads the functions of csrc/engine/c_api.cc, when a name of horovod_data is first used.

    It needs no MPI launch, does not import TensorFlow, and starts no thread or process.

    Raises:
      ImportError: the core is not built, or lacks a library. The text has the system's error.
    """
    try:
        core = ctypes.CDLL(str(_CORE), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        raise _cannot_load(_CORE, str(error)) from error
    if not hasattr(core, "hvdata_build"):
        what = f"{_CORE} belongs to an older horovod_data than the Python files beside it"
        raise explained(ImportError, what, f"Rebuild it: {_REBUILD}")
    return core


@functools.lru_cache(maxsize=None)
def load_ops() -> ModuleType:
    """Imports TensorFlow, and loads the Python functions of our ops. Loads the core first.

    Raises:
      ImportError: TensorFlow can't be imported. Or the ops are not built, were built for another TensorFlow or another
        core, or lack a library. The text says which, and has the command that helps.
    """
    core = load_core()
    try:
        import tensorflow as tf
    except ImportError as error:
        raise explained(
            ImportError,
            f"horovod_data needs TensorFlow for this, and can't import it ({error})",
            f"Run `pip install tensorflow-cpu` (or tensorflow, with GPU support), then {_REBUILD}",
        ) from error
    running = str(tf.__version__)
    built = built_ops()
    if built is None:
        what = f"{_OPS} is missing: horovod_data was built without TensorFlow"
        raise explained(ImportError, what, f"Build it with the TensorFlow {running} that is here: {_REBUILD}")
    if not _same_tensorflow(built.tensorflow, running):
        what = f"horovod_data was built for TensorFlow {built.tensorflow}, but this is TensorFlow {running}"
        to_do = f"Rebuild it for this one: {_REBUILD}; or install TensorFlow {built.tensorflow}"
        raise explained(ImportError, what, to_do)
    core.hvdata_build.restype = ctypes.c_char_p
    if built.build != (of_core := core.hvdata_build().decode()):
        what = f"{_OPS} is of build {built.build}, and _core.so beside it is of build {of_core}"
        raise explained(ImportError, what, f"Install both from one build: {_REBUILD}")
    try:
        return tf.load_op_library(str(_OPS))
    except (tf.errors.OpError, OSError) as error:
        raise _cannot_load(_OPS, getattr(error, "message", None) or str(error)) from error


def imported(package: str) -> bool:
    """Says whether the program has imported a package."""
    return sys.modules.get(package) is not None


def core_path() -> Path:
    """The path of the core, even if it has not been built."""
    return _CORE


def built_ops() -> Optional[Built]:
    """What _tf.so was built for. None: it was not built.

    Reads the answer from the file, and does not load it, because loading may fail with another TensorFlow.
    """
    try:
        found = _BUILT.search(_OPS.read_bytes())
    except FileNotFoundError:
        return None
    return Built(*(part.decode() for part in found.groups())) if found else Built("unknown", "unknown")


def mpi_libraries(maps: Optional[Iterable[str]] = None) -> list[str]:
    """The MPI libraries in this process, as real paths. More than one library can't work, because each sees its own
    job.

    Args:
      maps: lines as in /proc/self/maps, which is read if None.
    """
    if maps is None:
        try:
            maps = Path("/proc/self/maps").read_text(errors="replace").splitlines()
        except OSError:
            return []
    paths = (line.split(maxsplit=5)[-1].strip() for line in maps if "/" in line)
    return sorted({os.path.realpath(path) for path in paths if _MPI_LIBRARY.fullmatch(os.path.basename(path))})


def _same_tensorflow(built: str, running: str) -> bool:
    """Compares minor versions, because TensorFlow keeps its C++ interface only within a minor version."""
    return built.split(".")[:2] == running.split(".")[:2]


def _cannot_load(library: Path, reason: str) -> ImportError:
    to_do = f"If it lacks a library, put that library's folder into LD_LIBRARY_PATH. Otherwise run {_REBUILD}"
    return explained(ImportError, f"horovod_data's C++ library {library} can't be loaded ({reason})", to_do)
