# SPDX-License-Identifier: Apache-2.0
"""Who this process is in the job, from init() to shutdown()."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import socket
import sys
import threading
from types import ModuleType
from typing import Any, Callable, Iterator, NoReturn, Optional

from . import core, exits, forks, launch_checks, limits, loader, meeting, siblings
from .auditing import keras_fit
from .progress import watch
from .reporting import report
from .errors import explain, forked, say, set_here, text_of
from .layout import Layout, make_layout
from .processes import fork_check
from .settings import Roles, Settings, read_roles, read_settings


@dataclasses.dataclass
class _Horovod:
    """How Horovod ends on this process."""

    shutdown: int  # the address of its C function
    ends_mpi: bool  # it has initialised MPI, and finalises it, when all processes have left ours
    ending: bool = False


@dataclasses.dataclass
class Job:
    """The job as this process sees it. Ranks are ranks of the communicator that init() was given."""

    settings: Settings
    comm: Any  # the mpi4py communicator that init() was given; None: MPI_COMM_WORLD
    comm_rank: int
    hosts: tuple[str, ...]
    layout: Layout
    forked: Callable[[], bool]
    environ: dict[str, str]  # HOROVOD_DATA_* as init() found them
    left: bool = False  # shutdown() was called, and has left the wait for others to the exit
    ended: bool = False

    @property
    def reader(self) -> Optional[int]:
        """This process's number among the readers; None if it doesn't read."""
        index = self.layout.reader_index[self.comm_rank]
        return index if index >= 0 else None

    @property
    def trainer(self) -> Optional[int]:
        """This process's number among the trainers; None if it doesn't train."""
        index = self.layout.trainer_index[self.comm_rank]
        return index if index >= 0 else None

    def name(self, comm_rank: int) -> str:
        """A process of the communicator, as texts name it."""
        return self.layout.name(comm_rank, self.hosts[comm_rank])

    @property
    def where(self) -> str:
        """This process, as error texts name it."""
        return self.name(self.comm_rank)


# MPICH's MPI_Finalize takes no locks any more by the time it tells us that it has begun: a call of our communication
# thread that is under way then would keep one, and MPI_Finalize would fail. Ranks that end together, as they do, have
# this long to bring their threads to an end first. Of one that ends before the others the thread keeps away from MPI
# until it is told that MPI_Finalize has begun; from then on it is the only one to call MPI.
_TOGETHER_SECONDS = 1.0

_reads = threading.local()
_job: Optional[Job] = None
_horovod: Optional[_Horovod] = None  # on trainers that have it
_endings: list[Callable[[], None]] = []
_last_things: list[Callable[[Callable[[], object]], None]] = []


def init(readers: Optional[int] = None, readers_per_node: Optional[int] = None, comm: Any = None,
         embedded: Optional[bool] = None) -> None:
    """Makes this process part of a job in which few processes read and all others are given their own batches.

    Call it instead of `hvd.init()`: it initialises MPI and then, on trainers, Horovod if that is installed. Dedicated
    readers stay out of Horovod, so that `hvd.size()` counts trainers. It also works after a plain `hvd.init()` (then
    `hvd.shutdown()` does `shutdown()` first), or after `from mpi4py import MPI`, if they got MPI_THREAD_MULTIPLE; and
    without Horovod.

    Collective: every process of `comm` calls it, with the same arguments. A second call with the same arguments does
    nothing.

    Args:
      readers: 0: rank 0 reads and trains. R > 0: the last R ranks read, each its own part of the data, and do nothing
        else; they take turns, and all trainers get batches of each. None: what HOROVOD_DATA_READERS says, else 0.
      readers_per_node: 1: every host has a reader of its own, its last rank, which deals to the trainers of that host
        alone, so that no batch crosses the network. None (or 0): what HOROVOD_DATA_READERS_PER_NODE says if `readers` is
        None too, else none.
      comm: an mpi4py communicator whose processes form the job; None: all processes of MPI_COMM_WORLD.
      embedded: with readers_per_node, True: not the last but the first rank of each host reads, and trains as well. None:
        what HOROVOD_DATA_EMBEDDED (0 or 1) says, else False.

    Raises:
      TypeError, ValueError: an argument or a HOROVOD_DATA_* variable is wrong, or no process is left to train.
      RuntimeError: the job was not started with the MPI that the library was built for; MPI can't be used from several
        threads; this is a process that multiprocessing starts, which imports the program; too few files may be opened;
        ranks disagree; a rank of this host, or under horovod-data-run of another one, has ended without having called it;
        Horovod was initialised for other processes; a second call with other arguments.
      TimeoutError: not all processes called it within HOROVOD_DATA_TIMEOUT seconds. (In MPI_Init, and behind the meeting of all
        ranks, where nothing can be interrupted, this process prints the error, and ends with status 1, and the job with it.)
    """
    global _job
    siblings.stay_silent()
    mpi = launch_checks.mpi_name(core.build_info()["mpi"])
    launch_checks.check_one_mpi(loader.mpi_libraries(), mpi)  # before any call of MPI that could reach the wrong one
    if _job is None and core.mpi_query().usable:
        exits.install(_end)  # from here on others may wait for this process, even if it fails in the next line
    if _job is None:
        launch_checks.check_files(*limits.spare_files(), core.mpi_query().usable, meeting.place_before_mpi(os.environ))
    if _job is not None:
        _require_same(current("init()"), readers, readers_per_node, embedded, _checked_comm(comm))
        return
    settings = read_settings(os.environ, readers, readers_per_node, embedded)
    comm = _checked_comm(comm)

    launch_checks.check_main_guard(meeting.place_before_mpi(os.environ))
    launch_checks.check_before_mpi(os.environ, mpi)
    horovod = _import_horovod()
    launch_checks.check_one_mpi(loader.mpi_libraries(), mpi)  # Horovod may have brought another one
    before = core.mpi_query()
    if before.finalized:
        raise RuntimeError(explain("MPI has already been finalised in this process, and can't be started twice",
                                   "Call horovod_data.init() before hvd.shutdown() or MPI.Finalize()"))
    if not before.initialized:
        with meeting.watched(os.environ, settings):
            core.mpi_init()
        exits.install(_end)
    launch_checks.check_thread_level(core.mpi_query().thread_level, not before.initialized, mpi)
    horovod_here = _horovod_place(horovod)
    launch_checks.check_world(os.environ, core.comm_info(None)[1], mpi, horovod_here[1] if horovod_here else None)

    address = _address(comm)
    rank, size = core.comm_info(address)
    host = socket.gethostname()
    world_ranks = core.comm_world_ranks(address)
    everybody = meeting.meet(
        meeting.Introduction.of(host, settings, horovod is not None, horovod_here),
        rank, size, lambda mine: core.comm_exchange(address, mine), settings, _absent(world_ranks))
    layout = make_layout([other.host for other in everybody], settings.readers, settings.readers_per_node,
                         settings.embedded)
    where = layout.name(rank, host)
    hosts = tuple(other.host for other in everybody)
    meeting.check_horovod(everybody, layout, where)
    with meeting.watched_start(where, size, settings, _absent(world_ranks)):
        if settings.timeline:
            meeting.check_timeline(settings.timeline, rank, layout.readers[0], lambda mine: core.comm_exchange(address, mine), where)
        if horovod is not None and layout.trainer_index[rank] >= 0:
            trainers = [world_ranks[trainer] for trainer in layout.trainers]
            _join_horovod(horovod, layout, rank, trainers, mpi, where)
            exits.install(_end)  # again: our atexit handler must run before Horovod's
            _end_with_mpi(horovod, horovod_here is not None)
        elif layout.trainer_index[rank] < 0:
            _refuse_horovod(where)
        core.start(address, layout, hosts, settings, horovod_here is not None and _end_before(horovod))
    _job = Job(settings, comm, rank, hosts, layout, fork_check(),
               {name: value for name, value in os.environ.items() if name.startswith("HOROVOD_DATA_")})
    set_here(_job.where)
    forks.install()
    if settings.audit and _job.trainer is not None:
        keras_fit.install()
    if _job.trainer == 0:
        watch.start(settings.progress, settings.progress_seconds)


def rank() -> Optional[int]:
    """This process's rank among the trainers, the same as `hvd.rank()`; None on a dedicated reader. Local.

    This and its like also answer after shutdown().

    Raises:
      RuntimeError: before init(), or in a forked child.
    """
    return _known("rank()").trainer


def size() -> Optional[int]:
    """The number of trainers, the same as `hvd.size()`; None on a dedicated reader. Local.

    Raises:
      RuntimeError: before init(), or in a forked child.
    """
    job = _known("size()")
    return None if job.trainer is None else len(job.layout.trainers)


def is_reader() -> bool:
    """Whether this process reads: runs the pipelines that are distributed. Local.

    Raises:
      RuntimeError: before init(), or in a forked child.
    """
    return _known("is_reader()").reader is not None


def is_trainer() -> bool:
    """Whether this process is given batches. Rank 0 is both reader and trainer unless there is a dedicated one. Local.

    Raises:
      RuntimeError: before init(), or in a forked child.
    """
    return _known("is_trainer()").trainer is not None


def num_readers() -> int:
    """The number of processes that read. Local.

    Raises:
      RuntimeError: before init(), or in a forked child.
    """
    return len(_known("num_readers()").layout.readers)


def shutdown() -> None:
    """Ends this process's part in the job; also done at exit. A second call does nothing, nor does one before init().

    Not collective: ranks may call it at any time, in any order.

    A trainer says that it is done and returns at once: its iterators end. (One with an audit() first makes the report of
    the epoch that ends here, for which it waits for the others, as long as they are there.) A process that reads serves
    until every trainer has said so; after HOROVOD_DATA_STALL_SECONDS, and then each minute, one that trains as well says
    for whom. MPI and Horovod go on, but at exit: others may wait for this rank in a collective, and Horovod ends here within
    a second. After it the job can't be joined again by this process.

    Where an exception is under way in the main thread, in a `finally:`, an `except` or a `with` say, a process that would wait here
    for others takes no more data, but leaves the wait to its exit, or to a second call: nobody would see the error meanwhile.
    (StopIteration and tf.errors.OutOfRangeError are ends, and no errors.)

    Raises:
      RuntimeError: in a forked child.
    """
    if _job is None or _known("shutdown()").ended:
        return
    error = _error_under_way()
    if (error is None and not exits.failing()) or (_job.reader is None and not _last_things):
        _shut_down(exiting=not threading.main_thread().is_alive())  # an atexit handler of the program's
    elif error is not None and not _job.left:
        _say_behind("hvdata.shutdown()", error, "This process serves the others until its exit, or a second shutdown()")
        _job.left = True
        if core.state() == core.State.RUNNING:
            core.leave_channels()


def _error_under_way() -> Optional[BaseException]:
    """What the main thread's program handles or raises at this moment, and may end with."""
    error = sys.exc_info()[1]
    if threading.current_thread() is not threading.main_thread() or type(error).__name__ == "OutOfRangeError":
        return None
    return None if isinstance(error, (StopIteration, StopAsyncIteration, GeneratorExit)) else error


