# SPDX-License-Identifier: Apache-2.0
"""Horovod on this process: it is initialised with the job, and ends with it."""

from __future__ import annotations

import ctypes
import dataclasses
from types import ModuleType
from typing import Any, Callable, NoReturn, Optional

from ..errors import explain
from ..job import launch_checks
from ..job.layout import Layout
from ..native import bindings
from .processes import fork_check


@dataclasses.dataclass
class _Horovod:
    """How Horovod ends on this process."""

    shutdown: int  # the address of its C function
    ends_mpi: bool  # it has initialised MPI, and finalises it, when all processes have left ours
    ending: bool = False


_here: Optional[_Horovod] = None  # on trainers that have it


def load() -> Optional[ModuleType]:
    try:
        import horovod.tensorflow as horovod
    except Exception:  # not installed, or unusable with this TensorFlow: then the program doesn't use it either
        return None
    return horovod


def place(horovod: Any) -> Optional[tuple[int, int]]:
    """(hvd.rank(), hvd.size()) if Horovod has been initialised."""
    if horovod is None or not horovod.is_initialized():
        return None
    return horovod.rank(), horovod.size()


def join(horovod: Any, layout: Layout, rank: int, trainers: list[int], mpi: str, where: str) -> None:
    """Initialises Horovod on the trainers, given as ranks of MPI_COMM_WORLD, and makes sure that it counts as we do."""
    if not horovod.is_initialized():
        if not horovod.mpi_built() and len(trainers) > 1:
            raise RuntimeError(
                explain(
                    f"Horovod was built without MPI, horovod_data with {mpi}",
                    "Reinstall Horovod with `HOROVOD_WITH_MPI=1 pip install --no-cache-dir --force-reinstall horovod`",
                    where,
                )
            )
        if trainers == list(range(bindings.comm_info(None)[1])):
            horovod.init()
        else:
            horovod.init(comm=trainers)
    ours = layout.trainer_index[rank], len(trainers)
    theirs = horovod.rank(), horovod.size()
    if ours != theirs:
        raise RuntimeError(
            explain(
                f"Horovod says that this is rank {theirs[0]} of {theirs[1]}, horovod_data says rank {ours[0]} of {ours[1]}",
                f"Let both use MPI: unset HOROVOD_CONTROLLER and start with {launch_checks.command(mpi, ours[1])}",
                where,
            )
        )


def refuse(where: str) -> None:
    """Has hvd.init() raise on this process, a dedicated reader, by whichever of Horovod's modules it is called: it would wait
    for ever for processes that have joined without it."""
    try:
        from horovod.common.basics import HorovodBasics
    except Exception:  # not installed, or unusable
        return

    def init(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(
            explain(
                "hvd.init() was called on a dedicated reader, which takes no part in Horovod",
                "horovod_data.init() has initialised Horovod on the ranks that train: leave hvd.init() out, and use Horovod only "
                "behind horovod_data.serve(), where a dedicated reader never comes",
                where,
            )
        )

    HorovodBasics.init = init


def end_with_mpi(horovod: Any, ends_mpi: bool) -> None:
    """Has a program that itself calls MPI_Finalize end Horovod here first, as an exit does: the others' collectives, for which
    this rank will not be there, then fail at once."""
    library = getattr(getattr(horovod.shutdown, "__self__", None), "MPI_LIB_CTYPES", None)
    if library is not None and hasattr(library, "horovod_shutdown"):
        global _here
        # By index: the attribute may have been replaced, and is then no function of the library's.
        _here = _Horovod(ctypes.cast(library["horovod_shutdown"], ctypes.c_void_p).value or 0, ends_mpi)
        bindings.on_finalize(_here.shutdown)


def end_before(horovod: Any, hears: Callable[[], object], ends: Callable[[], bool]) -> bool:
    """Has this process's hvd.shutdown(), also the one at exit, do our shutdown() first. Whether that could be done.

    A Horovod that was initialised before us has initialised MPI as well, and ends on all ranks when it ends on one: each
    rank's Horovod thread then finalises MPI, which others still want their data by. That must wait for a rank's own end,
    which therefore must not be hidden behind a call that waits for Horovod's thread.

    Args:
      hears: is called first.
      ends: does our shutdown(). Whether our thread has ended.
    """
    library = getattr(getattr(horovod.shutdown, "__self__", None), "MPI_LIB_CTYPES", None)
    original = getattr(library, "horovod_shutdown", None)
    if original is None:
        return False
    in_child = fork_check()

    def shut_down() -> Any:
        if in_child():  # which has no part in the job
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
    """Of a program that ends while this process waits for others: they may wait for it in one of Horovod's collectives, and are
    not done before that fails. Horovod itself would see to it at exit, behind us."""
    if _here is not None and not _here.ending:
        _here.ending = bindings.call_beside(_here.shutdown)


def join_end() -> None:
    """Waits until what begin_to_end() has begun is done, but where that ends MPI, which is others' matter."""
    if _here is not None and _here.ending and not _here.ends_mpi:
        bindings.join_beside()
