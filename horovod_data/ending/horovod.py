# SPDX-License-Identifier: Apache-2.0
"""Initialises Horovod with the job, and ends it with the job.

Horovod has a C library for each framework, with its own communicators and its own thread. A job has one of them.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import sys
from types import ModuleType
from typing import Any, Callable, NoReturn, Optional

from ..errors import explained, fork_check
from ..job import launch_checks
from ..job.layout import Layout
from ..native import bindings, loader

_TENSORFLOW, _TORCH = "horovod.tensorflow", "horovod.torch"


@dataclasses.dataclass
class _Horovod:
    """How to end Horovod on this process."""

    shutdown: int  # the address of its C function
    ends_mpi: bool  # Horovod has initialised MPI, and finalises MPI when it ends
    ending: bool = False


_here: Optional[_Horovod] = None  # on trainers with Horovod


def wanted() -> bool:
    """Says whether the program may use Horovod: it has imported Horovod or TensorFlow."""
    return loader.imported("horovod") or loader.imported("tensorflow")


def load() -> Optional[ModuleType]:
    """Horovod's module for the program: horovod.tensorflow or horovod.torch, if the program has imported it.

    If the program has imported neither module, this function imports the module for the program's framework.
    None: the program can't use Horovod, or has imported neither Horovod nor TensorFlow.

    Raises:
      RuntimeError: the program has imported both, and has initialised both of them or neither.
    """
    if not wanted():
        return None
    of_torch = loader.imported("torch") and not loader.imported("tensorflow")
    names = [name for name in (_TENSORFLOW, _TORCH) if loader.imported(name)] or [_TORCH if of_torch else _TENSORFLOW]
    try:
        modules = [importlib.import_module(name) for name in names]
    except Exception:  # not installed, or unusable with this framework; then the program doesn't use it either
        return None
    # Without its C library horovod.torch can be imported, but has no functions.
    modules = [module for module in modules if hasattr(module, "is_initialized")]
    if len(modules) > 1:
        modules = [module for module in modules if module.is_initialized()]
        if len(modules) != 1:
            what = f"The program has imported {_TENSORFLOW} and {_TORCH}, and a job can use only one of them"
            to_do = "Import the one that averages the gradients. Or call its init() before horovod_data.init()"
            raise explained(RuntimeError, what, to_do)
    return modules[0] if modules else None


def is_of_tensorflow(horovod: ModuleType) -> bool:
    """Says whether this is Horovod for TensorFlow, which has the layers for Keras."""
    return horovod.__name__ == _TENSORFLOW


def place(horovod: Any) -> Optional[tuple[int, int]]:
    """(hvd.rank(), hvd.size()) if Horovod has been initialised."""
    if horovod is None or not horovod.is_initialized():
        return None
    return horovod.rank(), horovod.size()


def join(horovod: Any, layout: Layout, rank: int, trainers: list[int], mpi: str, where: str) -> None:
    """Initialises Horovod on the trainers (ranks of MPI_COMM_WORLD).

    Checks that its ranks and sizes are the same as ours.
    """
    if not horovod.is_initialized():
        if not horovod.mpi_built() and len(trainers) > 1:
            to_do = "Reinstall Horovod with `HOROVOD_WITH_MPI=1 pip install --no-cache-dir --force-reinstall horovod`"
            raise explained(RuntimeError, f"Horovod was built without MPI, horovod_data with {mpi}", to_do, where)
        everybody = trainers == list(range(bindings.comm_info(None)[1]))
        horovod.init(comm=None if everybody else trainers)
    ours = layout.trainer_index[rank], len(trainers)
    theirs = horovod.rank(), horovod.size()
    if ours != theirs:
        raise explained(
            RuntimeError,
            f"Horovod says that this is rank {theirs[0]} of {theirs[1]}, horovod_data says rank {ours[0]} of {ours[1]}",
            f"Let both use MPI: unset HOROVOD_CONTROLLER and start with {launch_checks.command(mpi, ours[1])}",
            where,
        )


class _TooLate:
    """Makes the import of a module raise. A finder of sys.meta_path."""

    def __init__(self, module: str, what: str, to_do: str, where: str) -> None:
        self._module, self._error = module, (ImportError, what, to_do, where)

    def find_spec(self, name: str, *_: Any) -> None:
        if name == self._module:
            raise explained(*self._error)


def refuse(where: str) -> None:
    """Refuses Horovod where hvd.init() would wait without end.

    Makes hvd.init() of all its modules raise on this dedicated reader. If the program has imported neither Horovod nor
    TensorFlow, makes a later import of Horovod raise.
    """
    if not wanted():
        what = "Horovod is imported after horovod_data.init(), which has begun a job without it"
        to_do = f"Import {_TENSORFLOW} or {_TORCH} before init(). Then init() initialises it"
        sys.meta_path.insert(0, _TooLate("horovod.common", what, to_do, where))  # all of its modules import this one
        return
    try:
        from horovod.common.basics import HorovodBasics
    except Exception:  # not installed, or unusable
        return

    def init(*_: Any, **__: Any) -> NoReturn:
        raise explained(
            RuntimeError,
            "hvd.init() was called on a dedicated reader, which takes no part in Horovod",
            "horovod_data.init() has initialised Horovod on the ranks that train: leave hvd.init() out, and use Horovod only "
            "behind horovod_data.serve(), where a dedicated reader never comes",
            where,
        )

    HorovodBasics.init = init


def refuse_other(horovod: ModuleType, where: str) -> None:
    """Makes a later import of Horovod for the other framework raise.

    The init() of that Horovod would wait for dedicated readers without end. Even its import would take the process sets
    of the Horovod that the job uses.
    """
    other = _TORCH if is_of_tensorflow(horovod) else _TENSORFLOW
    what = f"{other} is imported after horovod_data.init(), which has initialised {horovod.__name__}"
    to_do = f"Import {other} before init(), without {horovod.__name__}. A job can use only one of them"
    sys.meta_path.insert(0, _TooLate(f"{other}.mpi_ops", what, to_do, where))


def _library(horovod: Any) -> Any:
    """Horovod's C functions, by ctypes. None: this version has them elsewhere."""
    return getattr(getattr(horovod.mpi_built, "__self__", None), "MPI_LIB_CTYPES", None)