def _say_behind(call: str, error: BaseException, then: str = "") -> None:
    """Others may end the job before anybody prints it."""
    if _job is not None and not (isinstance(error, SystemExit) and exits.status_of(error.code) == 0):
        say(explain(f"{call} is called behind {type(error).__name__}: {text_of(error)}", then, _job.where))


def _shut_down(exiting: bool = False) -> None:
    if _job is None:
        return
    job = _known("shutdown()")
    if job.ended:
        return
    if _last_things and core.state() == core.State.RUNNING:
        core.leave_channels()  # so that the others come to the ends of their epochs, which these wait for
    while _last_things and core.state() == core.State.RUNNING:
        _last_things.pop(0)(_begin_to_end_horovod if exiting else lambda: None)
    watch.stop()
    if core.state() == core.State.RUNNING:
        core.bye()
        if job.reader is not None:
            if exiting and not core.wait_all_bye(_TOGETHER_SECONDS):
                _begin_to_end_horovod()
            core.wait_all_bye()
            if job.reader == 0 and job.settings.report and core.state() == core.State.RUNNING:
                _report(job)
        core.stop()
    if _horovod is not None and _horovod.ending and not _horovod.ends_mpi:
        core.join_beside()
    job.ended = True
    while _endings:
        _endings.pop()()


