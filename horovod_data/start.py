# SPDX-License-Identifier: Apache-2.0
"""init(): MPI, the meeting of all processes, Horovod on the trainers, the engine.

A job waits for the init() of its slowest process. So modules that most processes don't need are imported where they are
used.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any, Callable, Optional

from .ending import exit_status, signals
from .ending import horovod as with_horovod
from .ending.shutdown import end, hear_of_horovods_end
from .errors import explain, explained, fork_check, place, set_here
from .job import cgroups, handshake, launch_checks
from .job.layout import make_layout
from .job.settings import PAYLOADS, Roles, Settings, read_roles, read_settings
from .job.state import Job, begin, current, joined
from .native import bindings, loader


def init(
    readers: Optional[int] = None,
    readers_per_node: Optional[int] = None,
    comm: Any = None,
    embedded: Optional[bool] = None,
) -> None:
    """Makes this process part of a job, in which few processes read and all trainers get batches.

    Call it instead of `hvd.init()`. It initialises MPI. On trainers it then initialises the Horovod that the program
    has imported, `horovod.tensorflow` or `horovod.torch`. If the program has imported TensorFlow alone, init()
    initialises `horovod.tensorflow`, if that is installed. Dedicated readers stay out of Horovod, so `hvd.size()`
    counts trainers. init() also works without Horovod. A program that has imported neither TensorFlow nor Horovod
    before this call is a job without Horovod.

    init() may follow a plain `hvd.init()`, or `from mpi4py import MPI`, if these got MPI_THREAD_MULTIPLE. If
    `hvd.init()` came first, `hvd.shutdown()` calls `shutdown()` before it ends Horovod.

    Collective: every process of `comm` calls it, with the same arguments. A second call with the same arguments does
    nothing.

    Args:
      readers: 0: rank 0 reads and trains. R > 0: the last R ranks only read, each its own part of the data. They take
        turns, and all trainers get batches of each reader. None stands for HOROVOD_DATA_READERS, by default 0.
      readers_per_node: 1: the last rank of every host is a reader, which deals to the trainers of that host alone. So
        no batch crosses the network. None or 0: if `readers` is None, HOROVOD_DATA_READERS_PER_NODE decides. By default
        no host has a reader of its own.
      comm: an mpi4py communicator whose processes form the job. None: all processes of MPI_COMM_WORLD.
      embedded: True: with readers_per_node, the first rank of each host reads and trains. None stands for
        HOROVOD_DATA_EMBEDDED (0 or 1), by default False.

    Raises:
      TypeError, ValueError: an argument or a HOROVOD_DATA_* variable is wrong, or no process is left to train.
      RuntimeError: one of these:

        - The job was started with another MPI than the library was built for.
        - MPI can't be used from several threads.
        - multiprocessing has started this process, and the program calls init() when it is imported.
        - This process is not allowed to open enough files.
        - The ranks disagree.
        - Horovod was initialised for other processes.
        - The program has imported `horovod.tensorflow` and `horovod.torch`.
        - The program has made an optimizer with a Horovod that does not average gradients of Keras 3.
        - A second call has other arguments.

    If not all processes call it within HOROVOD_DATA_TIMEOUT seconds, this process prints an error and exits with status
    1, and the job ends. The wait can't be interrupted. Ctrl-C is raised after it.
    """
    if loader.imported("tensorflow") and loader.built_ops():
        loader.load_ops()  # an error comes before the job starts
    mpi = launch_checks.mpi_name(bindings.build_info()["mpi"])
    launch_checks.check_one_mpi(loader.mpi_libraries(), mpi)  # before any MPI call, which could reach the wrong library
    if joined() is not None:
        _require_same(current("init()"), readers, readers_per_node, embedded, _checked_comm(comm))
        return
    before, here = bindings.mpi_query(), launch_checks.place_before_mpi(os.environ)
    if before.usable:
        exit_status.install(end)  # from here on other ranks may wait for this process, even if the next line fails
    launch_checks.check_files(*cgroups.spare_files(), before.usable, here)
    settings = read_settings(os.environ, readers=readers, readers_per_node=readers_per_node, embedded=embedded)
    comm = _checked_comm(comm)

    launch_checks.check_main_guard(here)
    launch_checks.check_before_mpi(os.environ, mpi)
    horovod = with_horovod.load()
    launch_checks.check_one_mpi(loader.mpi_libraries(), mpi)  # Horovod may have loaded another MPI
    if (before := bindings.mpi_query()).finalized:
        what = "MPI has already been finalised in this process, and can't be started twice"
        to_do = "Call horovod_data.init() before hvd.shutdown() or MPI.Finalize()"
        raise explained(RuntimeError, what, to_do)
    if not before.initialized:
        launcher = launch_checks.find_launcher(os.environ)
        with handshake.watched(here, launcher.size if launcher else 1, settings):
            bindings.mpi_init()
        exit_status.install(end)
    launch_checks.check_thread_level(bindings.mpi_query().thread_level, not before.initialized, mpi)
    horovod_here = with_horovod.place(horovod)
    launch_checks.check_world(os.environ, bindings.comm_info(None)[1], mpi, horovod_here[1] if horovod_here else None)
    with signals.Held():  # an interrupt must not leave collectives unfinished
        _join(comm, settings, horovod, horovod_here, mpi)


def _join(comm: Any, settings: Settings, horovod: Any, horovod_here: Optional[tuple[int, int]], mpi: str) -> None:
    """Meets the other processes, and starts Horovod (if it is installed) and the engine. Collective."""
    address = None if comm is None else int(sys.modules["mpi4py.MPI"]._addressof(comm))
    rank, size = bindings.comm_info(address)
    host = socket.gethostname()

    def exchange(mine: bytes) -> list[bytes]:
        return bindings.comm_exchange(address, mine)

    with handshake.watched(place(rank, host), size, settings):
        horovods_name = getattr(horovod, "__name__", "") if with_horovod.wanted() else None
        mine = handshake.introduction(host, bindings.comm_info(None)[0], settings, horovods_name, horovod_here)
        everybody = handshake.meet(mine, rank, exchange)
    hosts = tuple(other["host"] for other in everybody)
    layout = make_layout(hosts, settings.readers, settings.readers_per_node, settings.embedded)
    where = layout.name(rank, host)
    handshake.check_horovod(everybody, layout, where)
    with handshake.watched(where, size, settings, "come through"):
        if settings.timeline:
            _begin_timeline(settings.timeline, rank, layout.readers[0], exchange, where)
        if horovod is not None and layout.trainer_index[rank] >= 0:
            trainers = [everybody[trainer]["world_rank"] for trainer in layout.trainers]
            with_horovod.join(horovod, layout, rank, trainers, mpi, where)
            with_horovod.refuse_other(horovod, where)
            if len(trainers) > 1 and with_horovod.is_of_tensorflow(horovod):
                from .job import unaveraged

                unaveraged.refuse(where)
            exit_status.install(end)  # again, because our atexit handler must run before Horovod's
            with_horovod.end_with_mpi(horovod, horovod_here is not None)
        elif layout.trainer_index[rank] < 0 or not with_horovod.wanted():
            with_horovod.refuse(where)
        bindings.start(
            address,
            hosts,
            layout.reader_index,
            layout.trainer_index,
            layout.group,
            (settings.timeline, settings.certificate),
            stall_seconds=settings.stall_seconds,
            timeout_seconds=settings.timeout_seconds,
            payload=PAYLOADS.index(settings.payload),
            arena_bytes=settings.arena_bytes,
            finalize_waits=horovod_here is not None and with_horovod.end_before(horovod, hear_of_horovods_end, end),
            timeline_bytes=settings.timeline_bytes,
        )
    environ = {name: value for name, value in os.environ.items() if name.startswith("HOROVOD_DATA_")}
    job = Job(settings, comm, rank, hosts, layout, fork_check(), environ)
    begin(job)
    set_here(job.where)
    if loader.imported("tensorflow"):  # otherwise channel/create.py does it
        from .channel import receiver

        receiver.protect_forks()
    if settings.audit and job.trainer is not None:
        from .auditing import keras_fit

        keras_fit.install()
    if settings.progress and job.trainer == 0:
        from .observe.progress import watch

        watch.start(settings.progress_seconds, settings.attempt)


def _begin_timeline(path: str, rank: int, reader: int, exchange: Callable[[bytes], list[bytes]], where: str) -> None:
    """Begins the timeline at `path`, on the rank that is the first reader. Collective.

    Raises:
      ValueError: the reader can't write to the file. Every rank raises it.
    """
    trouble = ""
    if rank == reader:
        horovods = os.environ.get("HOROVOD_TIMELINE")
        try:
            if horovods and os.path.realpath(horovods) == os.path.realpath(path):
                same = f"HOROVOD_TIMELINE and HOROVOD_DATA_TIMELINE name the same file, {path!r}"
                trouble = explain(same, "Give each its own", where="")
            else:
                from .timeline import parts

                parts.begin(path)
        except (OSError, ValueError) as error:
            trouble = explain(
                f"HOROVOD_DATA_TIMELINE={path!r} is no file that reader 0 can write ({where}): "
                f"{getattr(error, 'strerror', None) or error}",
                "Name a file in a folder that exists on that host",
                where="",
            )
    if said := json.loads(exchange(json.dumps(trouble).encode())[reader]):
        raise ValueError(said)


def _require_same(
    job: Job, readers: Optional[int], readers_per_node: Optional[int], embedded: Optional[bool], comm: Any
) -> None:
    """Checks a second call. Arguments that are None stand for the environment as it was at the first call."""
    asked = read_roles(job.environ, readers, readers_per_node, embedded)
    runs = Roles(job.settings.readers, job.settings.readers_per_node, job.settings.embedded)
    if (asked, comm) == (runs, job.comm):
        return

    def shown(given: Roles, comm: Any) -> str:
        comm_name = "MPI_COMM_WORLD" if comm is None else comm.Get_name()
        return ", ".join(f"{name}={value}" for name, value in {**given._asdict(), "comm": comm_name}.items())

    raise explained(
        RuntimeError,
        f"init() was called a second time with other arguments: {shown(asked, comm)}; the job runs with {shown(runs, job.comm)}",
        "Call it once, before anything else of horovod_data",
    )


def _checked_comm(comm: Any) -> Any:
    if comm is None:
        return None
    mpi4py: Any = sys.modules.get("mpi4py.MPI")  # a program that has a communicator of mpi4py has imported mpi4py
    if mpi4py is None or not isinstance(comm, mpi4py.Intracomm):
        to_do = "Leave it out for all processes of the job, or pass what `MPI.COMM_WORLD.Split(...)` returns"
        raise explained(TypeError, f"comm must be an mpi4py intracommunicator, not {comm!r}", to_do)
    if comm == mpi4py.COMM_NULL:
        what = "comm is MPI.COMM_NULL: this process is no member of that communicator"
        raise explained(ValueError, what, "Call init() only on its members")
    return None if comm == mpi4py.COMM_WORLD else comm