def end_with_mpi(horovod: Any, ends_mpi: bool) -> None:
    """Makes MPI_Finalize end Horovod first, if the program itself calls MPI_Finalize.

    If other ranks wait in a collective that needs this rank, the collective then fails at once.
    """
    library = _library(horovod)
    if hasattr(library, "horovod_shutdown"):
        global _here
        # By index, because the attribute may have been replaced by a Python function.
        _here = _Horovod(ctypes.cast(library["horovod_shutdown"], ctypes.c_void_p).value or 0, ends_mpi)
        bindings.on_finalize(_here.shutdown)


def end_before(horovod: Any, hears: Callable[[], object], ends: Callable[[], bool]) -> bool:
    """Makes hvd.shutdown() of this process, also at exit, do our shutdown() first. Returns whether that is possible.

    If Horovod was initialised before the job, it has initialised MPI. When it ends on one rank, it ends on all ranks,
    and each rank's Horovod thread finalises MPI. But other ranks still need MPI for their data. So MPI_Finalize waits
    for our shutdown(), and our shutdown() comes before the call that waits for Horovod's thread.

    Args:
      hears: hvd.shutdown() calls it first.
      ends: does our shutdown(), and returns whether our communication thread has ended.
    """
    library = _library(horovod)
    original = getattr(library, "horovod_shutdown", None)
    if original is None:
        return False
    in_child = fork_check()

    def shut_down() -> Any:
        if in_child():  # a forked child is not part of the job
            return original()
        hears()
        ended = ends()
        if _here is not None and _here.ending:
            return bindings.join_beside()
        if ended:
            return original()
        bindings.hush(True)
        try:
            return original()
        finally:
            bindings.hush(False)

    setattr(library, "horovod_shutdown", shut_down)
    return True


def begin_to_end() -> None:
    """Begins to end Horovod, in a process that exits but still waits for other ranks.

    The other ranks may wait for this rank in a collective of Horovod. Such a collective fails only when Horovod ends
    here. Without this call, Horovod would end at exit, after our wait.
    """
    if _here is not None and not _here.ending:
        _here.ending = bindings.call_beside(_here.shutdown)


def join_end() -> None:
    """Waits for the end that begin_to_end() began.

    Does not wait if Horovod ends MPI, because that waits for other ranks.
    """
    if _here is not None and _here.ending and not _here.ends_mpi:
        bindings.join_beside()