def _end() -> bool:
    """shutdown() where the program ends, and somebody may finalise MPI next. Whether our thread has ended."""
    if _job is None:  # init() has failed here, and the program goes without: the others wait in theirs
        siblings.tell_end()
    _shut_down(exiting=True)
    return _job is None or core.mpi_query().finalized or core.wait_left(_TOGETHER_SECONDS)


def _report(job: Job) -> None:
    try:
        report.at_end()
    except Exception as error:  # the job has come to its end all the same
        say(explain(f"there is no report: {type(error).__name__}: {text_of(error)}", where=job.where))


def _begin_to_end_horovod() -> None:
    """Of a program that ends while this process waits for others: they may wait for it in one of Horovod's collectives, and are
    not done before that fails. Horovod itself would see to it at exit, behind us."""
    if _horovod is not None and not _horovod.ending:
        _horovod.ending = core.call_beside(_horovod.shutdown)


@contextlib.contextmanager
def reads() -> Iterator[None]:
    """Around a dataset function: on this thread nothing is called that all ranks call."""
    before = getattr(_reads, "now", False)
    _reads.now = True
    try:
        yield
    finally:
        _reads.now = before


def before_shutdown(last: Callable[[Callable[[], object]], None]) -> None:
    """Has shutdown() call `last` while this process still is a part of the job, but for its channels; the oldest comes first. It
    is given what it must call if it waits for other ranks for more than a moment."""
    _last_things.append(last)


