# SPDX-License-Identifier: Apache-2.0
"""Finds _core.so, the C++ core, and loads it twice: as TensorFlow ops and as C functions. Memory has one copy of it.

Nothing is loaded RTLD_GLOBAL. TensorFlow opens op libraries RTLD_LOCAL. MPI works with that, because its plugins name
the libraries that they need (Open MPI 3 and later, and MPICH). So our symbols, and the MPI of our build, do not collide
with Horovod and other extensions.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Iterable, NamedTuple, Optional

from ..errors import explained

_PATH = Path(__file__).parents[1] / "_core.so"
_REBUILD = "`pip install --force-reinstall --no-deps --no-build-isolation .` in its source folder"
# Matches the literal in csrc/engine/c_api.cc.
_BUILD_INFO = re.compile(rb'"tensorflow": *"([\w.+-]+)"')
# Matches libmpi.so.40 (Open MPI), libmpi.so.12, libmpich.so.12 (MPICH, Intel, MVAPICH), libmpi_cray.so.12. Does not
# match libmpi_cxx and the like.
_MPI_LIBRARY = re.compile(r"lib(mpi|mpich|mpi_cray|mpi_ibm|mpi_abi)\.so(\.[\d.]+)?")


class Library(NamedTuple):
    """The loaded core."""

    ops: ModuleType  # the Python functions of the TensorFlow ops
    dll: ctypes.CDLL  # the functions of csrc/engine/c_api.cc


@functools.lru_cache(maxsize=None)
def load() -> Library:
    """Loads the core, when a name of horovod_data is first used. It needs no MPI launch and starts no thread or
    process.

    Raises:
      ImportError: the core is not built, was built for another TensorFlow, or lacks a library. The text says which, and
        has the command that helps.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        raise explained(
            ImportError,
            f"horovod_data needs TensorFlow, which can't be imported ({error})",
            "Install TensorFlow first, then horovod_data",
        ) from error
    running = str(tf.__version__)
    if not _PATH.exists():
        raise _not_built(_PATH)
    built = _built_for(_PATH)
    if built and not _same_tensorflow(built, running):
        what = f"horovod_data was built for TensorFlow {built}, but this is TensorFlow {running}"
        to_do = f"Rebuild it for this one: {_REBUILD}; or install TensorFlow {built}"
        raise explained(ImportError, what, to_do)
    try:
        return Library(tf.load_op_library(str(_PATH)), ctypes.CDLL(str(_PATH), mode=os.RTLD_NOW | os.RTLD_LOCAL))
    except (tf.errors.OpError, OSError) as error:
        raise _cannot_load(getattr(error, "message", None) or str(error), built, running) from error


def library_path() -> Path:
    """The path of the core, even if it has not been built."""
    return _PATH


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


def _built_for(library: Path) -> Optional[str]:
    """The TensorFlow version in the file.

    It is found without loading the file, which may fail with another TensorFlow.
    """
    found = _BUILD_INFO.search(library.read_bytes())
    return found[1].decode() if found else None


def _same_tensorflow(built: str, running: str) -> bool:
    """Compares minor versions, because TensorFlow keeps its C++ interface only within a minor version."""
    return built.split(".")[:2] == running.split(".")[:2]


def _not_built(library: Path) -> ImportError:
    root = library.parent.parent
    what, to_do = "horovod_data was installed without its C++ core", f"Run {_REBUILD}"
    if (root / "setup.py").exists():
        what = "this is horovod_data's source tree, and its C++ core has not been built here"
        to_do = (
            f"Run `pip install --no-build-isolation -e {root}`, or `pip install --no-build-isolation {root}` and start "
            "Python in another folder"
        )
    return explained(ImportError, f"{library} is missing: {what}", to_do)


def _cannot_load(reason: str, built: Optional[str], running: str) -> ImportError:
    what, to_do = f"horovod_data's C++ core {_PATH} can't be loaded", f"Rebuild it: {_REBUILD}"
    missing = re.search(r"(\S+): cannot open shared object file", reason)
    if missing and re.match(r"lib(open-)?(mpi|pmi|rte|pal)", missing[1]):
        what = f"{missing[1]}, the MPI library that horovod_data was built with, can't be found"
        to_do = (
            "Install that MPI, or put its folder into LD_LIBRARY_PATH; "
            f"to use another MPI, put its mpicxx first in PATH and run {_REBUILD}"
        )
    elif "undefined symbol" in reason or (missing and missing[1].startswith("libtensorflow")):
        other = f"TensorFlow {built}" if built else "another TensorFlow"
        what = f"horovod_data was built for {other} and doesn't fit TensorFlow {running}"
        to_do = f"Rebuild it for this one: {_REBUILD}"
    return explained(ImportError, f"{what} ({reason})", to_do)