def at_shutdown(ending: Callable[[], None]) -> None:
    """Has shutdown() call `ending` when all sources have ended; the newest comes first. For joining threads."""
    _endings.append(ending)


def current(what: str) -> Job:
    """The running job, for `what` (a call, as the user wrote it).

    Raises:
      RuntimeError: there is none: before init(), after shutdown(), or in a forked child; or this is a dataset function.
    """
    job = _known(what)
    if getattr(_reads, "now", False) and what != "init()":
        raise RuntimeError(explain(f"{what} was called in a dataset function, which runs on readers only",
                                   "Make all calls that ranks make together outside of it", job.where))
    if job.ended or job.left or core.state() == core.State.SHUT_DOWN:
        raise RuntimeError(explain(
            f"{what} was called after the end of the job: horovod_data.shutdown() has been called, or MPI has been "
            "finalised (by hvd.shutdown(), say)",
            "Shut down when nothing more is to be read; a process can't join again", job.where))
    return job


def _known(what: str) -> Job:
    if _job is None:
        raise RuntimeError(explain(f"{what} was called before horovod_data.init()", "Call horovod_data.init() first"))
    if _job.forked():
        raise RuntimeError(forked(what))
    return _job


def _require_same(job: Job, readers: Optional[int], readers_per_node: Optional[int], embedded: Optional[bool], comm: Any) -> None:
    """The environment may have changed since: what an argument leaves open is still what it was."""
    asked = read_roles(job.environ, readers, readers_per_node, embedded)
    runs = Roles(job.settings.readers, job.settings.readers_per_node, job.settings.embedded)
    if (asked, comm) == (runs, job.comm):
        return
    raise RuntimeError(explain(
        f"init() was called a second time with other arguments: {_arguments(asked, comm)}; it runs with "
        f"{_arguments(runs, job.comm)}", "Call it once, before anything else of horovod_data", job.where))


def _arguments(given: Roles, comm: Any) -> str:
    shown = [f"{name}={value}" for name, value in given._asdict().items()]
    return ", ".join(shown + [f"comm={comm.Get_name() if comm is not None else 'MPI_COMM_WORLD'}"])


def _checked_comm(comm: Any) -> Any:
    if comm is None:
        return None
    mpi4py: Any = sys.modules.get("mpi4py.MPI")  # whoever has a communicator of mpi4py has imported it
    if mpi4py is None or not isinstance(comm, mpi4py.Intracomm):
        raise TypeError(explain(
            f"comm must be an mpi4py intracommunicator, not {comm!r}",
            "Leave it out for all processes of the job, or pass what `MPI.COMM_WORLD.Split(...)` returns"))
    if comm == mpi4py.COMM_NULL:
        raise ValueError(explain("comm is MPI.COMM_NULL: this process is no member of that communicator",
                                 "Call init() only on its members"))
    return None if comm == mpi4py.COMM_WORLD else comm


def _absent(world_ranks: list[int]) -> Callable[[], list[siblings.Absent]]:
    """Who of these will not come to init(), or through it, any more."""
    here = siblings.Siblings()
    everybody = len(world_ranks) == core.comm_info(None)[1]
    return lambda: [other for other in here.absent() if everybody or other.rank in world_ranks]


def _address(comm: Any) -> Optional[int]:
    return None if comm is None else int(sys.modules["mpi4py.MPI"]._addressof(comm))


def _import_horovod() -> Optional[ModuleType]:
    try:
        import horovod.tensorflow as horovod
    except Exception:  # not installed, or unusable with this TensorFlow: then the program doesn't use it either
        return None
    return horovod


def _horovod_place(horovod: Any) -> Optional[tuple[int, int]]:
    """(hvd.rank(), hvd.size()) if Horovod has been initialised."""
    if horovod is None or not horovod.is_initialized():
        return None
    return horovod.rank(), horovod.size()


def _join_horovod(horovod: Any, layout: Layout, rank: int, trainers: list[int], mpi: str, where: str) -> None:
    """Initialises Horovod on the trainers, given as ranks of MPI_COMM_WORLD, and makes sure that it counts as we do."""
    if not horovod.is_initialized():
        if not horovod.mpi_built() and len(trainers) > 1:
            raise RuntimeError(explain(
                f"Horovod was built without MPI, horovod_data with {mpi}", "Reinstall Horovod with "
                "`HOROVOD_WITH_MPI=1 pip install --no-cache-dir --force-reinstall horovod`", where))
        if trainers == list(range(core.comm_info(None)[1])):
            horovod.init()
        else:
            horovod.init(comm=trainers)
    ours = layout.trainer_index[rank], len(trainers)
    theirs = horovod.rank(), horovod.size()
    if ours != theirs:
        raise RuntimeError(explain(
            f"Horovod says that this is rank {theirs[0]} of {theirs[1]}, horovod_data says rank {ours[0]} of {ours[1]}",
            f"Let both use MPI: unset HOROVOD_CONTROLLER and start with {launch_checks.command(mpi, ours[1])}", where))


def _refuse_horovod(where: str) -> None:
    """Has hvd.init() raise on this process, a dedicated reader, by whichever of Horovod's modules it is called: it would wait
    for ever for processes that have joined without it."""
    try:
        from horovod.common.basics import HorovodBasics
    except Exception:  # not installed, or unusable
        return

    def init(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(explain(
            "hvd.init() was called on a dedicated reader, which takes no part in Horovod",
            "horovod_data.init() has initialised Horovod on the ranks that train: leave hvd.init() out, and use Horovod only "
            "behind horovod_data.serve(), where a dedicated reader never comes", where))

    HorovodBasics.init = init


def _end_with_mpi(horovod: Any, ends_mpi: bool) -> None:
    """Has a program that itself calls MPI_Finalize end Horovod here first, as an exit does: the others' collectives, for which
    this rank will not be there, then fail at once."""
    library = getattr(getattr(horovod.shutdown, "__self__", None), "MPI_LIB_CTYPES", None)
    if library is not None and hasattr(library, "horovod_shutdown"):
        global _horovod
        # By index: the attribute may have been replaced, and is then no function of the library's.
        _horovod = _Horovod(ctypes.cast(library["horovod_shutdown"], ctypes.c_void_p).value or 0, ends_mpi)
        core.on_finalize(_horovod.shutdown)


def _end_before(horovod: Any) -> bool:
    """Has this process's hvd.shutdown(), also the one at exit, do our shutdown() first. Whether that could be done.

    A Horovod that was initialised before us has initialised MPI as well, and ends on all ranks when it ends on one: each
    rank's Horovod thread then finalises MPI, which others still want their data by. That must wait for a rank's own end,
    which therefore must not be hidden behind a call that waits for Horovod's thread.
    """
    library = getattr(getattr(horovod.shutdown, "__self__", None), "MPI_LIB_CTYPES", None)
    original = getattr(library, "horovod_shutdown", None)
    if original is None:
        return False
    in_child = fork_check()

    def shut_down() -> Any:
        if in_child():  # which has no part in the job
            return original()
        if _job is not None and not _job.ended and (error := _error_under_way()) is not None:
            _say_behind("hvd.shutdown()", error)
        ended = _end()
        if _horovod is not None and _horovod.ending:
            return core.join_beside()
        if ended:
            return original()
        core.hush(True)
        try:
            return original()
        finally:
            core.hush(False)

    setattr(library, "horovod_shutdown", shut_down)
    return True
